"""What the benchmarks share: options, tables, saved figures, child processes and the peers' virtual environments.

Peers pin old versions of packages that this library needs new, so each has a virtual environment of its own under
`benchmarks/.venvs`, installed on first use. With `--smoke` nothing is installed: a peer runs only if its environment exists
already or this Python has its package; otherwise one sentence says that it was skipped.

    python benchmarks/shared.py            # install all peers
    python benchmarks/shared.py gymnax     # install one
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
VENVS = HERE / ".venvs"
sys.path.insert(0, str(PEERS))  # so that `common` is found here as it is by the peers
sys.path.append(str(HERE.parent))  # for files that name families of `pretraining`

CHILD_SECONDS = 600.0  # timeout of a measurement
INSTALL_SECONDS = 1200.0
UNFILTERED = {"JAX_TRACEBACK_FILTERING": "off"}  # so that the last line of a traceback is the error
Record = dict[str, Any]

console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)


class PeerError(RuntimeError):
    """A peer gave no result; the message says which and why."""


class Peer(NamedTuple):
    """A package to compare with, and what its virtual environment holds."""

    package: str  # as it is imported
    requirements: str
    no_deps: str = ""  # installed without dependencies, because their pins contradict the requirements


JAX = "jax==0.10.2 jaxlib==0.10.2"  # the versions that this library uses
GYMNASIUM = "gymnasium==1.4.0 numpy==2.4.6"
INSTALLABLE = {
    "gymnasium": Peer("gymnasium", GYMNASIUM),
    "mujoco": Peer("mujoco", f"{GYMNASIUM} mujoco==4.0.0 imageio==2.38.1"),
    "envpool": Peer("envpool", f"{GYMNASIUM} envpool==1.2.5"),
    "gymnax": Peer("gymnax", f"{JAX} gymnax==1.0.1 flax==0.12.8 numpy==2.4.6 six==1.17.0"),  # imports six undeclared
    "rejax": Peer("rejax", f"{JAX} rejax==0.1.3 gymnax==0.0.9"),  # the last gymnax that rejax works with
    "sbx": Peer("sbx", f"{JAX} sbx-rl==0.28.0"),
    "sb3": Peer("stable_baselines3", "stable_baselines3==2.9.2 torch==2.13.0 numpy==2.4.6"),
    "mushroom": Peer(
        "mushroom_rl",
        "numpy==2.4.6 scipy==1.17.1 scikit-learn==1.9.1 torch==2.13.0 tqdm==4.67.1 matplotlib==3.11.2 "
        "opencv-python-headless==5.0.0.93 pygame==2.6.1",
        "mushroom-rl==1.10.2",
    ),
}


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark; `doc` is the script's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="smallest sizes, nothing is installed: does it still run?")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the saved figures")
    parser.add_argument("--child", help=argparse.SUPPRESS)  # JSON for a measurement in a process of its own
    return parser


def save(out: Path, name: str, figures: Any) -> None:
    """Write the figures of a run to `out/name.json`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(figures, indent=1))
    console.print(f"figures saved in {out / name}.json")


def show(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Print a table, text on the left and numbers on the right, and notes below it."""
    rows = [tuple(row) for row in rows]
    table = Table(title=title, title_justify="left")
    for index, heading in enumerate(headings):
        is_number = any(row[index][:1].isdigit() or row[index][:1] == "-" != row[index] for row in rows)
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in dict.fromkeys(notes):
        console.print(f"  {note}", markup=False)
    console.print()


def run_child(label: str, command: Sequence[Any], **environment: str) -> Record:
    """Return the record that a process prints last, as JSON; PeerError says why there is none."""
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes a log file to the working directory
        try:
            words, own = [str(word) for word in command], os.environ | UNFILTERED | environment
            how: Any = {"capture_output": True, "text": True, "timeout": CHILD_SECONDS, "check": False}
            done = subprocess.run(words, cwd=folder, env=own, **how)
        except subprocess.TimeoutExpired:
            raise PeerError(f"{label}: no result within {CHILD_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise PeerError(f"{label}: {last_line(done)}")
    record: Record = json.loads(done.stdout.strip().splitlines()[-1])
    return record


def run_peer(label: str, peer: str, script: str, options: Record, *, smoke: bool = False, here: bool = False) -> Record:
    """Run a script of peers/ in the peer's own interpreter, or with `here` in this one."""
    python = Path(sys.executable) if here else interpreter(peer, install=not smoke)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return run_child(label, [python, PEERS / script, *words], PYTHONPATH="")  # no folder of ours shadows its packages


def interpreter(name: str, *, install: bool = True) -> Path:
    """Return the Python of a peer's virtual environment; `install` makes the environment on first use."""
    peer, home = INSTALLABLE[name], VENVS / name
    python, stamp = home / "bin" / "python", home / "installed.txt"
    pins = f"{sys.version.split()[0]} {peer.requirements} without dependencies: {peer.no_deps}"
    if stamp.exists() and stamp.read_text() == pins:
        return python
    if not install:
        if importlib.util.find_spec(peer.package):
            return Path(sys.executable)
        raise PeerError(f"{name}: not installed, so it was skipped; a run without --smoke installs it.")
    VENVS.mkdir(parents=True, exist_ok=True)
    with FileLock(VENVS / f"{name}.lock"):
        stamp.unlink(missing_ok=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        steps = [[sys.executable, "-m", "venv", "--clear", str(home)], [*pip, *peer.requirements.split()]]
        for step in [*steps, [*pip, "--no-deps", *peer.no_deps.split()]] if peer.no_deps else steps:
            try:
                done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
            except subprocess.TimeoutExpired:
                raise PeerError(f"{name}: not installed within {INSTALL_SECONDS:.0f} s") from None
            if done.returncode != 0:
                raise PeerError(f"{name}: could not be installed: {last_line(done)}")
        stamp.write_text(pins)
    return python


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line of a failed process that most likely explains it."""
    lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


def memory_of(process: str | Path = "/proc/self", field: str = "VmHWM") -> int:
    """Return a size from the system's status of a process, in bytes; by default the largest resident size so far."""
    lines = Path(process, "status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def memory_of_children() -> int:
    """Return the sum of the largest resident sizes of the processes that this one started, in bytes."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended
            if f"\nPPid:\t{os.getpid()}\n" in Path(entry, "status").read_text():
                total += memory_of(entry)
    return total


def main() -> None:
    for name in sys.argv[1:] or INSTALLABLE:
        try:
            console.print(f"{name}: {interpreter(name)}")
        except PeerError as error:
            console.print(str(error), markup=False)


if __name__ == "__main__":
    main()
