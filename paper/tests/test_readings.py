"""The screening of readings at a tiny scale: what it measures, resumes and shows."""

import csv
import dataclasses
import json
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from metastep import cli
from metastep._core import parallel
from metastep._core.errors import InputError
from metastep.evaluation import load, save
from metastep.experiments.build import method_spec
from metastep.experiments.checking import check_folder
from metastep.experiments.config import load as load_config
from metastep.mdp.blocks import Stream
from paper import readings as screening_of
from paper import reproduce, screening
from paper.facts import FACTS, facts_of
from paper.judging import Found
from paper.outcome import Outcome
from paper.points import readings
from paper.readings import Screened, best_of
from paper.results import results_markdown
from paper.screening import SCREENS, measure, natural_variants
from paper.seeds import by_claim, overall
from paper.workbench import Workbench

TWO = readings("swingup")[0], readings("swingup")[-1]  # of all environments the fewest programs to compile


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two readings of SwingUp."""
    out = tmp_path_factory.mktemp("readings")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(screening_of, "readings", lambda env: TWO)
        reproduce(["readings"], out, "tiny", 3, environments=["swingup"])
    return out


def again(monkeypatch, out, **settings):
    monkeypatch.setattr(screening_of, "readings", lambda env: TWO)
    return reproduce(["readings"], out, "tiny", 3, environments=["swingup"], **settings)


def test_every_reading_has_a_file_a_row_and_a_cell(made):
    folder = made / "readings"
    assert {path.name for path in folder.glob("*.safetensors")} == {f"swingup.{one.name}.safetensors" for one in TWO}
    with (folder / "scores.csv").open(newline="") as file:
        scores = list(csv.DictReader(file))
    assert [row["reading"] for row in scores] == [one.name for one in TWO]
    with (folder / "facts.csv").open(newline="") as file:
        facts = list(csv.DictReader(file))
    for row in scores:
        words = [fact["verdict"] for fact in facts if fact["reading"] == row["reading"]]
        assert words.count("holds") == int(row["hold"])
        assert words.count("does not hold") == int(row["do not"])
        assert int(row["score"]) == int(row["hold"]) - int(row["do not"])
        assert row["score without wins"] == row["score"]  # no fact about SwingUp speaks for metaFQI
    page = (folder / "readings.md").read_text()
    assert "| wide | scaled | deviation | cg-0.01 |" in page
    assert "**start** (hanging, wide): The environment is that of Duan et al." in page
    assert (folder / "readings.svg").exists()
    assert [problem for _, problem in check_folder(made) if problem] == []


def test_it_is_judged_on_tuning_tasks_of_another_seed(made):
    measured = load(made / "readings" / f"swingup.{TWO[1].name}.safetensors")
    assert measured.settings["stream"] == Stream.TUNING.name.lower()
    assert {table.seed for table in measured.tuning} == {3}
    assert measured.settings["seed"] == 3 + 1_000_003
    assert {"fixed", "metafqi", "N=1", "N=3", "h = 0.1"} <= set(measured.names)
    assert measured.settings["mdp"]["estimator"]["rollout"]["env"]["start"] == "wide"
    assert measured.settings["mdp"]["estimator"]["fisher"] == "truncated"


def test_variants_are_measured_beside_the_methods(tmp_path, monkeypatch):
    """The context, one step size for each task, more updates; RMSprop and Adam would take four programs more."""
    screen = SCREENS["cartpole"]._replace(methods=("fixed", "hoof"))
    monkeypatch.setitem(screening.SCREENS, "cartpole", screen)
    asked = []
    monkeypatch.setattr(screening, "natural_variants", lambda config: asked.append(config) or [])
    reading = readings("cartpole")[-1]
    measured = measure(screening_of.config_of(Workbench(tmp_path, "tiny", 3), reading), reading)
    assert {"single", "without context", "hoof", "metafqi"} <= set(measured.comparison.names)
    assert len(asked) == 1
    assert measured.longer.returns.shape[2] == 4 * 2 + 1
    assert measured.longer.names == ("metafqi", "fixed")
    config = load_config("cartpole", "full")
    plain, natural = method_spec(config, "adam"), natural_variants(config)[1]
    assert natural.name == "adam-natural"
    assert natural.grid == plain.grid
    assert natural.build_rule(None).follows == "natural_gradient"


def test_what_is_there_is_not_measured_again(made, monkeypatch):
    lost = made / "readings" / f"swingup.{TWO[0].name}.safetensors"
    before = lost.read_bytes()
    lost.unlink()
    (made / "readings" / "outcome.json").unlink()
    done = []

    def watched(config, reading, tracker):
        done.append(reading)
        return measure(config, reading, tracker)

    monkeypatch.setattr(screening_of, "measure", watched)
    again(monkeypatch, made)
    assert done == [TWO[0]]
    assert lost.read_bytes() == before


def test_a_file_of_other_settings_is_refused(made, monkeypatch):
    file = made / "readings" / f"swingup.{TWO[0].name}.safetensors"
    before = file.read_bytes()
    save(file, dataclasses.replace(load(file), made_from={"run": "another"}))
    (made / "readings" / "outcome.json").unlink()
    with pytest.raises(InputError, match="was measured with other settings; remove it"):
        again(monkeypatch, made)
    file.write_bytes(before)
    again(monkeypatch, made)


def test_a_reading_that_cannot_be_measured_does_not_stop_the_others(made, monkeypatch, tmp_path):
    def half(config, reading, tracker):
        if reading == TWO[1]:
            raise InputError("selection: every iteration diverged on the validation tasks.")
        return screening_of.kept(Workbench(made, "tiny", 3), reading)

    monkeypatch.setattr(screening_of, "measure", half)
    again(monkeypatch, tmp_path)
    page = (tmp_path / "readings" / "readings.md").read_text()
    assert f"Not measured: swingup {TWO[1].name}. selection: every iteration diverged" in page
    assert "The best of 1 readings" in page
    monkeypatch.setattr(screening_of, "readings", lambda env: TWO[1:])
    with pytest.raises(InputError, match="could not be measured, and none other either: selection: every"):
        reproduce(["readings"], tmp_path / "none", "tiny", 3, environments=["swingup"])


def test_processes_share_the_cores(made, monkeypatch, tmp_path):
    given = []

    class Here:
        """Makes the calls in this process."""

        def __init__(self, number, mp_context):
            self.number = number

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def submit(self, function, bench, group, device, cores):
            given.append((self.number, device, cores))
            done = Future()
            done.set_result({})
            return done

    monkeypatch.setattr(screening_of, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(parallel, "_limit", 7)  # as --cores 7 does
    screening_of.screen_all(Workbench(tmp_path, "tiny", 3, jobs=3), TWO)
    assert given == [(2, "cpu", 3)] * 2
    with (
        parallel.using(SimpleNamespace()),
        pytest.raises(InputError, match="--jobs: 2 processes for readings cannot be had"),
    ):
        reproduce(["readings"], tmp_path / "both", "tiny", jobs=2)
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize(
    ("words", "shares"), [(["readings"], True), (["readings", "--jobs", "1"], False), (["fig2", "--jobs", "2"], False)]
)
def test_the_gpu_is_shared_before_it_is_opened(monkeypatch, words, shares):
    asked = []

    def watch(*_, shares_gpu):
        asked.append(shares_gpu)
        raise InputError("nothing is made here.")

    monkeypatch.setattr(cli, "watch", watch)
    assert CliRunner().invoke(cli.app, ["reproduce", *words]).exit_code == 2
    assert asked == [shares]


@pytest.mark.soak
def test_processes_work_side_by_side(made, monkeypatch, tmp_path):
    """In processes of their own they find the same, to the byte."""
    bench = Workbench(tmp_path, "tiny", 3, jobs=2)
    screening_of.screen_all(bench, TWO)
    for one in TWO:
        name = f"swingup.{one.name}.safetensors"
        assert (tmp_path / "readings" / name).read_bytes() == (made / "readings" / name).read_bytes()


def test_readings_that_share_programs_share_a_process():
    groups = screening_of._groups(readings("cartpole"))
    assert len(groups) == 9
    assert all({one.choices[1] for one in group} == {"variance", "deviation"} for group in groups)


def test_the_best_reading_has_the_highest_score():
    def screened(name, *verdicts):
        found = {index: Found(verdict, "", 0.0, None, None, 1) for index, verdict in enumerate(verdicts)}
        return Screened(readings("nav2d")[0]._replace(choices=(name,)), found)

    yes, no, open_ = "holds", "does not hold", "not distinguishable"
    rows = [screened("a", yes, no, open_), screened("b", yes, open_, open_), screened("c", yes, yes, no)]
    assert [row.score for row in rows] == [0, 1, 1]
    assert best_of(rows).reading.name == "c"
    assert best_of(rows[:2]).reading.name == "b"


def test_a_score_may_leave_out_what_speaks_for_the_method():
    facts = facts_of("cartpole")
    screened = Screened(readings("cartpole")[0], {fact: Found("holds", "", 0.0, None, None, 1) for fact in facts})
    left = screened.without_wins()
    gone = {fact.id for fact in facts} - {fact.id for fact in left.found}
    assert screened.score - left.score == len(gone)
    assert {"fig2.cartpole.fixed", "fig3.cartpole.hoof", "iterations.cartpole.planning", "cartpole60.beats"} <= gone
    assert not {"fig2.cartpole.early", "table1.cartpole.adam.stepsize", "context.cartpole"} & gone


def outcome(seed, verdict, claim="claim", name="facts", extra=""):
    command = f"metastep reproduce {name} --scale full --seed {seed}{extra}"
    return Outcome("Nav2D", claim, "difference", 1.0, 0.5, 1.5, 100, "tasks", verdict, "", name, command)


def write(folder, outcomes):
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps([row._asdict() for row in outcomes]))
    return folder


def test_several_seeds_share_a_row(tmp_path):
    yes, no, open_ = "holds", "does not hold", "not distinguishable"
    verdicts = {1: (yes, yes, no), 2: (yes, no, no), 3: (open_, yes, open_)}
    folders = [
        write(tmp_path / str(seed), [outcome(seed, one, f"claim {i}") for i, one in enumerate(row)])
        for seed, row in verdicts.items()
    ]
    every = [outcome(seed, one, f"claim {i}") for seed, row in verdicts.items() for i, one in enumerate(row)]
    assert [overall([row.verdict for row in rows]) for rows in by_claim(every)] == [yes, open_, no]
    # A fact that was not measured at a seed does not shift the others.
    assert [len(rows) for rows in by_claim([every[0], *every[2:]])] == [3, 3, 2]
    assert [{row.claim for row in rows} for rows in by_claim(every[1:])] == [{"claim 1"}, {"claim 2"}, {"claim 0"}]
    # Claims of a figure say what was selected, and stay side by side.
    figure = [outcome(seed, yes, f"N = {seed}", name="fig-iterations") for seed in verdicts]
    assert [len(rows) for rows in by_claim(figure)] == [3]
    page = results_markdown(folders)
    assert page.startswith(
        "# Results\n\nOf 3 facts of the paper 1 hold, 1 do not, and the rest are not distinguishable."
    )
    assert "within a limit, 10 % of what learning gains" in page
    assert "learning has converged if" in page
    assert "oracle score" not in page  # there is no method here
    assert "difference: **1 [0.5, 1.5]**; **1 [0.5, 1.5]**; **1 [0.5, 1.5]**" in page
    assert "| 3 x 100 tasks |" in page

    # Some facts under the first reading, too, one of them about another quantity at each seed.
    named = [outcome(seed, yes, "claim 0")._replace(quantity=f"h = {seed}") for seed in verdicts]
    others = [outcome(seed, no, "claim 1") for seed in verdicts]
    first = [
        write(tmp_path / f"first-{seed}", [one._replace(command=f"{one.command} --set reading=first") for one in pair])
        for seed, *pair in zip(verdicts, named, others, strict=True)
    ]
    page = results_markdown([*folders, *first])
    assert "Under the first reading 1 of 2 hold and 1 do not: +0 and +0." in page
    assert "| Nav2D | 3 | 1, 1, 1 | 1, 1, 0 | 4, 3, 2 | 3, 3, 0 |" in page
    assert (
        "| **holds** (2 hold, 0 not) | 1 [0.5, 1.5]; 1 [0.5, 1.5]; 1 [0.5, 1.5] | **holds** (3 hold, 0 not) |" in page
    )
    assert "| **does not hold** (0 hold, 2 not) |  |  |" in page
    for seed in verdicts:
        assert f"\nmetastep reproduce facts --scale full --seed {seed} --set reading=first\n" in page
    alone = results_markdown(first)
    assert alone.startswith("# Results\n\nOf 2 facts under the first reading 1 hold")
    assert "h = 1: **1 [0.5, 1.5]**; h = 2: **1 [0.5, 1.5]**; h = 3: **1 [0.5, 1.5]**" in alone


def test_facts_that_were_not_judged_are_named(tmp_path):
    rows = [outcome(1, "holds", fact.claim)._replace(environment="CartPole") for fact in facts_of("cartpole")]
    page = results_markdown([write(tmp_path / "most", rows[1:])])
    assert f"Of {len(FACTS)} facts these are not judged here: Nav2D, {len(facts_of('nav2d'))}. Minigolf, " in page
    assert f"CartPole, 1 ({rows[0].claim})" in page
    assert "CartPole, " not in results_markdown([write(tmp_path / "all", rows)])


def test_claims_under_the_first_reading_are_kept_apart(tmp_path):
    rows = [outcome(1, "holds", name="fig2"), outcome(1, "does not hold", name="fig2", extra=" --set reading=first")]
    page = results_markdown([write(tmp_path / str(i), [row]) for i, row in enumerate(rows)])
    assert "Of 1 claims 1 hold, 0 do not" in page
    assert "## Claims under the first reading\n\nOf 1 claims 0 hold, 1 do not" in page


def test_the_page_of_results_tells_which_readings_were_tried(made):
    page = results_markdown([made])
    assert "## Readings of the paper" in page
    row = next(
        line for line in page.splitlines() if line.startswith("| swingup | 2 | hanging+newtons+variance+exact: ")
    )
    assert row.count(" | ") == 4
