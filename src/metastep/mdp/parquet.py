"""Export of a dataset to Parquet, for Polars, pandas, DuckDB and the like."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep._core.storage import require_new, write_new
from metastep.mdp.dataset import Dataset, Layout
from metastep.mdp.history import History

_BYTES_AT_ONCE = 16_000_000


def to_parquet(dataset: str | Path | Dataset, path: str | Path, *, force: bool = False) -> None:
    """Write all tuples, one row each, non-finite ones included, to a new file; `force` replaces a plain one.

    Columns: `learner`, `update`, `tried` (0 for the update that was made, from 1 on for others that were only tried, where the
    dataset has such), `context_<name>`, the features that the dataset holds (lists where they have several
    numbers), `return`, `flagged`, `stepsize` (a list where there are several hyperparameters), `reward`, and `next_<name>`
    for every feature, `return` and `flagged`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    require_new(path, force=force)
    whole = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)

    def fill(file: Path) -> None:
        writer: Any = None
        for piece in _pieces(whole):
            table = pa.table(piece)
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table)
        writer.close()

    write_new(path, fill, force=force)


def _pieces(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """The columns of a few learners after the other, so that a large block is never held as a whole."""
    layout, first_learner = dataset.layout, 0
    for index, block in enumerate(dataset.blocks()):
        learners = len(block.context)
        few = max(1, _BYTES_AT_ONCE * learners // layout.num_bytes(index))
        for tried in range(layout.labels):
            for start in range(0, learners, few):
                yield _columns(block.part(start, start + few), layout, first_learner + start, tried)
        first_learner += learners


def _columns(block: History, layout: Layout, first_learner: int, tried: int) -> dict[str, Any]:
    shape = (layout.num_updates, len(block.context))
    learners = np.arange(first_learner, first_learner + shape[1])
    columns: dict[str, NDArray[Any]] = {
        "learner": np.broadcast_to(learners, shape),
        "update": np.broadcast_to(np.arange(shape[0])[:, np.newaxis], shape),
    }
    if layout.labels > 1:
        columns["tried"] = np.full(shape, tried)
    for index, name in enumerate(layout.context_names):
        columns[f"context_{name}"] = np.broadcast_to(block.context[:, index], shape)
    observed = _observed(block.features, block.mean_return, block.flagged)
    before, after = ({name: array[end] for name, array in observed.items()} for end in (slice(-1), slice(1, None)))
    chosen = block.hyperparameters
    if tried:
        assert block.tried is not None  # the layout says so
        other = block.tried.map(lambda array: array[:, tried - 1])
        chosen, after = other.hyperparameters, _observed(other.features, other.mean_return, other.flagged)
    columns |= before
    columns["stepsize"] = chosen[:, :, 0] if layout.num_hyperparameters == 1 else chosen
    with np.errstate(invalid="ignore", over="ignore"):
        columns["reward"] = after["return"] - before["return"]
    columns |= {f"next_{name}": array for name, array in after.items()}
    return {name: _arrow(array) for name, array in columns.items()}


def _observed(
    features: Mapping[str, NDArray[Any]], mean_return: NDArray[Any], flagged: NDArray[Any]
) -> dict[str, NDArray[Any]]:
    """What is seen of learners, by name; a feature of one number is a plain column."""
    kept = {name: array[:, :, 0] if array.shape[2] == 1 else array for name, array in features.items()}
    return {**kept, "return": mean_return, "flagged": flagged}


def _arrow(array: NDArray[Any]) -> Any:
    """(updates, learners) or (updates, learners, width) as one Arrow column, episode after episode."""
    import pyarrow as pa

    values = pa.array(np.swapaxes(array, 0, 1).reshape(-1))
    return values if array.ndim == 2 else pa.FixedSizeListArray.from_arrays(values, array.shape[2])
