"""HalfCheetah with a goal velocity: environment steps per second with policy and gradient, beside peers, in one run.

    python benchmarks/cheetah.py            # the C engine and its peers, on the CPU
    python benchmarks/cheetah.py --gpu      # the planar engine and MJX over batch sizes, on a GPU: two minutes

This package and each peer take turns, several rounds long, and the fastest run of each counts: what slows a run down is other
load on the machine. A ratio compares a peer with as many runs of this package, those just before it. `per core` compares steps
per second of processor time, which other load moves less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from shared import run_script, save

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from venvs import InstallError, interpreter

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"

BUSY_BELOW = 0.85  # share of the processors that this package gets on an idle machine
RETURN_TOLERANCE = 0.05  # relative; eight learners with 100 episodes each agree to about 0.01
GPU_LEARNERS = 320  # a GPU is busy from tens of thousands of episodes on
Record = dict[str, Any]


class Contender(NamedTuple):
    """A peer: how it is run and by how much it is to be beaten."""

    label: str
    variant: str
    venv: str | None  # None: this package's own interpreter
    episodes: int  # sub-environments
    target: float | None  # times as many steps per second


class Row(NamedTuple):
    """The fastest run of a contender and of this package before it, and why some or all runs gave no result."""

    contender: Contender
    own: Record | None = None
    result: Record | None = None
    failure: str = ""

    def ratio(self, per_core: bool = False) -> float | None:
        """How many times as many steps this package makes per second, or per second of processor time."""
        if self.own is None or self.result is None:
            return None
        return _rate(self.own, per_core) / _rate(self.result, per_core)


CONTENDERS = (
    Contender("mj_step alone, one thread", "raw", None, 1, 1.7),
    Contender("Gymnasium SyncVectorEnv", "sync", None, 100, 3.5),
    # A process an environment: a hundred of them only wait for each other.
    Contender("Gymnasium AsyncVectorEnv", "async", None, 16, None),
    Contender("EnvPool", "envpool", "envpool", 100, 1.2),
)


def _rate(result: Record, per_core: bool = False) -> float:
    return float(result["steps_per_second"]) / (float(result["cores_used"]) if per_core else 1.0)


def _faster(one: Record | None, other: Record) -> Record:
    return other if one is None or _rate(other) > _rate(one) else one


def run_peer(contender: Contender, learners: int, horizon: int, seconds: float) -> Record:
    """Run a peer in a process of its own; RuntimeError says why it gave no result."""
    python = sys.executable if contender.venv is None else str(interpreter(contender.venv))
    command = [python, str(PEERS / "cheetah_vector.py"), "--env", "halfcheetah", "--variant", contender.variant]
    sizes = {"learners": learners, "episodes": contender.episodes, "horizon": horizon, "seconds": seconds}
    return run_script(contender.label, command, sizes)


def compare(learners: int, horizon: int, seconds: float, rounds: int) -> tuple[list[Record], list[Row]]:
    """This package's runs, and a row for every peer."""
    from ours import ours

    runs: list[Record] = []
    rows = {contender: Row(contender) for contender in CONTENDERS}
    for _ in range(rounds):
        for contender in CONTENDERS:
            runs.append(ours("halfcheetah", learners, 100, horizon, seconds))
            row = rows[contender] = rows[contender]._replace(own=_faster(rows[contender].own, runs[-1]))
            try:
                result = run_peer(contender, learners, horizon, seconds)
            except (InstallError, RuntimeError) as error:
                rows[contender] = row._replace(failure=str(error))
                continue
            rows[contender] = row._replace(result=_faster(row.result, result))
    return runs, list(rows.values())


