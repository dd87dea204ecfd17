"""The snippets of the README and the tour run, and everything they name exists."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.processes import execute, metastep

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small version of the folder that `make demo` writes: a run of Minigolf in runs/demo."""
    folder = tmp_path_factory.mktemp("readme")
    small = [
        "collect.num_meta_episodes=64", "fqi.iterations=1", "selection.num_tasks=2",
        'compare.methods=["metafqi"]', "compare.num_tasks=2", "compare.num_updates=2",
    ]  # fmt: skip
    words = ["run", "minigolf", "--out", "runs/demo", *(word for setting in small for word in ("--set", setting))]
    done = metastep(*words, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.S)


def run(script: str, folder: Path) -> list[str]:
    """Lines that a script prints; a warning is an error."""
    (folder / "snippet.py").write_text(script)
    done = execute(folder / "snippet.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 130


def test_the_snippet_of_the_readme_runs(tmp_path):
    (snippet,) = snippets(README)
    assert len([line for line in snippet.splitlines() if line]) <= 10
    assert "learn(61_440," in snippet
    (line,) = run(snippet.replace("learn(61_440,", "learn(4_096,"), tmp_path)
    assert line.startswith("mean return ")


def test_the_snippets_of_the_tour_run(folder):
    shown = run("\n".join(snippets(TOUR)), folder)
    assert [line.startswith("return ") for line in shown] == [True] * 6 + [False] * (len(shown) - 6)
    assert shown[6].startswith("('putter_length', 'friction')")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_and_pictures_exist(page):
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_every_picture_is_used():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    used = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())
    }
    assert used == {path.resolve() for path in (ROOT / "docs" / "images").iterdir()}


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M)) == set(extras)


def test_every_verb_has_an_example():
    from metastep.cli import app

    verbs = {command.callback.__name__ for command in app.registered_commands}
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text()
    assert verbs - {"demo"} <= set(re.findall(r"`metastep ([a-z]+)", page))


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
