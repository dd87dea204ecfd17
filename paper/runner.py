"""Make the ids that were asked for, write what they produce, and collect all outcomes in one table."""

import csv
import dataclasses
import hashlib
import io
import json
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from metastep import InputError, Run, Tracker
from metastep.evaluation import to_parquet
from metastep.experiments.budget import require_affordable
from metastep.experiments.checking import Finding, check_folder
from metastep.experiments.config import require_available
from metastep.experiments.run import write_lock
from metastep.experiments.stages import add_time, read_times
from metastep.report.document import Document, to_markdown, write_picture
from paper.outcome import Outcome, Product
from paper.registry import IDS, REGISTRY, resolve
from paper.results import HOW_TO_READ, claims_table
from paper.workbench import Scale, Workbench


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
    """Make figures and tables of the paper and return their outcomes; what exists is not computed again.

    Args:
        ids: some of `IDS`, or "all".
        out: folder of everything; it belongs to one scale, seed, set of overrides and choice of environments.
        scale: of the presets.
        seed: of everything random.
        tracker: shows the progress of the stages.
        overrides: settings for all presets, like `rollout.block_size=3200`.
        environments: to make the ids for; by default each id's own, which leave HalfCheetah out.
        anyway: whether a run may take weeks.
    """
    wanted = resolve(ids, environments)
    if scale not in get_args(Scale):
        raise InputError(f"scale: {scale!r} must be one of {', '.join(get_args(Scale))}.")
    bench = Workbench(out, scale, seed, tuple(overrides), tracker)
    _check_presets(wanted, bench, anyway=anyway)
    chosen = {"environments": sorted(set(environments))} if environments else {}
    _claim_folder(out, {"scale": scale, "seed": seed, "overrides": list(overrides)} | chosen)
    outcomes: list[Outcome] = []
    with write_lock(out):  # which also removes what killed attempts left
        for name, envs in wanted.items():
            if not _outcome_file(out, name).exists():
                own = dataclasses.replace(bench, environments=envs)
                since = time.monotonic()
                try:
                    product = REGISTRY[name].make(own)
                finally:  # the time of a stopped attempt counts as well
                    add_time(out, name, time.monotonic() - since)
                _write_product(out, name, product, command_of(name, own, named=bool(environments)))
            outcomes += read_id(out, name)[0]
            for file, content in _collected(out).items():
                _write(file, content)
    return outcomes


def _check_presets(wanted: Mapping[str, Sequence[str]], bench: Workbench, *, anyway: bool) -> None:
    """Build every preset with the overrides: errors must be reported before the folder is created."""
    presets = dict.fromkeys(env for envs in wanted.values() for env in envs)
    if bench.overrides and not presets:
        raise InputError(f"--set: {bench.overrides[0]!r} changes nothing, no preset is run for {', '.join(wanted)}.")
    for config in map(bench.config, presets):
        run = Run(bench.out, config).require_buildable()
        require_available(run.mdp)
        require_affordable(run, anyway=anyway)


def command_of(name: str, bench: Workbench, *, named: bool) -> str:
    """Return the command that makes an id; it contains the environments where they were named."""
    parts = ["python", "-m", "paper", "reproduce", name, "--scale", bench.scale, "--seed", str(bench.seed)]
    for env in bench.environments if named else ():
        parts += ["--env", env]
    for override in bench.overrides if bench.environments else ():
        parts += ["--set", override]
    return shlex.join(parts)


def _claim_folder(out: Path, settings: dict[str, Any]) -> None:
    """Create the folder, or resume one of the same settings: rows of different settings must not meet in one table."""
    if out.exists() and not out.is_dir():
        raise InputError(f"--out: {out} is a file, a folder is needed.")
    out.mkdir(parents=True, exist_ok=True)
    file = out / "settings.json"
    if not file.exists():
        if found := sorted(name for name in os.listdir(out) if not name.startswith(".")):
            raise InputError(f"--out: {out} holds {found[0]}, it must be new, empty or a folder of this command.")
        _write(file, _json(settings))
    before = read_settings(out)
    for key in sorted({*before, *settings}):
        if before.get(key) != settings.get(key):
            old, new = (json.dumps(values[key]) if key in values else "not set" for values in (before, settings))
            raise InputError(f"Folder {out} holds results with {key} = {old}, which is now {new}; use another folder.")


def read_settings(out: Path) -> dict[str, Any]:
    """Return the scale, seed, overrides and environments of a folder; version 0.2 wrote them with a checksum."""
    content = _read(out / "settings.json", "use another folder")
    return content["settings"] if isinstance(content.get("settings"), dict) else content


def _outcome_file(out: Path, name: str) -> Path:
    return out / name / "outcome.json"


