"""Every script in examples/ runs without a warning, from any folder."""

import ast
import difflib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from metastep.fqi import save_model
from tests.processes import execute
from tests.steppers import tiny_model

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
LOOPS = [path for path in EXAMPLES if "_rate_" in path.name]


def before(path: Path) -> Path:
    """The same loop without a learned rate."""
    return FOLDER / "before" / path.name.replace("_rate", "")


def test_examples_of_loops_are_short_and_each_has_one_before_it():
    for path in LOOPS:
        assert len(path.read_text().splitlines()) <= 40, path.name
    assert sorted(FOLDER.glob("before/*.py")) == [before(path) for path in LOOPS]


# Those that import the same frameworks run in one process, which imports once.
GROUPS = ["01 02 04", "03 05 07", "06 08"]


def test_every_example_is_in_a_group():
    assert [path.name[:2] for path in EXAMPLES] == sorted(" ".join(GROUPS).split())


@pytest.mark.parametrize("group", GROUPS)
def test_examples_run(group, tmp_path):
    model, scripts = tmp_path / "tiny.safetensors", []
    # A model of several families, so that no loop's settings differ from the model's.
    known = {"configuration": {"experiment": {"meta": {"num_updates": 9}}}}
    anywhere = replace(tiny_model().record, setting={"env": "several", "rule": {"name": "ppo"}}, **known)
    save_model(replace(tiny_model(), record=anywhere), model)
    for path in (path for path in EXAMPLES if path.name[:2] in group.split()):
        copy = tmp_path / path.name
        copy.write_text(path.read_text().replace('"ppo-classic"', repr(str(model))))
        scripts += [before(path), copy] if path in LOOPS else [path]
    finished = execute(*scripts, cwd=tmp_path, METASTEP_EXAMPLE_QUICK="1")
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
