"""Make what was asked for, write it, and collect all outcomes in one table."""

import csv
import dataclasses
import io
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import jax

from metastep._core import storage
from metastep._core.errors import InputError
from metastep._core.locks import writing
from metastep._core.outside import claim
from metastep._core.parallel import cluster, count_threads
from metastep._core.progress import Silent, Tracker
from metastep._core.provenance import first_difference
from metastep.evaluation import to_parquet
from metastep.experiments.budget import require_affordable
from metastep.experiments.build import build_fqi, build_mdp, method_specs, require_available
from metastep.experiments.times import add_time
from metastep.report.document import Document, to_markdown, write_picture
from paper.outcome import Outcome, Product
from paper.registry import IDS, REGISTRY, resolve
from paper.results import HOW_TO_READ, claims_table
from paper.workbench import Scale, Workbench

_KIND = "reproduction"


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
    jobs: int | None = None,
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
        jobs: processes that may work side by side and share the cores, where an id has independent parts (readings); by
            default one for each processor where a GPU simulates, else one, or one where a cluster does the work.

    Returns:
        The outcomes of these ids.
    """
    wanted = resolve(ids, environments)
    if scale not in get_args(Scale):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    if jobs is not None and jobs > 1 and cluster() is not None:
        raise InputError(f"--jobs: {jobs} processes for readings cannot be had together with --workers or --scheduler.")
    jobs = jobs or (1 if cluster() is not None or jax.default_backend() == "cpu" else count_threads(None))
    bench = Workbench(out, scale, seed, tuple(overrides), tracker or Silent(), jobs=jobs)
    _check_presets(wanted, bench, anyway=anyway)
    chosen = {"environments": sorted(set(environments))} if environments else {}
    _claim_folder(out, {"scale": scale, "seed": seed, "overrides": list(overrides)} | chosen)
    outcomes: list[Outcome] = []
    with writing(out, "reproduce"):
        for name, envs in wanted.items():
            if not _outcome_file(out, name).exists():
                own = dataclasses.replace(bench, environments=envs)
                since = time.monotonic()
                try:
                    product = REGISTRY[name].make(own)
                finally:  # what a stopped attempt took counts, too
                    add_time(out, name, time.monotonic() - since)
                command = command_of(name, own, named=bool(environments))
                rows = [outcome._replace(id=name, command=command) for outcome in product.outcomes]
                _write(out, name, product, rows)
                _collect(out)
            outcomes += read_id(out, name)[0]
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
        require_available(build_mdp(config))
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
    file = claim(out, "settings.json")
    content = storage.sealed(storage.stamp(_KIND) | {"settings": settings})
    storage.write_atomically(file, storage.canonical_json(content), overwrite=False)
    if difference := first_difference(read_settings(out)["settings"], settings):
        key, before, now = difference
        raise InputError(f"Folder {out} holds results with {key} = {before}, which is now {now}; use another folder.")


def read_settings(out: Path) -> dict[str, Any]:
    """What a folder of reproductions belongs to."""
    return storage.read_sealed(out / "settings.json", _KIND, "use another folder")


def _outcome_file(out: Path, name: str) -> Path:
    return out / name / "outcome.json"


def _write(out: Path, name: str, product: Product, outcomes: Sequence[Outcome]) -> None:
    """Write everything an id made; the outcomes last, since they say that the rest is there."""
    folder = out / name
    storage.create_folder(folder)
    files = [path for picture in product.pictures for path in write_picture(picture, folder)]
    for table, rows in product.tables.items():
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        files.append(folder / f"{table}.csv")
        storage.write_atomically(files[-1], buffer.getvalue().encode())
    for curve, comparison in product.curves.items():
        files.append(folder / f"{curve}.parquet")
        to_parquet(comparison, files[-1])
    for page, text in product.documents.items():
        files.append(folder / f"{page}.md")
        storage.write_atomically(files[-1], text.encode())
    files += product.files
    lines = "".join(f"{outcome.line()}\n" for outcome in outcomes)
    files.append(folder / "outcome.txt")
    storage.write_atomically(files[-1], lines.encode())
    content = storage.stamp("outcome") | {
        "id": name,
        "settings": read_settings(out)["checksum"],
        "outcomes": [outcome._asdict() for outcome in outcomes],
        "pictures": {picture.name: picture.caption for picture in product.pictures},
        "files": {path.name: storage.sha256_of(path) for path in files},
    }
    storage.write_json(_outcome_file(out, name), storage.sealed(content))


def read_id(out: Path, name: str) -> tuple[list[Outcome], dict[str, str], dict[str, str]]:
    """The outcomes of an id, the captions of its pictures by their names, and the checksums of its files."""
    file, remedy = _outcome_file(out, name), f"remove it to make {name} again"
    record = storage.read_sealed(file, "outcome", remedy)
    if record.get("id") != name or record.get("settings") != read_settings(out)["checksum"]:
        raise InputError(f"File {file} belongs to another id or to other settings than {out}; {remedy}.")
    try:
        return [Outcome(**row) for row in record["outcomes"]], dict(record["pictures"]), dict(record["files"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"File {file} was not written by `metastep reproduce`; {remedy}.") from None


def _collect(out: Path) -> None:
    """Write all outcomes there are, of this run or an earlier one."""
    rows, page = collected(out)
    storage.write_json(out / "results.json", rows)
    storage.write_atomically(out / "results.md", page)


def collected(out: Path) -> tuple[list[dict[str, Any]], bytes]:
    """All outcomes there are as rows, and as a page: one table with the pictures below."""
    found = {name: read_id(out, name) for name in IDS if _outcome_file(out, name).exists()}
    outcomes = [outcome for own, _, _ in found.values() for outcome in own]
    page = to_markdown(Document("The paper's claims, measured again", HOW_TO_READ, [claims_table(outcomes)]), ".")
    for name, (_, captions, _) in found.items():
        for picture, caption in captions.items():
            page += f"\n![{caption}]({name}/{picture}.svg)\n\n*{picture}: {caption}*\n"
    return [outcome._asdict() for outcome in outcomes], page.encode()
