"""Data flows one way: a module imports only what is above it in the list, and nothing heavy is imported at start-up."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metastep

PACKAGE = Path(metastep.__file__).parent

ORDER = (
    "_core",
    "envs",
    "policies",
    "simulation",
    "rules",
    "features",
    "mdp",
    "fqi",
    "pretrained",
    "controllers",
    "evaluation",
    "report",
    "testing",
    "experiments",
)
# These import anything; nothing imports them, except one another.
TOP = ("integrations", "cli", "__main__")
HEAVY = {
    "jax",
    "numpy",
    "scipy",
    "sklearn",
    "numba",
    "optax",
    "matplotlib",
    "pyarrow",
    "pydantic",
    "torch",
    "gymnasium",
}


def component(parts: tuple[str, ...]) -> str:
    """The entry of the list that a module's path or dotted name belongs to; the package itself is ''."""
    return parts[0] if parts and parts[0] != "__init__" else ""


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(source: str, package: tuple[str, ...], importer: str) -> Iterator[str]:
    """Components that a module in `package` (its dotted name, in parts) imports, anywhere in its text."""
    tree = ast.parse(source)
    if importer == "":  # the package itself imports its public names when they are used; type checkers see them
        tree.body = [node for node in tree.body if not is_for_type_checkers(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = (*base, *(node.module.split(".") if node.module else ()))
            # `from metastep import storage` names the module last; `from metastep._core.storage import Manifest` does not.
            names = [(*base, alias.name) for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "metastep" and name[1:]:
                yield name[1]


def violations(importer: str, names: Iterator[str]) -> list[str]:
    """What is wrong with these imports of a module in the component `importer`."""
    found = []
    for name in names:
        if name == importer or (importer in TOP and name in (*ORDER, *TOP)):
            continue
        if name not in (*ORDER, *TOP):
            if name == "__version__":  # no module
                continue
            found.append(f"{importer} imports {name}, which has no place in the list")
        elif name in TOP or importer == "" or ORDER.index(name) > ORDER.index(importer):
            found.append(f"{importer or 'metastep'} must not import {name}")
    return found


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_what_is_above_it(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    importer = component(parts)
    assert importer in ("", *ORDER, *TOP), f"{importer} has no place in the list"
    assert violations(importer, imported(path.read_text(), ("metastep", *parts[:-1]), importer)) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_library_never_imports_the_paper(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        assert "paper" not in {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize(
    ("importer", "source", "wrong"),
    [
        ("policies", "from metastep.simulation.rollouts import Rollout", True),
        ("policies", "from metastep._core.errors import InputError", False),
        ("simulation", "from metastep import mdp", True),
        ("simulation", "from metastep import envs, policies", False),
        ("simulation", "import metastep.rules as updates", True),
        ("simulation", "def late():\n    from metastep.mdp.loop import run", True),
        ("simulation", "if TYPE_CHECKING:\n    from metastep.mdp.loop import run", True),
        ("envs", "from . import base\nfrom .base import Env", False),
        ("envs", "from ..simulation import rollouts", True),
        ("mdp", "from metastep.cli import main", True),
        ("report", "from metastep.integrations import minari", True),
        ("report", "from metastep import __version__", False),
        ("report", "from metastep import nonsense", True),
        ("cli", "from metastep.integrations.minari import export", False),
        ("testing", "from metastep.simulation.rollouts import Rollout", False),
        ("controllers", "from metastep.testing import check_controller", True),
        ("", "from metastep._core.errors import InputError", True),
        ("", "if TYPE_CHECKING:\n    from metastep._core.errors import InputError", False),
    ],
)
def test_the_walk_sees_what_it_should(importer: str, source: str, wrong: bool) -> None:
    package = ("metastep", importer) if importer else ("metastep",)
    assert bool(violations(importer, imported(source, package, importer))) == wrong


def modules_after(code: str) -> set[str]:
    """Top-level packages that a new process has imported after running the code."""
    report = "\nimport sys\nprint('\\n', *{name.partition('.')[0] for name in sys.modules})"
    process = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(process.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = modules_after("import metastep; metastep.__version__")
    assert "metastep" in loaded
    assert not loaded & HEAVY


def test_help_imports_nothing_heavy() -> None:
    loaded = modules_after(
        """
import sys
from metastep.cli import main
sys.argv = ["metastep", "--help"]
try:
    main()
except SystemExit:
    pass
"""
    )
    assert {"metastep", "typer"} <= loaded
    assert not loaded & HEAVY


def test_the_measure_of_heaviness_works() -> None:
    assert "numpy" in modules_after("import metastep._core.storage")
