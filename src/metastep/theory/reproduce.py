"""`reproduce theory`: tables, figure and verdict on the paper's context-Lipschitz section."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from metastep.envs import Env, make
from metastep.errors import InputError
from metastep.policies import LinearGaussian
from metastep.simulation.rollouts import Rollout
from metastep.storage import create_folder, write_atomically
from metastep.theory.coverage import Smoothness, measure_smoothness
from metastep.theory.estimate import estimate_constants, in_box_widths, step_function, visited_samples
from metastep.theory.figure import theory_figure
from metastep.theory.table import BoundRow, Effort, measure_bounds

Floats = NDArray[np.float64]

CLAIM = "Q, the return and its gradient are Lipschitz in the context, with the constants of Theorem 1 and the gradient theorem"


class EstimateRow(NamedTuple):
    """What sampling shows of an environment without exact constants; contexts in widths of their box."""

    env: str
    policy: int
    L_P: float  # estimated from below, like the next three
    L_r: float
    L_omega_P: float
    L_omega_r: float
    R_max: float
    L_pi: float  # exact: the norm of the policy's weights
    num_pairs: int
    ending_share: float
    return_steepest: float  # largest |J - J'| a box width, over pairs that the noise does not hide
    return_steepest_low: float  # the same at the lower end of the 99 % intervals
    return_median: float
    num_context_pairs: int


class _Size(NamedTuple):
    effort: Effort
    num_policies: int  # for each environment without bounds
    num_context_pairs: int
    num_state_pairs: int
    num_episodes: int
    num_blocks: int


_SIZES = {
    "tiny": _Size(Effort(1, 2, 1, 50, 1), 1, 2, 50, 8, 1),
    "quick": _Size(Effort(3, 12, 4, 4_000, 5), 3, 16, 4_000, 500, 1),
    "paper": _Size(Effort(10, 40, 4, 10_000, 5), 5, 40, 20_000, 2_000, 2),
}


class _Others(NamedTuple):
    """The paper's horizon, policy noise and initial policies of an environment."""

    horizon: int
    sigma: float
    low: tuple[float, ...] | None  # uniform initial parameters, or
    high: tuple[float, ...] | None
    variance: float  # normal ones


_OTHERS = {
    "minigolf": _Others(20, 0.1, (-2.0, -1.0), (3.5, 2.0), 0.0),
    "cartpole": _Others(100, 1.001, None, None, 0.01),
    "swingup": _Others(200, 1.001, None, None, 0.1),
}
_GAMMA = 0.99


def reproduce_theory(out: Path, scale: str, seed: int) -> dict[str, Any]:
    """Measure, write `theory.csv`, `theory-estimates.csv`, `theory.svg`, `theory.png` and `theory.txt` into `out`.

    Args:
        out: a folder; made if needed.
        scale: "quick" or "paper"; "tiny" only shows that it runs.
        seed: of contexts, policies and noise.

    Returns:
        id, claim, effect, verdict, line (the one sentence also in theory.txt), files, and largest tightness by quantity.
    """
    if scale not in _SIZES:
        raise InputError(f"scale: {scale!r} must be one of {', '.join(_SIZES)}.")
    size = _SIZES[scale]
    rows = [*measure_bounds("lqr", size.effort, seed), *measure_bounds("nav2d", size.effort, seed)]
    estimates, smoothness = measure_others(size, seed)
    figure = theory_figure(rows, smoothness)
    create_folder(out)
    contents = {
        "theory.csv": _csv(rows),
        "theory-estimates.csv": _csv(estimates),
        "theory.svg": _render(figure, "svg"),
        "theory.png": _render(figure, "png"),
    }
    summary = verdict(rows)
    contents["theory.txt"] = (summary["line"] + "\n").encode()
    for name, data in contents.items():
        write_atomically(out / name, data)
    return {"id": "theory", **summary, "files": [str(out / name) for name in contents]}


