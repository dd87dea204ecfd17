"""Log updates to TensorBoard's event files, written by its own package."""

import os
import time
from collections.abc import Mapping
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoardLog:
    """Write the quantities of every update as scalars, with a prefix to their names; pass it to a stepper as `log`."""

    def __init__(self, folder: str | os.PathLike[str], prefix: str = "metastep/") -> None:
        self._writer, self._prefix = EventFileWriter(os.fspath(folder)), prefix

    def __call__(self, update: int, numbers: Mapping[str, Any]) -> None:
        floats = {f"{self._prefix}{name}": value for name, value in numbers.items() if isinstance(value, float)}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in floats.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=update, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Write what is left and end the writer's thread."""
        self._writer.close()
