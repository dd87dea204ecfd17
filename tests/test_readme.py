"""What the README shows runs, and what it names exists."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.S)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippets_run(number, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SNIPPETS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_picture_is_used():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    used = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    }
    assert used == {path.resolve() for path in (ROOT / "docs" / "images").iterdir()}


def test_extras_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    sentence = re.search(r"extras are (.*?), as in", README, flags=re.S)
    assert sentence
    assert set(re.findall(r"`(\w+)`", sentence.group(1))) <= set(extras)


def test_every_verb_named_exists_and_every_verb_is_named():
    from metastep.cli import app

    verbs = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"`metastep ([a-z]+)", README)) | set(
        re.findall(r"then `metastep ([a-z]+)`, `(?:[a-z]+)`", README)
    )
    assert named <= verbs
    assert verbs - {"demo"} <= named | set(re.findall(r"`([a-z]+)`", README))


def test_the_map_names_every_module():
    package = ROOT / "src" / "metastep"
    modules = {path.stem for path in package.glob("*.py")} | {path.name for path in package.iterdir() if path.is_dir()}
    listed = set(re.findall(r"`([a-z_]+)/?`", README))
    assert modules - {"__init__", "__main__", "__pycache__"} <= listed


def test_nothing_is_left_to_fill_in():
    assert "<!--" not in README


def test_cleaning_up_keeps_the_runs():
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:\n")[2]
    removed = re.findall(r"rm -rf (.*)", recipe)
    assert len(removed) == 1
    assert not [word for word in removed[0].split() if word.strip("./").startswith("runs")]
