"""A virtual environment per peer, under `benchmarks/.venvs/<peer>`.

Peers pin old versions of what this package needs new, so none of them may share its environment. Each is installed once;
changed pins install again. A peer that cannot be installed is an `InstallError` whose message names it and the installer's
last line, for the caller to print: never a missing row without a reason.

    python benchmarks/peers/venvs.py            # all peers
    python benchmarks/peers/venvs.py gymnax     # one
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / ".venvs"
INSTALL_SECONDS = 1200.0


class Peer(NamedTuple):
    """What a peer's virtual environment holds."""

    name: str
    requirements: tuple[str, ...]  # with their dependencies
    alone: tuple[str, ...] = ()  # without: their pins contradict the above, which they do run with


class InstallError(RuntimeError):
    """A peer could not be installed: the message says which and why."""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("gymnasium", ("gymnasium==1.4.0", "numpy==2.4.6")),
        Peer("envpool", ("envpool==1.2.5", "gymnasium==1.4.0", "numpy==2.4.6")),
        # The jax is the one this package uses; gymnax imports six without asking for it.
        Peer(
            "gymnax", ("gymnax==1.0.1", "jax==0.10.2", "jaxlib==0.10.2", "flax==0.12.8", "numpy==2.4.6", "six==1.17.0")
        ),
        # The last gymnax that rejax can unpack the steps of.
        Peer("rejax", ("rejax==0.1.3", "gymnax==0.0.9", "jax==0.10.2", "jaxlib==0.10.2")),
        Peer("sbx", ("sbx-rl==0.28.0", "jax==0.10.2", "jaxlib==0.10.2")),
        Peer("sb3", ("stable_baselines3==2.9.2", "torch==2.13.0", "numpy==2.4.6")),
        Peer(
            "mushroom",
            (
                "numpy==2.4.6",
                "scipy==1.17.1",
                "scikit-learn==1.9.1",
                "torch==2.13.0",
                "tqdm==4.67.1",
                "matplotlib==3.11.2",
                "opencv-python-headless==5.0.0.93",
                "pygame==2.6.1",
            ),
            ("mushroom-rl==1.10.2",),
        ),
    )
}


def interpreter(name: str) -> Path:
    """The Python of a peer's virtual environment, made on first use."""
    if name not in PEERS:
        raise InstallError(f"{name}: not a peer, expected one of {', '.join(PEERS)}")
    peer = PEERS[name]
    home = FOLDER / name
    python = home / "bin" / "python"
    stamp = home / "installed.txt"
    pins = "\n".join((sys.version.split()[0], *peer.requirements, "without dependencies:", *peer.alone))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two benchmarks may want the same peer at once
        if stamp.exists() and stamp.read_text() == pins:
            return python
        stamp.unlink(missing_ok=True)
        _checked(name, [sys.executable, "-m", "venv", "--clear", str(home)])
        _checked(name, [str(python), "-m", "pip", "install", "--quiet", *peer.requirements])
        if peer.alone:
            _checked(name, [str(python), "-m", "pip", "install", "--quiet", "--no-deps", *peer.alone])
        stamp.write_text(pins)
    return python


def _checked(name: str, command: list[str]) -> None:
    """Run one step of an installation; its last line becomes the error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(f"{name}: could not be installed: {error}") from error
    if done.returncode != 0:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        reason = (errors or lines or [f"exit code {done.returncode}"])[-1]
        raise InstallError(f"{name}: could not be installed: {reason}")


def main() -> int:
    """Install the peers named on the command line, or all of them, and say how each went."""
    failures = 0
    for name in sys.argv[1:] or list(PEERS):
        try:
            interpreter(name)
            print(f"{name}: installed")
        except InstallError as error:
            failures += 1
            print(error)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