def _write_product(out: Path, name: str, product: Product, command: str) -> None:
    """Write everything an id made; the outcomes last, since they say that the rest is there."""
    folder, outcomes = out / name, [outcome._replace(id=name, command=command) for outcome in product.outcomes]
    folder.mkdir(parents=True, exist_ok=True)
    files = [path for picture in product.pictures for path in write_picture(picture, folder)]
    for curve, comparison in product.curves.items():
        files.append(folder / f"{curve}.parquet")
        to_parquet(comparison, files[-1])
    texts = {f"{table}.csv": _csv(rows) for table, rows in product.tables.items()}
    texts["outcome.txt"] = "".join(f"{outcome.line()}\n" for outcome in outcomes)
    for file, text in texts.items():
        files.append(folder / file)
        _write(files[-1], text.encode())
    record = {
        "id": name,
        "settings": read_settings(out),
        "outcomes": [outcome._asdict() for outcome in outcomes],
        "pictures": {picture.name: picture.caption for picture in product.pictures},
        "files": {path.name: _sha256(path) for path in [*files, *product.files]},
    }
    _write(_outcome_file(out, name), _json(record))


def read_id(out: Path, name: str) -> tuple[list[Outcome], dict[str, str], dict[str, str]]:
    """Return the outcomes of an id, the captions of its pictures by name, and the checksums of its files."""
    file, remedy = _outcome_file(out, name), f"remove it to make {name} again"
    record = _read(file, remedy)
    if record.get("id") != name or record.get("settings") != read_settings(out):
        raise InputError(f"File {file} belongs to another id or to other settings than {out}; {remedy}.")
    try:
        return [Outcome(**row) for row in record["outcomes"]], dict(record["pictures"]), dict(record["files"])
    except (KeyError, TypeError, ValueError):
        raise InputError(f"File {file} was not written by `python -m paper reproduce`; {remedy}.") from None


def _collected(out: Path) -> dict[Path, bytes]:
    """Return all outcomes of the folder, of this command or an earlier one, as rows and as a page with the pictures."""
    found = {name: read_id(out, name) for name in IDS if _outcome_file(out, name).exists()}
    outcomes = [outcome for own, _, _ in found.values() for outcome in own]
    table = claims_table([[outcome] for outcome in outcomes])
    page = to_markdown(Document("The paper's claims, measured again", HOW_TO_READ, [table]), ".")
    for name, (_, captions, _) in found.items():
        for picture, caption in captions.items():
            page += f"\n![{caption}]({name}/{picture}.svg)\n\n*{picture}: {caption}*\n"
    rows = [outcome._asdict() for outcome in outcomes]
    return {out / "results.json": _json(rows), out / "results.md": page.encode()}


def check_reproduction(out: Path) -> list[Finding]:
    """Verify every file of a reproduction and of its runs, in the order of their names."""
    if not (out / "settings.json").exists():
        raise InputError(f"check: {out} is not a folder of `python -m paper reproduce`.")
    finished = {name: _outcome_file(out, name) for name in IDS if _outcome_file(out, name).exists()}
    findings = [finding for run in sorted(out.glob("runs/*/config.json")) for finding in check_folder(run.parent)]
    reads: dict[Path, Callable[[], object]] = {out / "settings.json": partial(read_settings, out)}
    reads |= {out / "times.json": partial(read_times, out)} if (out / "times.json").exists() else {}
    reads |= {file: partial(read_id, out, name) for name, file in finished.items()}
    for file, read in reads.items():
        try:
            read()
            findings.append(Finding(file))
        except InputError as error:
            findings.append(Finding(file, str(error)))
    damaged = {path for path, problem in findings if problem}
    for name in (name for name, file in finished.items() if file not in damaged):
        for relative, checksum in read_id(out, name)[2].items():
            path = out / name / relative
            is_same = path.exists() and _sha256(path) == checksum
            problem = "" if is_same else "is damaged or was edited." if path.exists() else "is missing."
            findings.append(Finding(path, problem))
    if not damaged & {*finished.values()}:
        for path, content in _collected(out).items():
            if finished or path.exists():
                is_same = path.exists() and path.read_bytes() == content
                findings.append(Finding(path, "" if is_same else "does not hold the outcomes of this folder."))
    # An id that is not finished may keep files for the command that resumes it; runs were checked above.
    skipped, known = {"runs", ".lock", *IDS} - {*finished}, {path for path, _ in findings}
    for path in out.rglob("*"):
        if path.is_file() and path not in known and path.relative_to(out).parts[0] not in skipped:
            findings.append(Finding(path, "was not written by `python -m paper reproduce`."))
    return sorted(findings)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _json(content: Any) -> bytes:
    return f"{json.dumps(content, indent=2)}\n".encode()


def _read(file: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise InputError(f"File {file} was not written by `python -m paper reproduce`; {remedy}.")
    return content


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, so that a stopped command can be repeated."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    os.replace(temporary, path)
