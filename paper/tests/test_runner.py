"""The command line, folders, resuming and checking, on one small figure; and that the paper uses public things only."""

import ast
import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner

import paper
from metastep import InputError
from metastep.experiments.config import load as load_config
from paper.__main__ import app
from paper.environments import USUAL
from paper.outcome import Outcome
from paper.registry import IDS, REGISTRY, resolve
from paper.results import results_markdown
from paper.runner import check_reproduction, command_of, reproduce
from paper.tests.synthetic import Watch
from paper.workbench import Workbench

CHEETAHS = {"fig2", "fig3", "fig-iterations", "table1", "fig-context", "fig-robust", "fig-fixed-context"}
CHEETAHS |= {"fig-single-action", "facts"}
PACKAGE = Path(paper.__file__).parent


def invoke(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def refused(*arguments):
    """Return the one sentence of a refusal."""
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return result.stderr.strip().splitlines()[-1].removeprefix("error: ")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Figure 2 on Nav2D at the tiny scale: the folder and the outcomes."""
    out = tmp_path_factory.mktemp("paper") / "out"
    return out, reproduce(["fig2"], out, "tiny", 3, environments=["nav2d"])


def again(out, *ids, tracker=None):
    return reproduce(ids or ["fig2"], out, "tiny", 3, tracker, environments=["nav2d"])


def test_what_is_there_is_not_computed_again(made):
    out, outcomes = made
    watch, (outcome,) = Watch(), outcomes
    assert outcome.command == "python -m paper reproduce fig2 --scale tiny --seed 3 --env nav2d"
    assert [Outcome(**row) for row in json.loads((out / "results.json").read_text())] == outcomes
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "times.json"}
    assert again(out, tracker=watch) == outcomes
    (out / "fig2" / "outcome.json").unlink()
    assert again(out, tracker=watch) == outcomes
    assert watch.stages == []  # drawn again from what the run holds
    lost = out / "runs" / "nav2d" / "results" / "fixed.safetensors"
    lost.unlink()
    (out / "fig2" / "outcome.json").unlink()
    again(out, tracker=watch)
    assert watch.stages == ["nav2d: compare fixed"]
    assert {path: path.read_bytes() for path in out.rglob("*") if path in before} == before


def wrong(folder):
    """What `python -m paper check` finds wrong, by the file's place."""
    return {str(path.relative_to(folder)): problem for path, problem in check_reproduction(folder) if problem}


def test_a_folder_is_checked(made, tmp_path):
    assert wrong(made[0]) == {}
    copy = tmp_path / "copy"
    shutil.copytree(made[0], copy)
    with (copy / "results.md").open("a") as page:
        page.write("and more\n")
    assert list(wrong(copy)) == ["results.md"]
    (copy / "fig2" / "fig2.svg").write_text("<svg/>")
    (copy / "fig2" / "outcome.txt").unlink()
    (copy / "notes.txt").write_text("mine")
    (copy / "runs" / "nav2d" / "model.safetensors").write_bytes(b"no model")
    found = wrong(copy)
    assert found["fig2/fig2.svg"] == "is damaged or was edited."
    assert found["fig2/outcome.txt"] == "is missing."
    assert found["notes.txt"] == "was not written by `python -m paper reproduce`."
    assert "runs/nav2d/model.safetensors" in found
    shown = invoke("check", copy)
    assert shown.exit_code == 1
    assert "fig2/fig2.svg: is damaged or was edited." in shown.stdout
    assert "files are ok" in invoke("check", made[0]).stdout
    (copy / "settings.json").write_text((copy / "settings.json").read_text().replace('"seed": 3', '"seed": 4'))
    assert "belongs to another id or to other settings" in wrong(copy)["fig2/outcome.json"]
    with pytest.raises(InputError, match="belongs to another id or to other settings"):
        reproduce(["fig2"], copy, "tiny", 4, environments=["nav2d"])
    settings = json.loads((made[0] / "settings.json").read_text())
    (copy / "settings.json").write_text(json.dumps({"settings": settings, "checksum": "0"}))  # as version 0.2 wrote it
    (copy / "fig2" / "outcome.json").write_bytes((made[0] / "fig2" / "outcome.json").read_bytes())
    assert again(copy) == made[1]
    (copy / "fig2" / "outcome.json").write_text("{")
    assert "was not written by `python -m paper reproduce`" in wrong(copy)["fig2/outcome.json"]
    assert "is not a folder of `python -m paper reproduce`" in refused("check", tmp_path)


def test_a_folder_belongs_to_one_setting(made, tmp_path):
    out, _ = made
    with pytest.raises(InputError, match=r"seed = 3, which is now 4; use another folder"):
        reproduce(["fig2"], out, "tiny", 4, environments=["nav2d"])
    with pytest.raises(InputError, match=r"overrides = \[\], which is now \[\"fqi.regressor.trees=2\"\]"):
        reproduce(["fig2"], out, "tiny", 3, overrides=["fqi.regressor.trees=2"], environments=["nav2d"])
    with pytest.raises(InputError, match=r"environments = \[\"nav2d\"\], which is now not set"):
        reproduce(["fig2"], out, "tiny", 3)
    with pytest.raises(InputError, match=r"scale: 'huge' must be one of quick, full, tiny"):
        reproduce(["fig1"], tmp_path, "huge")
    with FileLock(out / ".lock"), pytest.raises(InputError, match="is in use by "):
        again(out)


def test_other_folders_and_files_are_left_alone(made, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    assert "holds thesis.tex, it must be new, empty or a folder of this command" in refused(
        "reproduce", "theory", "--out", tmp_path
    )
    assert os.listdir(tmp_path) == ["thesis.tex"]
    assert "is a file, a folder is needed" in refused("reproduce", "fig1", "--out", tmp_path / "thesis.tex")
    run = made[0] / "runs" / "nav2d"
    assert "or a folder of this command" in refused("reproduce", "theory", "--out", run)
    page = tmp_path / "results.md"
    assert invoke("results", made[0], "--out", page).exit_code == 0
    assert "exists already" in refused("results", made[0], "--out", page)
    assert invoke("results", run, "--out", page, "--force").exit_code == 0  # a run of its own has no claims
    assert "## Nav2D\n" in page.read_text()


def test_a_page_needs_results(tmp_path):
    with pytest.raises(InputError, match=r"was written neither by `python -m paper reproduce` nor by `metastep run`"):
        results_markdown([tmp_path])
    (tmp_path / "results.json").write_text('{"claim": 1}')
    with pytest.raises(InputError, match=r"results.json was not written by `python -m paper reproduce`"):
        results_markdown([tmp_path])


@pytest.mark.parametrize(
    ("ids", "override", "words"),
    [
        (["fig2"], "fqi.trees=2", r"^fqi.trees: is not a setting, did you mean 'fqi.regressor.trees'\?$"),
        (["theory", "fig-swingup"], "fqi.tree=2", r"^fqi.tree: is not a setting"),
        (["fig2"], f"rollout.block_size={10**9}", "of memory"),
        (["theory", "fig1"], "seed=2", r"^--set: 'seed=2' changes nothing, no preset is run for fig1, theory\.$"),
    ],
)
def test_a_wrong_override_leaves_no_folder(tmp_path, ids, override, words):
    with pytest.raises(InputError, match=words):
        reproduce(ids, tmp_path / "paper", "tiny", overrides=[override])
    assert not (tmp_path / "paper").exists()


def test_overrides_reach_every_preset_and_the_commands(tmp_path):
    bench = Workbench(tmp_path, "full", 7, ("rollout.block_size=3200",))
    for env in (*USUAL, "swingup"):
        assert bench.config(env) == load_config(env, "full", ["rollout.block_size=3200", "seed=7"])
    without = dataclasses.replace(bench, environments=REGISTRY["theory"].usual)
    assert command_of("theory", without, named=False) == "python -m paper reproduce theory --scale full --seed 7"
    assert command_of("fig2", bench, named=False).endswith("--set rollout.block_size=3200")


def test_ids():
    assert tuple(resolve(["all"])) == tuple(name for name in IDS if REGISTRY[name].is_in_all)
    assert tuple(resolve(["theory", "fig3", "fig3"])) == ("fig3", "theory")
    assert "'fig4' does not exist, did you mean 'fig" in refused("reproduce", "fig4")
    with pytest.raises(InputError, match="none was given"):
        resolve([])
    shown = "".join(invoke("reproduce", "--help").stdout.split())  # a line may end within a name
    assert all(name in shown for name in IDS)


def test_environments_of_an_id():
    assert resolve(["fig2"]) == {"fig2": USUAL}
    assert resolve(["fig-robust"]) == {"fig-robust": ("cartpole",)}
    assert resolve(["fig3"], ["halfcheetah", "nav2d"]) == {"fig3": ("nav2d", "halfcheetah")}
    assert set(resolve(["all"], ["halfcheetah"])) == CHEETAHS
    assert set(resolve(["all"], ["swingup"])) == {"fig-context", "fig-fixed-context", "fig-single-action", "facts"}
    assert set(resolve(["all"], ["minigolf"])) & {"fig1", "theory", "fig-robust"} == set()
    with pytest.raises(InputError, match=r"env: 'halfcheeta' must be one of .*, did you mean 'halfcheetah'\?"):
        resolve(["fig2"], ["halfcheeta"])
    with pytest.raises(InputError, match=r"fig-decay cannot be made for halfcheetah, allowed is nav2d, minigolf, cart"):
        resolve(["fig-decay"], ["halfcheetah"])
    with pytest.raises(InputError, match=r"fig1 cannot be made for nav2d, allowed is none by name"):
        resolve(["fig1"], ["nav2d"])


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_paper_uses_only_public_names_of_the_library(path):
    tree = ast.parse(path.read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    used = [name for name in names if name.startswith("metastep.")]
    assert [name for name in used if any(part.startswith("_") for part in name.split("."))] == []
