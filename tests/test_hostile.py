"""Hostile files, names and environments: one sentence each, never a traceback, a hang or markup that runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metastep._core.errors import InputError
from metastep.envs.contexts import ContextSpace, load_tasks
from metastep.experiments.config import load
from metastep.experiments.reporting import print_comparison
from tests.cli.test_cli import invoke, refused
from tests.evaluation.test_statistics import make_comparison, simulated
from tests.processes import metastep as forked
from tests.processes import own, unprivileged

METASTEP = [sys.executable, "-m", "metastep"]


def test_names_of_methods_are_text_in_a_terminal(capsys):
    names = (r"$\frac{$", "[/red]", "[bold]x[/]", ":smile:")
    comparison = make_comparison(simulated(tuple(range(len(names))), 10), names)
    print_comparison(comparison, load("nav2d", "quick", ["compare.num_resamples=100"]))
    shown = "".join(capsys.readouterr().out.split())
    assert all(name in shown for name in names)


@pytest.mark.parametrize("label", ["two\nlines", "\x1b[2J", 3, "x" * 1000])
def test_labels_that_are_not_a_line_of_text_are_refused(label):
    comparison = make_comparison(simulated((0.0,), 4), ("fixed",))
    record = comparison.methods[0]._replace(label=label)
    with pytest.raises(InputError, match="label is"):
        type(comparison)(**(vars(comparison) | {"methods": (record,)}))


@pytest.mark.parametrize("option", ["context_space", "name", "__class__", "reset"])
def test_only_fields_are_options_of_an_environment(tmp_path, option):
    words = ["--set", f"env.options.{option}=3"]
    assert option in refused(invoke("collect", "minigolf", "--out", tmp_path / "run", *words))
    assert not (tmp_path / "run").exists()


def test_only_plain_files_of_sensible_names_are_read(tmp_path):
    for name in ("tasks.csv", "own.toml", "config.json"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "device.toml").symlink_to("/dev/zero")
    (tmp_path / "place").mkdir()
    with pytest.raises(InputError, match="it is not a plain file"):
        load_tasks(tmp_path / "tasks.csv", ContextSpace(("x",), (0.0,), (1.0,)))
    for words in (("run", "own.toml"), ("config", "device.toml"), ("fit", ""), ("inspect", "")):
        assert "it is not a plain file" in refused(invoke(words[0], tmp_path / words[1]))
    for name in ("a" * 300, "b/" * 3000):
        for words in (
            ["inspect", name],
            ["collect", "nav2d", "--out", tmp_path / "place" / name],
            ["run", f"{name}.toml"],
        ):
            assert "File name too long" in refused(invoke(*words))
    assert list((tmp_path / "place").iterdir()) == []


def test_a_name_that_is_not_utf8(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    small = ["collect.num_meta_episodes=4", "rollout.num_episodes=2", "rollout.block_size=4", "meta.num_updates=1"]
    words = [word for setting in small for word in ("--set", setting)]
    done = forked("collect", "nav2d", "--out", name, *words)
    assert done.returncode == 0, done.stderr
    assert "4 tuples" in done.stdout
    assert r"\xff" in Path(name, "command.txt").read_text("utf-8")


def test_an_output_that_is_full_or_closed():
    with open("/dev/full", "w") as full:
        done = subprocess.run([*METASTEP, "--help"], text=True, check=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, "error: The output cannot be used: No space left on device.\n")
    shell = ["sh", "-c", 'exec "$0" "$@" >&- 2>&-', *METASTEP, "--help"]
    assert subprocess.run(shell, check=False).returncode == 0


@pytest.mark.parametrize("end", ["sys.exit(0)", "exit(3)", "raise ValueError('a\\nb')"])
def test_a_module_that_ends_the_process_is_a_module_that_cannot_be_imported(tmp_path, monkeypatch, end):
    module = f"ending_{abs(hash(end))}"
    (tmp_path / f"{module}.py").write_text(f"import sys\n{end}\n")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = refused(invoke("collect", "nav2d", "--out", tmp_path / "run", "--set", f"env.name={module}:x"))
    assert f"the module '{module}' cannot be imported" in sentence
    assert not (tmp_path / "run").exists()


def test_a_user_without_a_home_or_a_writable_folder(tmp_path):
    folder = own(tmp_path / "own")
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent", "XDG_CACHE_HOME": "/proc/none"}
    command = [*unprivileged(), *METASTEP, "envs"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []
