"""Export of a dataset to Parquet, for Polars, pandas, DuckDB and the like."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep._core.storage import require_new, write_new
from metastep.mdp.dataset import Dataset, Layout
from metastep.mdp.history import History, Outcomes

_BYTES_AT_ONCE = 16_000_000


def to_parquet(dataset: str | Path | Dataset, path: str | Path, *, force: bool = False) -> None:
    """Write all tuples, one row each, non-finite ones included, to a new file; `force` replaces a plain one.

    Columns: `learner`, `update`, `tried` (0 for the update that was made, 1 and more for others, where there are some),
    `context_<name>`, the features of the dataset, `return`, `flagged`, `stepsize`, `reward`, and `next_<name>` for every
    feature, `return` and `flagged`. Several numbers of one name are a list.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = Path(path)
    require_new(path, force=force)
    whole = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)

    def fill(file: Path) -> None:
        writer: Any = None
        layout, first_learner = whole.layout, 0
        for index, block in enumerate(whole.blocks()):
            learners = len(block.context)
            # A few learners after the other, so that a large block is never held as a whole.
            few = max(1, _BYTES_AT_ONCE * learners // layout.num_bytes(index))
            for tried, start in product(range(layout.labels), range(0, learners, few)):
                piece = _columns(block.part(start, start + few), layout, first_learner + start, tried)
                table = pa.table({name: column(array) for name, array in piece.items()})
                writer = writer or pq.ParquetWriter(file, table.schema)
                writer.write_table(table)
            first_learner += learners
        writer.close()

    def column(array: NDArray[Any]) -> Any:
        """Return (updates, learners) or (updates, learners, width) as one column, episode after episode."""
        values = pa.array(np.swapaxes(array, 0, 1).reshape(-1))
        return values if array.ndim == 2 else pa.FixedSizeListArray.from_arrays(values, array.shape[2])

    write_new(path, fill, force=force)


def _columns(block: History, layout: Layout, first_learner: int, tried: int) -> dict[str, NDArray[Any]]:
    shape = (layout.num_updates, len(block.context))
    columns: dict[str, NDArray[Any]] = {
        "learner": np.broadcast_to(np.arange(first_learner, first_learner + shape[1]), shape),
        "update": np.broadcast_to(np.arange(shape[0])[:, np.newaxis], shape),
    }
    if layout.labels > 1:
        columns["tried"] = np.full(shape, tried)
    for index, name in enumerate(layout.context_names):
        columns[f"context_{name}"] = np.broadcast_to(block.context[:, index], shape)
    outcome = block.outcomes[tried]
    chosen, after = outcome.hyperparameters, _seen(outcome)
    before = {name: array[:-1] for name, array in _seen(block).items()}
    columns |= before | {"stepsize": chosen[:, :, 0] if layout.num_hyperparameters == 1 else chosen}
    with np.errstate(invalid="ignore", over="ignore"):
        columns["reward"] = after["return"] - before["return"]
    return columns | {f"next_{name}": array for name, array in after.items()}


def _seen(record: History | Outcomes) -> dict[str, NDArray[Any]]:
    """Return what is seen of learners, by name; a feature of one number is a plain column."""
    kept = {name: array[:, :, 0] if array.shape[2] == 1 else array for name, array in record.features.items()}
    return {**kept, "return": record.mean_return, "flagged": record.flagged}
