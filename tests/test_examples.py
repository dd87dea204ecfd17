"""Every script and notebook in examples/ runs without a warning, from any folder."""

import ast
import difflib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from metastep.search import save_model
from tests.processes import execute
from tests.steppers import ADDED, TRAINING, whole_model

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLES = sorted([*FOLDER.glob("*.py"), *FOLDER.glob("*.ipynb")])
LOOPS = [path for path in EXAMPLES if re.match(r"\d+_update_", path.name)]


def before(path: Path) -> Path:
    """The same loop without a model."""
    return FOLDER / "before" / path.name.replace("_update", "")


# Those that import the same frameworks run in one process, which imports once.
GROUPS = ["01 02 04", "03 05 07 09 two", "06 08 10"]
# Compiling the whole training takes most of the time.
HASTY = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def test_every_example_is_in_a_group_and_every_loop_is_short_and_has_one_before_it():
    assert max(len(path.read_text().splitlines()) for path in LOOPS) <= 50
    assert sorted(FOLDER.glob("before/*.py")) == [before(path) for path in LOOPS]
    assert [path.name.partition("_")[0] for path in EXAMPLES] == sorted(" ".join(GROUPS).split())


def script(path: Path) -> str:
    """The text of a script, or the code of a notebook, which has no outputs, without the cell that installs."""
    if path.suffix == ".py":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells)
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [text for text in texts if text.startswith("%")] == ['%pip install --quiet "..[sb3]"']
    return "\n".join(text for text in texts if not text.startswith("%"))


@pytest.mark.parametrize("group", GROUPS)
def test_examples_run(group, tmp_path):
    scripts, known = [], {"configuration": {"experiment": {"meta": {"num_updates": 9}}}}
    known["setting"] = {"env": "several", "rule": {"name": "ppo"}, "gradient_steps": "percent"}
    for path in (path for path in EXAMPLES if path.name.partition("_")[0] in group.split()):
        # A model of several families, so that no loop's settings differ from the model's.
        model = whole_model((*TRAINING, *ADDED) if "_whole_" in path.name else ())
        file = tmp_path / f"{path.stem}.safetensors"
        save_model(replace(model, record=replace(model.record, **known)), file)
        copy = tmp_path / f"{path.stem}.py"
        copy.write_text(script(path).replace('"ppo"', repr(str(file))))
        scripts += [before(path), copy] if path in LOOPS else [copy]
    flags = {"XLA_FLAGS": HASTY} if "10" in group else {}  # others are in the cache of compiled programs
    finished = execute(*scripts, cwd=tmp_path, METASTEP_EXAMPLE_QUICK="1", MPLBACKEND="agg", **flags)
    assert finished.returncode == 0, finished.stderr
    assert len(finished.stdout.splitlines()) >= len(scripts)
    assert finished.stderr == ""


def code(path: Path) -> list[str]:
    """Lines of a script without its docstring, blank lines and comments."""
    text = path.read_text()
    lines = text.splitlines()[ast.parse(text).body[0].end_lineno :]
    return [line for line in lines if line.strip() and not line.strip().startswith("#")]


def test_the_guide_shows_and_counts_the_lines_that_a_loop_needs():
    """Compare each loop with the one before, line by line."""
    guide = (FOLDER.parent / "docs" / "train.md").read_text()
    shown = re.findall(r"(\d+) lines added.*?```diff\n(.*?)```", guide, flags=re.S)
    assert len(shown) == len(LOOPS) == 4
    for (count, text), path in zip(shown, LOOPS, strict=True):
        difference = list(difflib.ndiff(code(before(path)), code(path)))
        for mark in "+-":
            wanted = [line[1:].strip() for line in difference if line.startswith(mark)]
            assert [line[1:].strip() for line in text.splitlines() if line.startswith(mark)] == wanted, path.name
            assert mark == "-" or int(count) == len(wanted), path.name
        assert {line.strip() for line in code(path)} >= {
            line.strip() for line in text.splitlines() if line.startswith(" ")
        }, path.name