def planar_row(learners: int, horizon: int, seconds: float) -> Record | str:
    """This package on the planar engine, in a process that may see a GPU; or why there is no such row."""
    program = (
        "import json, sys; sys.path[:0] = sys.argv[1:3]; import jax; from ours import ours; "
        "device = jax.default_backend(); learners = int(sys.argv[3 if device == 'cpu' else 4]); "
        "row = ours('halfcheetah', learners, 100, int(sys.argv[5]), float(sys.argv[6]), engine='planar'); "
        "print(json.dumps({**row, 'device': device}))"
    )
    arguments = [str(HERE), str(PEERS), str(learners), str(GPU_LEARNERS), str(horizon), str(seconds)]
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return f"metastep, planar engine: failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"
    row: Record = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def print_table(
    console: Console, runs: list[Record], rows: list[Row], planar: Record | str, learners: int, horizon: int
) -> None:
    """The comparison, with a note for whatever is off."""
    title = f"HalfCheetah, goal velocity: {learners} learners, 100 episodes, horizon {horizon}, policy and gradient included"
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    table.add_column("version")
    for heading in ("steps/s", "cores", "ratio", "per core", "target"):
        table.add_column(heading, justify="right")
    table.add_column("met")
    table.add_column("return", justify="right")
    own = max(runs, key=_rate)
    cells = [f"{own['steps_per_second']:,.0f}", f"{own['cores_used']:.1f}"]
    table.add_row(
        "[bold]metastep, C engine[/bold]", own["version"], *cells, "", "", "", "", f"{own['mean_return']:.2f}"
    )
    notes = [f"metastep: {len(runs)} runs, {min(map(_rate, runs)):,.0f} to {_rate(own):,.0f} steps/s."]
    if isinstance(planar, str):
        notes.append(planar)
    else:
        on_cpu = planar["device"] == "cpu"
        label = "metastep, planar engine" + ("" if on_cpu else f", {GPU_LEARNERS} learners")
        cells = [f"{_rate(planar):,.0f}", f"{planar['cores_used']:.1f}" if on_cpu else "GPU"]
        table.add_row(label, planar["version"], *cells, "", "", "", "", f"{planar['mean_return']:.2f}")
    processors = len(os.sched_getaffinity(0))
    if own["cores_used"] < BUSY_BELOW * processors:
        notes.append(
            f"The machine was busy: metastep got {own['cores_used']:.1f} of {processors} processors; see `per core`."
        )
    for row in rows:
        label, result = row.contender.label, row.result
        target = "" if row.contender.target is None else f"{row.contender.target:g}x"
        ratio, per_core = row.ratio(), row.ratio(per_core=True)
        if row.failure:
            notes.append(row.failure)
        if result is None or ratio is None or per_core is None:
            table.add_row(label, *(["-"] * 5), target, "no result", "-")
            continue
        met = ""
        if row.contender.target is not None:
            met = "[green]met[/green]" if ratio >= row.contender.target else "[red]not met[/red]"
        mean_return = "" if result["variant"] == "raw" else f"{result['mean_return']:.2f}"
        # The processes of AsyncVectorEnv are not counted in its processor time.
        is_async = result["variant"] == "async"
        cores, core_ratio = ("-", "-") if is_async else (f"{result['cores_used']:.1f}", f"{per_core:.1f}x")
        table.add_row(
            label,
            result["version"],
            f"{result['steps_per_second']:,.0f}",
            cores,
            f"{ratio:.1f}x",
            core_ratio,
            target,
            met,
            mean_return,
        )
        if mean_return and abs(result["mean_return"] / own["mean_return"] - 1.0) > RETURN_TOLERANCE:
            notes.append(f"{label}: its return differs from metastep's by more than {RETURN_TOLERANCE:.0%}.")
    console.print(table)
    for note in notes:
        console.print(f"  {note}", markup=False, highlight=False)


def main() -> None:
    """Print the table and save the figures."""
    parser = argparse.ArgumentParser(description="HalfCheetah benchmark.")
    parser.add_argument("--gpu", action="store_true", help="the planar engine and MJX, over batch sizes")
    parser.add_argument("--learners", type=int, default=16)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each run is measured")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender; this package runs before each")
    parser.add_argument("--total-seconds", type=float, default=120.0, help="with --gpu: begin nothing after so long")
    arguments = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    if arguments.gpu:
        from cheetah_gpu import print_engines

        print_engines(console, arguments.total_seconds, HERE / "results" / "cheetah_gpu.json")
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    runs, rows = compare(arguments.learners, arguments.horizon, arguments.seconds, arguments.rounds)
    planar = planar_row(arguments.learners, arguments.horizon, arguments.seconds)
    print_table(console, runs, rows, planar, arguments.learners, arguments.horizon)
    peers = [{**row._asdict(), "contender": row.contender._asdict()} for row in rows]
    save(console, "cheetah", {"metastep": runs, "planar": planar, "peers": peers})


if __name__ == "__main__":
    main()
