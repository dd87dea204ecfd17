"""Settings of every test: strict dtypes, compiled programs cached on disk, the same hypothesis examples each time.

They go into the environment before JAX is imported, so that processes started by tests share them, and tests without JAX do
not pay for its import.
"""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["JAX_NUMPY_DTYPE_PROMOTION"] = "strict"
# Tests compile hundreds of programs and run each for milliseconds, so optimising them does not pay.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# The older emitter compiles fusions in a third of the time; splitting a program pays on many cores only.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Torch and BLAS have little to do in tests, and threads that wait for work take time from the other processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests are short and pytest uses all cores: further processes would only compile everything again.
os.environ.setdefault("METASTEP_PATIENCE", "inf")

# A traced program consists of a hundred thousand long-lived objects; frequent searches for garbage cost a sixth of the time.
gc.set_threshold(50_000, 20, 20)

settings.register_profile("metastep", deadline=None, derandomize=True, database=None)
settings.load_profile("metastep")


@pytest.fixture(scope="module", autouse=True)
def _clear_programs() -> Iterator[None]:
    """Free the compiled programs of a module: other modules share few of them, and together they fill gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="session", autouse=True)
def _drafts() -> None:
    """Do not render figures, see `tests/drafts.py`."""
    from tests import drafts

    drafts.switch(on=True)


@pytest.fixture(scope="module")
def rendered() -> Iterator[None]:
    """Render the figures of a module as users have them."""
    from tests import drafts

    drafts.switch(on=False)
    yield
    drafts.switch(on=True)
