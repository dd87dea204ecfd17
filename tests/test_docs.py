"""README and documentation: they build strictly, load nothing from a network, agree with the code, and their snippets run."""

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from metastep.experiments.config import list_presets, load
from metastep.experiments.stages import method_specs
from paper.registry import IDS
from tests.processes import Running, execute, metastep
from tests.run_page import BLOCK, commands, parameters, run_page

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]
COMMAND_LINE = (ROOT / "docs" / "reference" / "command-line.md").read_text()


def loads_from_elsewhere(file: Path) -> list[str]:
    """Return addresses that a page loads; links are followed on a click only."""
    text = file.read_text("utf-8")
    if file.suffix == ".css":
        return re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", text)
    tags = [tag for tag in re.findall(r"<\w[^>]*>", text) if not re.match(r"<a\b", tag) and "canonical" not in tag]
    address = re.compile(r"\b(?:src|href|data|srcset|poster)\s*=\s*[\"']?((?:https?:)?//[^\"'\s>]+)")
    return [found for tag in tags for found in address.findall(tag)]


# One test, not many on a shared site: processes that run tests side by side would each build it.
def test_the_site_builds_strictly_and_loads_nothing_from_a_network(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # an advertisement
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr

    built = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]
    assert {file.name for file in built} >= {page.with_suffix(".html").name for page in PAGES}
    assert {str(file): found for file in built if (found := loads_from_elsewhere(file))} == {}
    # Search without a server: the index is a script, and our own script stands in for a worker.
    assert (tmp_path / "search" / "search_index.js").exists()
    assert (tmp_path / "assets" / "iframe-worker.js").exists()


