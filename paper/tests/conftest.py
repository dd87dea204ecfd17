"""The paper's figures are rendered."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _rendered(rendered: None) -> None: ...
