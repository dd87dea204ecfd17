"""Run the blocks of a documentation page in the working directory; used by `test_docs.py`.

Blocks are processed in order: files that the text says to save are saved, other Python is executed, configurations are built, and
commands of `metastep` are parsed and their configurations built. No run is carried out.
"""

import re
import shlex
import sys
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax
from typer.main import get_command

from metastep.cli import app
from metastep.experiments import config
from metastep.experiments.reference import to_toml
from metastep.experiments.run import Run
from paper.__main__ import app as paper

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)
SAVED = re.compile(r"[Ss]ave (?:it|this) as\s+`([\w.-]+)`")


def commands(block: str) -> Iterator[list[str]]:
    """Split the commands of `metastep` and `python -m paper` in a block into words; a redirection stays in."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line.rstrip("& "), comments=True)
        if words[:1] == ["metastep"]:
            yield words[1:]
        elif words[:3] == ["python", "-m", "paper"]:
            yield words[2:]


def parameters(words: list[str]) -> dict:
    """Parse a command; a misspelt option is an error."""
    program, (verb, *rest) = (paper, words[1:]) if words[0] == "paper" else (app, words)
    return get_command(program).commands[verb].make_context(verb, list(rest)).params


def follow(words: list[str]) -> None:
    """Parse a command and build its configuration."""
    words, target = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    given = parameters(words)
    source, overrides = given.get("source", given.get("preset")), given.get("overrides") or []
    modules = re.findall(r"(\w+):\w", " ".join(overrides))
    known = source in config.list_presets() or (source is not None and Path(source).exists())
    if not known or not all(Path(f"{module}.py").exists() for module in modules):
        return
    experiment = config.load(source, given["scale"], overrides)
    Run(Path(), experiment).require_buildable()
    if target:
        Path(target).write_text(to_toml(experiment))


def run_page(page: str) -> None:
    """Run all blocks; a warning is an error."""
    warnings.simplefilter("error")
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # strict is for our own code, not for users'
    sys.path.insert(0, "")
    names: dict = {"__name__": "page"}
    for block in BLOCK.finditer(page):
        language, text = block.groups()
        before = page[: block.start()].rstrip().rpartition("\n\n")[2]
        if saved := SAVED.search(before):
            Path(saved[1]).write_text(text)
        if language == "python" and not saved:
            exec(compile(text, "block", "exec"), names)
        elif language == "toml":  # a configuration, or some settings of a preset
            is_whole = {"env", "extends"} & set(tomllib.loads(text))
            Path("block.toml").write_text(text if is_whole else f'extends = "cartpole"\n{text}')
            Run(Path(), config.load("block.toml", "full")).require_buildable()
        elif not language:
            for words in commands(text):
                follow(words)
