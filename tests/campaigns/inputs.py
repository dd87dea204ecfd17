"""Random configurations and command lines: they work, or one sentence says why not, and nothing is written elsewhere.
The WORK is configurations or commands.
"""

import os
import random
import shutil
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from metastep._core.errors import InputError
from metastep.cli import app
from metastep.experiments.budget import budget_of
from metastep.experiments.config import list_presets, load
from metastep.experiments.run import Run, run, start_run
from tests.campaigns import SETTINGS, Tally, digests, main


def _split(text: str, at: str | None = None) -> list[str]:
    return [word.strip() for word in text.split(at)]


NUMBERS = _split("0 1 2 -1 0.0 0.5 1e-46 1e-38 1e-20 1e20 1e39 1e300 1e400 nan inf -inf 1000000000 10000000000")
OTHERS = _split(
    """true|""|"x"|[]|{}|[1, 2]|[1e300]|[[1], [2]]|{a = 1}|"é"|"\\u0000"|1979-05-27|=|'|$x|"nga"|"mlp"|"uniform"|"log"
    |"generative"|"nowhere:x"|"os:path"|"lqr"|["fixed"]|["theta"]|["return", "x"]|["adam", "hoof", "oracle"]""",
    "|",
)
KEYS = [
    f"{table}.{name}" for table, inner in load("nav2d").to_dict().items() if isinstance(inner, dict) for name in inner
]
KEYS += _split("""seed env env.options.context_space env.options.noise policy initial meta.rule.damping meta.rule.epsilon meta
    fqi.regressor.trees compare.methods.fixed.grid.stepsize compare.methods.mine.controller compare.methods.fixed.label
    compare.methods.fixed.colour nothing x.y.z .""")
# What could be meant, among it much that is extreme.
LIKELY = _split(
    """seed=4294967295|policy.sigma=0.1|policy.sigma=1e-20|policy.sigma=1e20|policy.sigma=1e-37|rollout.discount=0
    |rollout.discount=1e-30|rollout.baseline=none|rollout.num_episodes=1|rollout.horizon=1|rollout.horizon=7|rollout.block_size=3
    |meta.num_updates=1|meta.rule=gradient|meta.rule=adam|meta.rule={name="gradient", normalised=true}
    |meta.rule={name="adam", epsilon=1e-30}|meta.rule={name="adam", first_decay=1.0}|meta.meta_discount=0|meta.stepsize_high=1e-30
    |meta.stepsize_high=1000000000.0|meta.observation=["return"]|meta.observation=["context", "natural_gradient"]
    |collect.method=generative|collect.num_meta_episodes=1|collect.block_size=1|fqi.iterations=1|fqi.double=false|fqi.lam=0.51
    |fqi.num_stepsizes=2|fqi.maximum=continuous|fqi.regressor.trees=1|fqi.regressor.min_samples_split=1.0|fqi.regressor=sklearn
    |selection.num_tasks=1|compare.num_tasks=2|compare.num_updates=1|compare.num_resamples=1|compare.methods=["metafqi"]
    |compare.methods=["oracle"]|compare.methods=["hoof", "metagrad"]|compare.methods=["single", "decay", "geometric-decay"]
    |compare.methods=[{name="mine", controller={name="fixed", stepsize=1e30}}]|compare.methods.fixed.grid.stepsize=[1e30]
    |compare.methods.fixed.label="$x$ [/b] <b>"|initial={mean=1e30, variance=1e30}|initial={mean=0, variance=0}
    |initial={kind="uniform", low=-1e38, high=1e38}|env.options.max_move=0.0|env.options.max_move=1e30|env={name="lqr"}
    |env={name="cartpole"}|env.fixed_context=[0.1, 0.1]|policy={name="mlp", sigma=1.0, hidden=[2]}""",
    "|",
)
SECONDS = 120  # after which something hangs


class Hang(BaseException):
    pass


@contextmanager
def limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def setting(generator: random.Random) -> str:
    if generator.random() < 0.75:
        return generator.choice(LIKELY)
    values = generator.choice([NUMBERS, OTHERS])
    return f"{generator.choice(KEYS)}={generator.choice(values)}"


def configurations(number: int, seed: int, sandbox: Path, runs: float = 0.1) -> dict[str, Any]:
    generator, tally, out = random.Random(seed), Tally(), sandbox / "out"
    for _ in range(number):
        preset = generator.choice(list_presets())
        settings = [setting(generator) for _ in range(generator.randint(1, 3))]
        if generator.random() < 0.5:
            preset, settings = "nav2d", [*SETTINGS, *settings]
        outcome, problem = "refused", ""
        try:
            with limited():
                folder = start_run(preset, None, out, command="", overrides=settings)
                outcome = "accepted"
                written = [path.name for path in out.rglob("*")]
                if written != ["config.json"] or Run.open(out).config != folder.config:
                    problem = f"wrote {written}"
                if generator.random() < runs and budget_of(folder).steps < 2e6:
                    outcome = "stopped with a sentence"
                    folder.run_all()
                    outcome = "run to the end"
        except InputError as error:
            if "\n" in str(error) or str(error)[-1] not in ".?":
                problem = str(error)
            if outcome == "refused" and out.exists():
                problem = "refused, but there is a folder"
        except (Hang, Exception) as error:
            outcome = "hang" if isinstance(error, Hang) else "traceback"
            problem = f"{outcome} {traceback.format_exc()[-600:]}"
        if problem:
            tally.failures.append(f"{settings}: {problem}")
        tally.add(outcome)
        shutil.rmtree(out, ignore_errors=True)
    return tally.found(unexpected=sorted(path.name for path in sandbox.iterdir()))