def test_generated_tables_are_current():
    """Run `python docs/gen_reference.py --write` if this fails."""
    done = execute(ROOT / "docs" / "gen_reference.py", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_reference_names_every_setting_and_command():
    from metastep.cli import app
    from metastep.experiments.schema import Experiment

    configuration = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for section, field in Experiment.model_fields.items():
        for setting in getattr(field.annotation, "model_fields", [section]):
            ways = (f"`{setting}`", f"[{section}.{setting}]", f"[{section}.{setting}.NAME]", f"[{setting}.NAME]")
            assert any(way in configuration for way in ways), setting
    for command in app.registered_commands:
        name = command.callback.__name__
        assert f"Usage: metastep {name}" in COMMAND_LINE
        assert name == "demo" or f"`metastep {name}" in COMMAND_LINE  # an example


def test_pages_are_short():
    words = {page.name: len(page.read_text().split()) for page in (ROOT / "docs").glob("*.md")}
    assert {name: num for name, num in words.items() if num > 900} == {}
    assert len(README.splitlines()) <= 130


def test_one_update_passes_through_at_most_15_files():
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    files = re.findall(r"^\d+\. `([\w/]+\.py)`", page, flags=re.M)
    assert 10 < len(files) <= 15
    for name, says in re.findall(r"^\d+\. `([\w/]+\.py)`: (.*)$", page, flags=re.M):
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = importlib.import_module(f"metastep.{dotted}")
        owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
        named = re.findall(r"`(\w+)`", says)
        assert [each for each in named if not any(hasattr(owner, each) for owner in owners)] in ([], ["theta"]), name


def test_modules_and_functions_named_in_the_text_exist():
    for page in ALL:
        for name in re.findall(r"`(metastep(?:\.\w+)+)`", page.read_text()):
            assert pkgutil.resolve_name(name) is not None, (page.name, name)


def test_pages_are_in_plain_english():
    avoided = re.compile(r"\b(told|anew|whoever|nobody|came of)\b", flags=re.I)
    assert {page.name: found for page in ALL if (found := avoided.findall(page.read_text()))} == {}
    assert "<!--" not in README


def test_toml_blocks_are_toml():
    for page in ALL:
        for text in re.findall(r"```toml\n(.*?)```", page.read_text(), flags=re.S):
            assert tomllib.loads(text), page.name


def shown_commands() -> Iterator[tuple[str, list[str]]]:
    """Commands of `metastep` and `python -m paper` in blocks and in the text."""
    for page in [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *PAGES]:
        text = page.read_text()
        inline = re.findall(r"(?<!`)`((?:metastep|python -m paper) [a-z]+ [^`]+)`", BLOCK.sub("", text))
        for block in [*(block for language, block in BLOCK.findall(text) if not language), *inline]:
            yield from ((page.name, words) for words in commands(block))


def test_shown_commands_parse():
    shown = list(shown_commands())
    assert len(shown) > 60
    for page, words in shown:
        words = words[: words.index(">")] if ">" in words else words
        try:
            given = words in (["--version"], ["envs"]) or parameters(words)
            assert given
            if words[:2] == ["paper", "reproduce"]:
                assert set(given["ids"]) <= {"all", *IDS}
        except Exception as error:
            pytest.fail(f"{page}: metastep {' '.join(words)}: {error}")


def test_configurations_shown_on_presets_build():
    built = 0
    for page, words in shown_commands():
        given = parameters(words) if words[0] in ("run", "collect", "search") else {}
        if given.get("source") in list_presets() and not re.search(r"\w:\w", " ".join(given.get("overrides") or [])):
            assert method_specs(load(given["source"], given["scale"], given["overrides"] or ())), (page, words)
            built += 1
    assert built > 30


# The tour needs a run.
PYTHON_PAGES = [page for page in PAGES if "```python" in page.read_text() and page.name != "tour.md"]


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=lambda page: page.stem)
def test_snippets_of_a_page_run(page, tmp_path):
    done = Running(run_page, page.read_text(), cwd=tmp_path).wait()
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_every_list_has_an_empty_line_before_it():
    """Without it, MkDocs makes the list a part of the paragraph."""
    for page in [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
        assert not re.findall(r"^(?![-*\d\s|>#]).+\n(?:[-*]|\d+\.) .*$", text, flags=re.M), page.name


def test_the_snippets_of_the_tour_run(tmp_path):
    """In a small version of the folder that `make demo` writes: a run of Minigolf in runs/demo."""
    small = [
        "collect.num_meta_episodes=64", "fqi.iterations=1", "selection.num_tasks=2",
        'compare.methods=["metafqi"]', "compare.num_tasks=2", "compare.num_updates=2",
    ]  # fmt: skip
    words = ["run", "minigolf", "--out", "runs/demo", *(word for setting in small for word in ("--set", setting))]
    done = metastep(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = run("\n".join(snippets((ROOT / "docs" / "tour.md").read_text())), tmp_path)
    assert [line.startswith("return ") for line in shown] == [True] * 6 + [False] * (len(shown) - 6)
    assert shown[6].startswith("('putter_length', 'friction')")


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, flags=re.S)


def run(script: str, folder: Path) -> list[str]:
    """Lines that a script prints; a warning is an error."""
    (folder / "snippet.py").write_text(script)
    done = execute(folder / "snippet.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_snippet_of_the_readme_runs(tmp_path):
    (snippet,) = snippets(README)
    assert len([line for line in snippet.splitlines() if line]) <= 10
    assert "learn(61_440," in snippet
    short = snippet.replace("learn(61_440,", "learn(4_096,").replace('("ppo")', '("ppo", outside="trust")')
    (line,) = run(short, tmp_path)
    assert line.startswith("mean return ")


def test_links_exist_and_every_picture_is_used():
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):  # MkDocs checks the others
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text()):
            assert target.startswith("https://") or (ROOT / target).exists(), target
    shown = ((page, re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text())) for page in ALL)
    used = {(page.parent / target).resolve() for page, targets in shown for target in targets}
    assert used == {path.resolve() for path in (ROOT / "docs" / "images").iterdir()}


def test_every_extra_is_explained():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.M)) == set(extras)


def test_the_map_names_every_module():
    package = ROOT / "src" / "metastep"
    modules = {path.stem for path in package.glob("*.py")} | {path.name for path in package.iterdir() if path.is_dir()}
    listed = set(re.findall(r"`([a-z_]+)/?`", README))
    assert modules - {"__init__", "__main__", "__pycache__"} <= listed


def test_cleaning_up_keeps_the_runs():
    recipe = (ROOT / "Makefile").read_text().partition("\nclean:\n")[2]
    removed = re.findall(r"rm -rf (.*)", recipe)
    assert len(removed) == 1
    assert not [word for word in removed[0].split() if word.strip("./").startswith("runs")]
