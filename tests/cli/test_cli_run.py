"""`metastep run` end to end as a user runs it: the files, the page in a browser, stages one by one."""

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import metastep

TINY = ["collect.num_meta_episodes=64", "rollout.num_episodes=20", "rollout.block_size=16", "fqi.iterations=2"]
TINY += ["fqi.regressor.trees=5", "selection.num_tasks=8", "compare.num_tasks=12", "compare.num_updates=3"]
TINY += ["compare.num_tuning_tasks=2", "compare.num_resamples=200", "fqi.num_stepsizes=11"]
TINY += ['compare.methods=["metafqi","fixed","rmsprop","adam","hoof","metagrad","oracle"]']
CHROMIUM = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--virtual-time-budget=5000",
    # The browser itself may not reach out either: no name resolves.
    "--disable-features=NetworkTimeServiceQuerying", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


def command(out: Path, *more: str) -> list[str]:
    overrides = [word for setting in TINY for word in ("--set", setting)]
    return ["run", "minigolf", "--out", str(out), "--device", "cpu", *overrides, *more]


def results(folder: Path) -> dict[str, str]:
    """Digests of everything but the command that repeats it, which names the folder, the report, which shows it, and times."""
    own = ("report.html", "report.md", "report.json", "command.txt", "times.json")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in own)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, rendered) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    result = metastep(*command(folder))
    assert result.returncode == 0, result.stderr
    assert "report:" in result.stdout
    return folder


@pytest.mark.soak
def test_stages_one_by_one_give_the_same_files(whole, tmp_path):
    folder = tmp_path / "run"
    words = ["collect", *command(folder)[1:]]
    assert metastep(*words).returncode == 0
    for stage in ("fit", "compare", "report"):
        done = metastep(stage, str(folder))
        assert done.returncode == 0, done.stderr
    assert results(folder) == results(whole)
    assert shlex.join(["metastep", *command(whole)]) in (whole / "report.md").read_text()
    shown = re.search(r"## What was run.*?```\n(.*?)\n```", (folder / "report.md").read_text(), flags=re.S)
    assert shown
    lines = shown.group(1).splitlines()
    assert lines[0] == shlex.join(["metastep", *words])
    assert lines[1:] == [f"metastep {stage} {folder}" for stage in ("fit", "compare", "report")]


def test_stages_out_of_order_say_what_is_missing(tmp_path):
    for stage in ("fit", "compare", "report", "inspect"):
        done = metastep(stage, str(tmp_path / "nowhere"))
        assert done.returncode == 2
        assert ("exist" if stage == "inspect" else "config.json") in done.stderr
        assert "Traceback" not in done.stderr


def test_inspect_describes_run_model_and_coverage(whole, tmp_path):
    tasks = tmp_path / "tasks.csv"
    tasks.write_text("putter_length,friction\n0.8,0.1\n0.95,0.19\n")
    run = metastep("inspect", str(whole), "--coverage", str(tasks))
    alone = metastep("inspect", str(whole / "model.safetensors"))
    assert run.returncode == alone.returncode == 0, run.stderr + alone.stderr
    assert "64 tuples" in run.stdout
    assert "2 test tasks" in run.stdout
    for words in ("model for minigolf", "selected", "inputs that matter most", "first step by friction"):
        assert words in run.stdout
        assert words in alone.stdout


def test_export_without_a_target_is_refused(whole):
    nothing = metastep("export", str(whole))
    assert nothing.returncode == 2
    assert "nothing to do" in nothing.stderr


def test_the_demo_compares_both_learned_methods_with_tuned_baselines(tmp_path):
    smaller = [*TINY[:-1], "models.metastep.collect.num_meta_episodes=16"]
    done = metastep("demo", *(word for setting in smaller for word in ("--set", setting)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "demo" / "report.html").exists()
    page = (tmp_path / "runs" / "demo" / "report.md").read_text()
    for word in ("metastep", "metaFQI", "fixed step", "fixed KL", "Adam", "RMSprop"):
        assert f"| {word} |" in page
    assert "metastep" in page.splitlines()[4]


def test_the_markdown_report_names_every_method_and_its_figures(whole):
    text = (whole / "report.md").read_text()
    for word in ("metaFQI", "fixed step", "RMSprop", "Adam", "HOOF", "metagrad", "greedy oracle"):
        assert f"| {word} |" in text
    for figure in re.findall(r"\((figures/[^)]+)\)", text):
        assert (whole / figure).exists()
        assert (whole / figure).with_suffix(".png").stat().st_size > 5000
    rows = [line.split(",")[:3] for line in (whole / "differences.csv").read_text().splitlines()[1:]]
    names = {name for row in rows for name in row[:2]}
    assert "metafqi" in names
    assert "oracle" not in names
    for metric in ("auc", "final"):  # every pair of methods
        assert sum(row[2] == metric for row in rows) == len(names) * (len(names) - 1) // 2


def chromium(arguments: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine: the page is not opened in a browser")
    return subprocess.run(
        [browser, *CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}", *arguments],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_the_page_opens_without_errors_or_requests(whole, tmp_path):
    log = tmp_path / "net.json"
    page = whole / "report.html"
    done = chromium(["--enable-logging=stderr", f"--log-net-log={log}", "--dump-dom", f"file://{page}"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count("<figure") >= 6
    assert done.stdout.count("data:image/svg+xml") == done.stdout.count("<figure")
    for table in ("settings", "comparison", "tuning", "bookkeeping"):
        assert f'id="{table}"' in done.stdout
    assert not re.search(r'(?:src|href|srcset)="(?!data:|#)', page.read_text())
    events = json.loads(log.read_text())["events"]
    asked = [event["params"] for event in events if "initiator" in event.get("params", {})]
    # Requests that the browser makes for itself have no origin; those of a page do.
    assert not {params["url"] for params in asked if params["initiator"] != "not an origin" and "http" in params["url"]}


def test_the_page_fits_a_phone(whole, tmp_path):
    wrapper = tmp_path / "phone.html"
    wrapper.write_text(
        f'<iframe id="phone" width="390" height="800" src="file://{whole / "report.html"}"></iframe><p id="width"></p><script>'
        'phone.onload = () => { width.textContent = "scroll " + phone.contentDocument.documentElement.scrollWidth }</script>'
    )
    done = chromium(["--dump-dom", f"file://{wrapper}"], tmp_path)
    found = re.search(r"scroll (\d+)", done.stdout)
    assert found, done.stdout[-500:]
    assert int(found.group(1)) <= 390