def inputs(folder: Path) -> Path:
    """Prepare arguments for command lines: a run, and much that is none."""
    run("nav2d", folder / "run", overrides=SETTINGS)
    for name in ("empty", "started", "strange"):
        (folder / name).mkdir()
    shutil.copy(folder / "run" / "config.json", folder / "started")
    for name, content in {
        "file.txt": b"text\n",
        "strange/config.json": b'{"a": 1e999}',
        "strange/manifest.json": b"{}",
        "own.toml": b"[env]\nname = 'nav2d'\n",
        "broken.toml": b"[env\n\xff",
        "tasks.csv": b"goal_x,goal_y\n0.1,0.2\n",
        "broken.csv": b'"\0\xff',
        "tasks.json": b'[{"goal_x": 1e999}]',
    }.items():
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe.toml")
    os.mkfifo(folder / "pipe.csv")
    (folder / "dangling").symlink_to("nowhere")
    return folder


def untouched(given: Path) -> dict[str, str]:
    """Return digests of the files that no command line may change; a started run may be resumed."""
    return {name: digest for name, digest in digests(given).items() if not name.startswith("started")}


def commands(number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    generator, tally, given = random.Random(seed), Tally(), inputs(sandbox / "inputs")
    plain = untouched(given)
    (sandbox / "cwd").mkdir()
    os.chdir(sandbox / "cwd")
    for _ in range(number):
        words, problem = command_line(generator, given), ""
        try:
            with limited():
                result = CliRunner().invoke(app, words)
            outcome = {0: "done", 2: "refused"}.get(result.exit_code, f"code {result.exit_code}")
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                outcome, problem = "traceback", "".join(traceback.format_exception(result.exception))[-600:]
            elif "Traceback" in result.output:
                problem = result.output[-300:]
        except Hang:
            outcome = problem = "hang"
        if outcome == "done" and untouched(given) != plain:
            problem, plain = "changed what it was given", untouched(given)
        if problem:
            tally.failures.append(f"{words}: {problem}")
        tally.add(outcome)
    if untouched(given) != plain:
        tally.failures.append("something that was refused changed what it was given")
    return tally.found(unexpected=sorted(path.name for path in sandbox.iterdir()))


def command_line(generator: random.Random, given: Path) -> list[str]:
    """Return words as a beginner might type them; what would take minutes is made too large to start."""
    bad = ["", " ", "a" * 300, "b/" * 2500, "\udcff", *_split("nowhere - -- /dev/zero /dev/null /proc/self/mem / ~ *")]
    existing = "empty started strange file.txt dangling run/data pipe.toml run/model.safetensors"
    bad += [str(given / name) for name in existing.split()]
    paths = [*bad, *bad, str(given / "run"), "here", "there/and/here"]
    named = "own.toml broken.toml tasks.csv broken.csv tasks.json pipe.csv pipe.toml"
    files = [*bad, *(str(given / name) for name in named.split())]
    presets = [*list_presets(), "nav", "", "x.toml", *files]
    verb = generator.choice(_split("run collect fit compare report export inspect check config envs demo x"))
    options = {
        "--out": paths, "--seed": [*NUMBERS, "x"], "--scale": ["quick", "full", "half"], "--set": [setting(generator)],
        "--tasks": files, "--data": paths, "--device": ["cpu", "gpu", "tpu"], "--cores": ["1", "2", "0", "-3", "²", "x"],
        "--parquet": ["out.parquet", *paths], "--minari": ["metastep/x-v0", "", "../x"], "--coverage": files,
        "--env": ["nav2d", "x", ""], "--nothing": ["x"],
        **dict.fromkeys(("--allow-imports", "--yes", "--force", "--help"), (None,)),
    }  # fmt: skip
    words = [verb]
    if verb in ("run", "collect", "config"):
        words.append(generator.choice(presets))
    elif verb in ("fit", "compare", "report", "export", "inspect", "check"):
        words += generator.choices(paths, k=generator.choice([0, 1, 1, 1, 1, 2]))
    for option in [*generator.choices(sorted(options), k=generator.randint(0, 3)), *generator.choice([["--out"], []])]:
        value = generator.choice(options[option])
        words += [option] if value is None else [option, value]
    if verb in ("run", "collect"):
        tiny = [word for one in [*SETTINGS, 'compare.methods=["fixed"]'] for word in ("--set", one)]
        words += ["--set", "rollout.block_size=1000000000"] if generator.random() < 0.97 else tiny
    if verb == "demo":
        words += ["--out", str(given / "file.txt")]
    return words


def campaign(which: str, number: int, seed: int, sandbox: Path) -> dict[str, Any]:
    return {"configurations": configurations, "commands": commands}[which](number, seed, sandbox)


if __name__ == "__main__":
    main(campaign)