def verdict(rows: Sequence[BoundRow]) -> dict[str, Any]:
    """The claim, what was measured, and whether it holds: a violation is an interval that lies above its bound."""
    num_violations = sum(not row.holds for row in rows)
    tightness: dict[str, float] = {}
    for row in rows:
        name = f"{row.env} {row.quantity.split('[')[0]}"
        tightness[name] = max(tightness.get(name, 0.0), row.tightness)
    parts = ", ".join(f"{name} {value:.2g}" for name, value in tightness.items())
    effect = (
        f"{num_violations} of {len(rows)} differences exceed their bound (99 % intervals); largest share of it: {parts}"
    )
    answer = "does not hold" if num_violations else "holds"
    return {
        "claim": CLAIM,
        "effect": effect,
        "verdict": answer,
        "line": f"theory: {answer}. {CLAIM}: {effect}.",
        "tightness": tightness,
        "num_violations": num_violations,
        "num_rows": len(rows),
    }


def measure_others(size: _Size, seed: int) -> tuple[list[EstimateRow], dict[str, list[Smoothness]]]:
    """Estimated constants and the measured smoothness of the return, for the environments without exact constants."""
    rows: list[EstimateRow] = []
    smoothness: dict[str, list[Smoothness]] = {}
    for name, setting in _OTHERS.items():
        env = make(name)
        assert isinstance(env, Env)  # none of these runs on the host
        policy = LinearGaussian(env.num_observations, env.num_actions, setting.sigma)
        rollout = Rollout(env, policy, size.num_episodes, setting.horizon, _GAMMA, "none")
        rng = np.random.default_rng(seed)
        step = in_box_widths(step_function(env), env.context_space)
        for index in range(size.num_policies):
            theta = _initial_policy(rng, setting, policy.num_parameters)
            unit = rng.uniform(
                size=(max(size.num_state_pairs // setting.horizon, 4), env.context_space.num_coordinates)
            )
            space = env.context_space
            contexts = np.asarray(space.low) + np.subtract(space.high, space.low) * unit
            samples = visited_samples(env, policy, theta, contexts, setting.horizon, seed + index)
            found = estimate_constants(
                step, samples._replace(contexts=unit), size.num_state_pairs, env.step_noise, seed=seed + index
            )
            smooth = measure_smoothness(
                rollout, theta, num_pairs=size.num_context_pairs, num_blocks=size.num_blocks, seed=seed + index
            )
            smoothness.setdefault(name, []).append(smooth)
            weights = theta[env.num_actions :].reshape(env.num_actions, env.num_observations)
            rows.append(
                EstimateRow(
                    env=name,
                    policy=index,
                    L_P=found.L_P,
                    L_r=found.L_r,
                    L_omega_P=found.L_omega_P,
                    L_omega_r=found.L_omega_r,
                    R_max=found.R_max,
                    L_pi=float(np.linalg.norm(weights, ord=2)),
                    num_pairs=found.num_pairs,
                    ending_share=found.ending_share,
                    return_steepest=smooth.steepest,
                    return_steepest_low=smooth.steepest_low,
                    return_median=smooth.median,
                    num_context_pairs=len(smooth.distance),
                )
            )
    return rows, smoothness


def _initial_policy(rng: np.random.Generator, setting: _Others, num_parameters: int) -> Floats:
    if setting.low is not None and setting.high is not None:
        return rng.uniform(setting.low, setting.high)
    return np.sqrt(setting.variance) * rng.normal(size=num_parameters)


def _csv(rows: Sequence[BoundRow] | Sequence[EstimateRow]) -> bytes:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0]._fields)
    for row in rows:
        writer.writerow([" ".join(map(repr, value)) if isinstance(value, tuple) else value for value in row])
    return buffer.getvalue().encode()


def _render(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without date and version the same data gives the same bytes.
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with mpl.rc_context({"svg.hashsalt": "metastep"}):
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()
