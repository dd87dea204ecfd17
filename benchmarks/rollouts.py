"""Rollouts with return, gradient and natural gradient: this package beside its peers, in one run.

    python benchmarks/rollouts.py                                      # the table, on the CPU
    python benchmarks/rollouts.py --device-only --learners 3200        # this package alone, on JAX's default device

This package is measured before and after each peer, and a ratio compares a peer with the two runs around it, so that other
load on the machine hits both alike; the table gives the median over the rounds. `benchmarks/ours.py` is imported late: it loads
JAX, which takes its platform from the environment at that moment.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from shared import run_script, save

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))
from venvs import InstallError, interpreter

PEERS = Path(__file__).resolve().parent / "peers"

BUSY_BELOW = 0.9  # cores; every contender keeps at least one busy if it can
RETURN_TOLERANCE = 0.05  # relative; eight learners with 100 episodes each agree to about 0.02
Record = dict[str, Any]


class Contender(NamedTuple):
    """A peer: how it is run and by how much it is to be beaten."""

    letter: str
    label: str
    venv: str
    script: str
    variant: str
    target: float  # times as many estimates per second


class Setting(NamedTuple):
    """One size of the problem."""

    env: str
    learners: int
    episodes: int
    horizon: int


class Row(NamedTuple):
    """A peer's results, one a round, or the reason why there are none."""

    contender: Contender
    results: list[Record]
    ratios: list[float]  # this package's estimates per second around the peer, over the peer's
    core_ratios: list[float]  # the same with estimates per second of processor time
    failure: str

    @property
    def ratio(self) -> float:
        """How many times as many estimates per second this package makes."""
        return median(self.ratios)


CONTENDERS = (
    Contender("a", "gymnasium SyncVectorEnv", "gymnasium", "gymnasium_sync.py", "default", 100.0),
    Contender("b", "gymnasium vector, one object for each task", "gymnasium", "gymnasium_vector.py", "one", 8.0),
    Contender("b", "gymnasium vector, tasks as arrays", "gymnasium", "gymnasium_vector.py", "arrays", 8.0),
    Contender("c", "gymnax, env.step", "gymnax", "gymnax_scan.py", "step", 3.0),
    Contender("c", "gymnax, env.step_env", "gymnax", "gymnax_scan.py", "step_env", 3.0),
    Contender("d", "MushroomRL GPOMDP", "mushroom", "mushroom_gpomdp.py", "default", 100.0),
)
EPISODES_AND_HORIZON = {"cartpole": (100, 100), "nav2d": (200, 10)}


def run_peer(contender: Contender, setting: Setting, seconds: float) -> Record:
    """Run a peer in its own interpreter; RuntimeError says why it gave no result."""
    command = [str(interpreter(contender.venv)), str(PEERS / contender.script), "--variant", contender.variant]
    return run_script(contender.label, command, {**setting._asdict(), "seconds": seconds})


def compare(
    setting: Setting, contenders: tuple[Contender, ...], seconds: float, rounds: int
) -> tuple[list[Record], list[Row]]:
    """Alternate between this package and the peers; all of this package's runs, and a row for every peer."""
    from ours import ours

    def own() -> Record:
        return ours(*setting, seconds / 2.0)

    runs = [own()]
    rows = [Row(contender, [], [], [], "") for contender in contenders]
    for _ in range(rounds):
        for index, row in enumerate(rows):
            if row.failure:
                continue
            try:
                result = run_peer(row.contender, setting, seconds)
            except (InstallError, RuntimeError) as error:
                rows[index] = row._replace(failure=str(error))
                continue
            runs.append(own())
            row.results.append(result)
            row.ratios.append(median(_rate(run) for run in runs[-2:]) / _rate(result))
            row.core_ratios.append(median(_core_rate(run) for run in runs[-2:]) / _core_rate(result))
    return runs, rows


def _rate(result: Record) -> float:
    return float(result["estimates_per_second"])


