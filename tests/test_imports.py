"""Data flows one way: a module imports only packages above its own, and start-up imports nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import metastep

PACKAGE = Path(metastep.__file__).parent
ORDER = (
    "_core", "envs", "policies", "simulation", "rules", "features", "mdp", "fqi", "search", "pretrained", "controllers",
    "evaluation", "report", "testing", "experiments",
)  # fmt: skip
TOP = ("integrations", "cli", "__main__")  # import anything; only they may import one another
OUTSIDE = ("paper", "pretraining", "benchmarks", "tests", "examples")
HEAVY = {
    "jax", "numpy", "scipy", "sklearn", "numba", "optax", "matplotlib", "pyarrow", "pydantic", "torch", "gymnasium",
}  # fmt: skip


def imported(source: str, package: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names, in parts, that a module of `package` imports anywhere in its text."""
    tree = ast.parse(source)
    if package == ("metastep",):  # its public names are imported on first use; a type checker sees them at once
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (*package[: len(package) - node.level + 1],) if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            yield from ((*base, alias.name) for alias in node.names)


def violations(source: str, *inside: str) -> list[str]:
    """Return what is wrong with the imports of a module in the package metastep.`inside`."""
    own, found = (inside or ("",))[0], []
    for root, *rest in imported(source, ("metastep", *inside)):
        name = rest[0] if rest else ""
        if root in OUTSIDE:
            found.append(f"the library must not import {root}")
        if root != "metastep" or name in ("", own, "__version__") or (own in TOP and name in (*ORDER, *TOP)):
            continue
        if name not in (*ORDER, *TOP):
            found.append(f"{own} imports {name}, which has no place in the order")
        elif name in TOP or own == "" or ORDER.index(name) > ORDER.index(own):
            found.append(f"{own or 'metastep'} must not import {name}")
    return found


@pytest.mark.parametrize("package", ["", *ORDER, *TOP])
def test_a_module_imports_only_packages_above_its_own(package):
    own = PACKAGE / package if package else PACKAGE / "__init__.py"
    alone = [path for path in (own, own.with_suffix(".py")) if path.is_file()]
    paths = sorted(own.rglob("*.py")) if own.is_dir() else alone
    assert paths
    for path in paths:
        inside = path.relative_to(PACKAGE).with_suffix("").parts
        inside = inside[:-1] if own.is_dir() or not package else inside
        assert violations(path.read_text(), *inside) == [], path


def test_every_module_has_a_place_in_the_order():
    parts = {path.relative_to(PACKAGE).with_suffix("").parts[0] for path in PACKAGE.rglob("*.py")}
    assert parts == {"__init__", *ORDER, *TOP}


@pytest.mark.parametrize(
    ("own", "source", "is_wrong"),
    [
        ("simulation", "def late():\n    from metastep.mdp.loop import run", True),
        ("envs", "from . import base\nfrom .base import Env", False),
        ("envs", "from ..simulation import rollouts", True),
        ("report", "from metastep import __version__, nonsense", True),
        ("report", "import paper.facts", True),
        ("cli", "from metastep.integrations.minari import export", False),
        ("", "if TYPE_CHECKING:\n    from metastep._core.errors import InputError", False),
    ],
)
def test_the_check_sees_wrong_imports(own, source, is_wrong):
    assert bool(violations(source, *([own] if own else []))) == is_wrong


def modules_after(code: str) -> set[str]:
    """Return the top-level packages that a new process has imported after running the code."""
    report = "\nimport sys\nprint('\\n', *{name.partition('.')[0] for name in sys.modules})"
    process = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(process.stdout.splitlines()[-1].split())


def test_start_up_imports_nothing_heavy():
    assert not modules_after("import metastep; metastep.__version__") & HEAVY
    helped = "import sys\nfrom metastep.cli import main\nsys.argv = ['metastep', '--help']\n"
    loaded = modules_after(f"{helped}try:\n    main()\nexcept SystemExit:\n    pass")
    assert {"metastep", "typer"} <= loaded
    assert not loaded & HEAVY
    assert "numpy" in modules_after("import metastep._core.storage")  # the check sees a heavy import


# What is added is taken away elsewhere. Tests of the paper are not counted.
@pytest.mark.parametrize(("folder", "most"), [("src", 20_000), ("paper", 4_000), ("tests", 16_000)])
def test_the_house_stays_small(folder: str, most: int) -> None:
    root = PACKAGE.parents[1]
    files = [path for path in (root / folder).rglob("*.py") if path.relative_to(root).parts[:2] != ("paper", "tests")]
    assert sum(len(path.read_text().splitlines()) for path in files) <= most
