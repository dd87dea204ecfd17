"""Runs what a page of the documentation shows, in the working folder. A tool of `test_docs.py`.

Blocks are taken in order. What the text says to save is saved, other Python is executed, configurations are built, and the
commands of `metastep` are parsed and their configurations built. Only a run whose model the page loads later is carried out,
as far as that and in little.
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
from metastep.experiments.run import Run

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.M | re.S)
SAVED = re.compile(r"[Ss]ave (?:it|this) as\s+`([\w.-]+)`")
SMALL = ("collect.num_meta_episodes=64", "rollout.num_episodes=20", "fqi.iterations=1")


def commands(block: str) -> Iterator[list[str]]:
    """The commands of `metastep` in a block, as words; a redirection is left in."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line.rstrip("& "), comments=True)
        if words[:1] == ["metastep"]:
            yield words[1:]


def parameters(words: list[str]) -> dict:
    """What the command line makes of a command; a misspelt option is an error."""
    verb, *rest = words
    return get_command(app).commands[verb].make_context(verb, list(rest)).params


def build(experiment: config.Experiment) -> None:
    """Everything that a run builds before it starts."""
    Run(Path(), experiment).require_buildable()


def build_toml(text: str) -> None:
    """A whole configuration, or settings to put into that of a preset."""
    data = tomllib.loads(text)
    if not {"env", "policy"} <= set(data):
        preset = config._preset("cartpole")
        for table in ("quick", "readings"):
            preset.pop(table, None)
        data = config._merged(preset, data)
    data.pop("quick", None)
    build(config.parse(data))


def follow(words: list[str], page: str) -> None:
    """A command: parsed, its configuration built, and carried out where the page needs its model."""
    words, target = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
    given = parameters(words)
    source, overrides = given.get("preset"), given.get("overrides") or []
    modules = re.findall(r"(\w+):\w", " ".join(overrides))
    known = source in config.list_presets() or (source is not None and Path(source).exists())
    if not known or not all(Path(f"{module}.py").exists() for module in modules):
        return
    scale = given["scale"] and given["scale"].value
    experiment = config.load(source, scale, overrides)
    build(experiment)
    if target:
        from metastep.experiments.reference import to_toml

        Path(target).write_text(to_toml(experiment))
    if given.get("out") and f'load_model("{given["out"]}")' in page:
        fit_small(source, given["out"], [*overrides, *SMALL])


def fit_small(source: str, out: Path, overrides: list[str]) -> None:
    """A run up to its model, without the choice of the iteration."""
    from metastep.experiments.stages import fit_model
    from metastep.experiments.start import start_run
    from metastep.fqi import save_model

    folder = start_run(source, None, out, command="", overrides=overrides)
    save_model(fit_model(folder, folder.collect()), folder.model_file)


def run_page(page: str) -> None:
    """All blocks, in a process of their own; a warning is an error."""
    warnings.simplefilter("error")
    jax.config.update("jax_numpy_dtype_promotion", "standard")  # strict is for our own code, not for what users run
    sys.path.insert(0, "")
    names: dict = {"__name__": "page"}
    for block in BLOCK.finditer(page):
        language, text = block.groups()
        before = page[: block.start()].rstrip().rpartition("\n\n")[2]
        if saved := SAVED.search(before):
            Path(saved[1]).write_text(text)
        if language == "python" and not saved:
            exec(compile(text, "block", "exec"), names)
        elif language == "toml":
            build_toml(text)
        elif not language:
            for words in commands(text):
                follow(words, page)
