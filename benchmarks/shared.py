"""What the benchmarks share: a peer in a process of its own, the memory of a process, and the figures of a run on disk."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

HERE = Path(__file__).resolve().parent
PEER_SECONDS = 600.0  # after which a peer counts as hanging


def run_script(label: str, command: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The record that a peer prints last; RuntimeError says why there is none."""
    for name, value in options.items():
        command = [*command, f"--{name}", str(value)]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # MuJoCo leaves a log file in the working directory.
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PEER_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{label}: no result within {PEER_SECONDS:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"{label}: failed: {lines[-1]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def save(console: Console, name: str, figures: Any) -> None:
    """Keep the figures of a run as `results/<name>.json`, and say so."""
    path = HERE / "results" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures, indent=1))
    console.print(f"figures saved in {path.relative_to(HERE.parent)}")


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    return number_of("/proc/self", "VmHWM") * 1024


def number_of(process: str | Path, name: str) -> int:
    """A number that the system tells of a process, sizes in kilobytes."""
    lines = Path(process, "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
