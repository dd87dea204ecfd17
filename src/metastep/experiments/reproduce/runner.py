"""Make what was asked for, write it, and collect all outcomes in one table."""

import csv
import dataclasses
import io
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from metastep import storage
from metastep.errors import InputError
from metastep.evaluation import to_parquet
from metastep.experiments.budget import require_affordable
from metastep.experiments.build import build_fqi, build_mdp, method_specs, require_available
from metastep.experiments.reproduce.outcome import Outcome, Product
from metastep.experiments.reproduce.registry import IDS, REGISTRY, resolve
from metastep.experiments.reproduce.results import HOW_TO_READ, claims_table
from metastep.experiments.reproduce.workbench import Scale, Workbench
from metastep.progress import Silent, Tracker
from metastep.provenance import first_difference
from metastep.report.document import Document, to_markdown, write_picture


def reproduce(
    ids: Sequence[str],
    out: Path,
    scale: Scale = "quick",
    seed: int = 0,
    tracker: Tracker | None = None,
    overrides: Sequence[str] = (),
    environments: Sequence[str] = (),
    *,
    anyway: bool = False,
) -> list[Outcome]:
    """Make figures and tables of the paper; what is there already is neither simulated, fitted nor drawn again.

    Args:
        ids: some of `IDS`, or "all".
        out: folder of everything; it belongs to one scale, seed, set of overrides and choice of environments.
        scale: of the presets.
        seed: of everything random.
        tracker: is told about the stages.
        overrides: settings for all presets, like `rollout.block_size=3200`.
        environments: those to make the ids for; by default each id's own, which leave HalfCheetah out.
        anyway: whether a run may take weeks.

    Returns:
        The outcomes of these ids.
    """
    wanted = resolve(ids, environments)
    if scale not in get_args(Scale):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    bench = Workbench(out, scale, seed, tuple(overrides), tracker or Silent())
    _check_presets(wanted, bench, anyway=anyway)
    chosen = {"environments": sorted(set(environments))} if environments else {}
    _claim_folder(out, {"scale": scale, "seed": seed, "overrides": list(overrides)} | chosen)
    outcomes: list[Outcome] = []
    for name, envs in wanted.items():
        if not _outcome_file(out, name).exists():
            own = dataclasses.replace(bench, environments=envs)
            product = REGISTRY[name].make(own)
            command = command_of(name, own, named=bool(environments))
            _write(out / name, product, [outcome._replace(id=name, command=command) for outcome in product.outcomes])
            _collect(out)
        outcomes += _read(out, name)[0]
    _collect(out)
    return outcomes


def _check_presets(wanted: Mapping[str, Sequence[str]], bench: Workbench, *, anyway: bool) -> None:
    """Build every preset with the overrides: what is wrong must be said before the folder belongs to it."""
    presets = dict.fromkeys(env for envs in wanted.values() for env in envs)
    if bench.overrides and not presets:
        raise InputError(f"--set: {bench.overrides[0]!r} changes nothing, no preset is run for {', '.join(wanted)}.")
    for config in map(bench.config, presets):
        method_specs(config)
        build_fqi(config)
        require_available(build_mdp(config).estimator.rollout.env)
        require_affordable(config, bench.out, anyway=anyway)


def command_of(name: str, bench: Workbench, *, named: bool) -> str:
    """What to type to make an id again; the environments are in it where they were named."""
    parts = ["metastep", "reproduce", name, "--scale", bench.scale, "--seed", str(bench.seed)]
    for env in bench.environments if named else ():
        parts += ["--env", env]
    for override in bench.overrides if bench.environments else ():
        parts += ["--set", override]
    return shlex.join(parts)


def _claim_folder(out: Path, settings: dict[str, Any]) -> None:
    """Rows of different settings must not meet in one table."""
    file = out / "settings.json"
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed.")
    if not file.exists():
        storage.create_folder(out)
        storage.write_json(file, settings)
    elif difference := first_difference(storage.read_json(file), settings):
        key, before, now = difference
        raise InputError(f"Folder {out} holds results with {key} = {before}, which is now {now}; use another folder.")


def _outcome_file(out: Path, name: str) -> Path:
    return out / name / "outcome.json"


def _write(folder: Path, product: Product, outcomes: Sequence[Outcome]) -> None:
    """Write everything an id made; the outcomes last, since they say that the rest is there."""
    storage.create_folder(folder)
    for picture in product.pictures:
        write_picture(picture, folder)
    for name, rows in product.tables.items():
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        storage.write_atomically(folder / f"{name}.csv", buffer.getvalue().encode())
    for name, comparison in product.curves.items():
        to_parquet(comparison, folder / f"{name}.parquet")
    lines = "".join(f"{outcome.line()}\n" for outcome in outcomes)
    storage.write_atomically(folder / "outcome.txt", lines.encode())
    captions = {picture.name: picture.caption for picture in product.pictures}
    record = {"outcomes": [outcome._asdict() for outcome in outcomes], "pictures": captions}
    storage.write_json(folder / "outcome.json", record)


def _read(out: Path, name: str) -> tuple[list[Outcome], dict[str, str]]:
    """The outcomes of an id, and the captions of its pictures by their names."""
    file = _outcome_file(out, name)
    record = storage.read_json(file)
    if not isinstance(record, dict) or set(record) != {"outcomes", "pictures"}:
        raise InputError(f"File {file} was not written by `metastep reproduce`; remove it to make {name} again.")
    return [Outcome(**row) for row in record["outcomes"]], record["pictures"]


def _collect(out: Path) -> None:
    """All outcomes there are, of this run or an earlier one, as one table with the pictures below."""
    found = {name: _read(out, name) for name in IDS if _outcome_file(out, name).exists()}
    outcomes = [outcome for own, _ in found.values() for outcome in own]
    storage.write_json(out / "results.json", [outcome._asdict() for outcome in outcomes])
    page = to_markdown(Document("The paper's claims, measured again", HOW_TO_READ, [claims_table(outcomes)]), ".")
    for name, (_, captions) in found.items():
        for picture, caption in captions.items():
            page += f"\n![{caption}]({name}/{picture}.svg)\n\n*{picture}: {caption}*\n"
    storage.write_atomically(out / "results.md", page.encode())