def _core_rate(result: Record) -> float:
    return _rate(result) / float(result["cores_used"])


def _middle(results: list[Record]) -> Record:
    """The run with the median rate (the lower of the two in the middle)."""
    return sorted(results, key=_rate)[(len(results) - 1) // 2]


def print_comparison(console: Console, setting: Setting, runs: list[Record], rows: list[Row]) -> None:
    """The table of one setting."""
    table = Table(
        title=f"{setting.env}: {setting.learners} learners, {setting.episodes} episodes, horizon {setting.horizon}",
        title_justify="left",
    )
    for heading in ("", "contender", "version"):
        table.add_column(heading)
    for heading in ("estimates/s", "steps/s", "ns/step", "live steps/s", "cores", "per core", "ratio", "target"):
        table.add_column(heading, justify="right")
    table.add_column("met")
    table.add_column("return", justify="right")
    table.add_column("|gradient|", justify="right")
    own = _middle(runs)
    table.add_row("", "[bold]metastep[/bold]", own["version"], *_figures(own), "", "", "", "", *_statistics(own))
    rates = [_rate(run) for run in runs]
    notes = [f"metastep: median of {len(runs)} runs, {min(rates):,.0f} to {max(rates):,.0f} estimates/s."]
    for row in rows:
        letter, label, target = row.contender.letter, row.contender.label, f"{row.contender.target:.0f}x"
        if row.failure:
            notes.append(row.failure)
        if not row.results:
            table.add_row(letter, label, "-", *(["-"] * 7), target, "no result", "-", "-")
            continue
        result = _middle(row.results)
        met = "[green]met[/green]" if row.ratio >= row.contender.target else "[red]not met[/red]"
        ratios = (f"{median(row.core_ratios):,.1f}x", f"{row.ratio:,.1f}x")
        table.add_row(letter, label, result["version"], *_figures(result), *ratios, target, met, *_statistics(result))
        if len(row.ratios) > 1:
            notes.append(f"{label}: ratios {', '.join(f'{value:,.1f}' for value in row.ratios)}.")
        if result["note"]:
            notes.append(f"{label}: {result['note']}.")
        if abs(result["mean_return"] - own["mean_return"]) > RETURN_TOLERANCE * abs(own["mean_return"]):
            notes.append(f"{label}: its return differs from metastep's by more than {RETURN_TOLERANCE:.0%}.")
    everything = [*runs, *(result for row in rows for result in row.results)]
    starved = sum(result["cores_used"] < BUSY_BELOW for result in everything)
    if starved:
        notes.append(
            f"{starved} of {len(everything)} runs got less than {BUSY_BELOW} cores: the machine was busy, "
            "and `per core` is the steadier figure."
        )
    console.print(table)
    for note in notes:
        console.print(f"  {note}", markup=False, highlight=False)
    console.print()


def _figures(result: Record) -> list[str]:
    steps = float(result["steps_per_second"])
    return [
        f"{result['estimates_per_second']:,.1f}",
        f"{steps / 1e6:,.3f} M",
        f"{1e9 / steps:,.2f}",
        f"{result['live_steps_per_second'] / 1e6:,.3f} M",
        f"{result['cores_used']:.1f}",
    ]


def _statistics(result: Record) -> list[str]:
    return [f"{result['mean_return']:.2f}", f"{result['mean_gradient_norm']:.3g}"]


def print_breakdown(console: Console, setting: Setting, seconds: float, rounds: int) -> None:
    """Where this package's time goes, in nanoseconds per step."""
    from ours import breakdown

    parts = breakdown(*setting, seconds / 2.0, rounds)
    times = [part.nanoseconds for part in parts]
    table = Table(title=f"where the time goes: {setting.env}, {setting.learners} learners", title_justify="left")
    table.add_column("computed")
    table.add_column("ns/step", justify="right")
    table.add_column("of the whole", justify="right")
    for part in parts:
        table.add_row(part.name, f"{part.nanoseconds:.3g}", f"{part.nanoseconds / times[-1]:.0%}")
    console.print(table)
    random_numbers, memory, bare, _, _, optimal, whole = times
    if not random_numbers < bare < optimal < whole:
        console.print("  Less work took longer than more: the machine was too busy to tell the parts apart.\n")
        return
    console.print(
        f"  Of {whole:.3g} ns, random numbers take about {random_numbers:.3g}, the policy and the physics "
        f"{bare - random_numbers:.3g}, the gradient with its baseline {optimal - bare:.3g}, the Fisher matrix and the "
        f"natural gradient {whole - optimal:.3g}. Moving the carried arrays through memory takes {memory:.2g} by itself.\n",
        highlight=False,
    )


def print_device(console: Console, setting: Setting, seconds: float, rounds: int) -> None:
    """This package alone, on JAX's default device."""
    from ours import ours

    runs = sorted((ours(*setting, seconds) for _ in range(rounds)), key=_rate)
    result = _middle(runs)
    million = {name: f"{result[name] / 1e6:,.1f} M" for name in ("steps_per_second", "live_steps_per_second")}
    slowest, fastest = (run["steps_per_second"] / 1e6 for run in (runs[0], runs[-1]))
    console.print(
        f"{setting.env}, {setting.learners} learners, {setting.episodes} episodes, horizon {setting.horizon}: "
        f"{million['steps_per_second']} steps/s ({million['live_steps_per_second']} live), "
        f"{1e9 / result['steps_per_second']:.3g} ns/step, {result['estimates_per_second']:,.0f} estimates/s; "
        f"median of {len(runs)} runs, {slowest:,.1f} to {fastest:,.1f} M steps/s; "
        f"return {result['mean_return']:.2f}, |gradient| {result['mean_gradient_norm']:.3g}",
        highlight=False,
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be at least 1")
    return value


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Rollout benchmark.")
    parser.add_argument("--learners", type=_positive, nargs="+", help="default: 64 and 512 for CartPole, 64 for Nav2D")
    parser.add_argument("--env", choices=tuple(EPISODES_AND_HORIZON), nargs="+", default=list(EPISODES_AND_HORIZON))
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each peer is measured in a round")
    parser.add_argument("--rounds", type=_positive, default=3)
    parser.add_argument("--only", choices=sorted({c.letter for c in CONTENDERS}), nargs="+", help="peers, by letter")
    parser.add_argument("--device-only", action="store_true", help="no peers: this package on JAX's default device")
    return parser.parse_args()


def main() -> None:
    """Print the tables and save the figures."""
    arguments = _arguments()
    if not arguments.device_only:
        os.environ["JAX_PLATFORMS"] = "cpu"  # the peers run on the CPU
    import jax

    console = Console(width=None if sys.stdout.isatty() else 180)
    device = jax.devices()[0]
    console.print(f"device: {device.platform} ({device.device_kind}), {os.cpu_count()} cores, jax {jax.__version__}\n")
    saved = []
    for env in arguments.env:
        for learners in arguments.learners or ((64, 512) if env == "cartpole" else (64,)):
            setting = Setting(env, learners, *EPISODES_AND_HORIZON[env])
            if arguments.device_only:
                print_device(console, setting, arguments.seconds, arguments.rounds)
            else:
                chosen = tuple(c for c in CONTENDERS if not arguments.only or c.letter in arguments.only)
                runs, rows = compare(setting, chosen, arguments.seconds, arguments.rounds)
                print_comparison(console, setting, runs, rows)
                peers = [{**row._asdict(), "contender": row.contender._asdict()} for row in rows]
                saved.append({"setting": setting._asdict(), "metastep": runs, "peers": peers})
            print_breakdown(console, setting, arguments.seconds, arguments.rounds)
    if saved:
        save(console, "rollouts", saved)


if __name__ == "__main__":
    main()
