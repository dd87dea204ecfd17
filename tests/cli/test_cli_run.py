"""`metastep demo` end to end as a user runs it: the files, the page in a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.processes import metastep

TINY = ["collect.num_meta_episodes=64", "rollout.num_episodes=20", "rollout.block_size=16", "fqi.iterations=2"]
TINY += ["fqi.regressor.trees=5", "selection.num_tasks=8", "compare.num_tasks=12", "compare.num_updates=3"]
TINY += ["compare.num_tuning_tasks=2", "compare.num_resamples=200", "fqi.num_stepsizes=11"]
TINY += ["models.metastep.collect.num_meta_episodes=16"]
CHROMIUM = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--virtual-time-budget=5000",
    # The browser itself may not reach out either: no name resolves.
    "--disable-features=NetworkTimeServiceQuerying", "--host-resolver-rules=MAP * ~NOTFOUND",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory, rendered) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    done = metastep("demo", *(word for setting in TINY for word in ("--set", setting)), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "report:" in done.stdout
    return folder / "runs" / "demo"


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


def test_the_markdown_report_names_every_method_and_its_figures(whole):
    text = (whole / "report.md").read_text()
    for word in ("metastep", "metaFQI", "fixed step", "fixed KL", "RMSprop", "Adam"):
        assert f"| {word} |" in text
    assert "metastep" in text.splitlines()[4]
    for figure in re.findall(r"\((figures/[^)]+)\)", text):
        assert (whole / figure).exists()
        assert (whole / figure).with_suffix(".png").stat().st_size > 5000
    rows = [line.split(",")[:3] for line in (whole / "differences.csv").read_text().splitlines()[1:]]
    names = {name for row in rows for name in row[:2]}
    assert "metafqi" in names
    assert "menu-oracle" not in names
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
