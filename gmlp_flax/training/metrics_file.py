"""metrics.jsonl, the metrics of a run by step, and the names of the files that hold a run's numbers."""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO

from gmlp_flax.data.storage.cache import write_atomically
from gmlp_flax.errors import RunError

METRICS_FILE, RESULT_FILE = "metrics.jsonl", "result.json"


class MetricsFile:
    """metrics.jsonl: one JSON object per line. Training lines have `step` and `loss`, evaluation lines `step` and
    `eval`, the last one also `baseline`: what a trivial model scores there.

    A run that resumes from a checkpoint drops the lines written after that checkpoint, and half a line that a kill
    left. So no step is lost or doubled.

    Args:
        path: of the file.
        resume_step: the step of the checkpoint.
        read_only: another process writes the file.

    Raises:
        RunError: as `read`.
        DataError: the file cannot be written.
    """

    def __init__(self, path: str, resume_step: int, read_only: bool = False):
        self.path, self._file = path, None
        kept = [line for line in self.read(path) if line["step"] <= resume_step]
        self.evaluations: dict[int, dict[str, float]] = {line["step"]: line["eval"] for line in kept if "eval" in line}
        baselines = [line["baseline"] for line in kept if "baseline" in line]
        self.baseline: dict[str, Any] | None = baselines[-1] if baselines else None
        if read_only:
            return

        def rewrite(file: BinaryIO) -> None:
            file.writelines(f"{json.dumps(line)}\n".encode() for line in kept)

        write_atomically(path, rewrite)
        self._file = open(path, "a")  # noqa: SIM115 - open for the whole run

    @staticmethod
    def read(path: str) -> list[dict[str, Any]]:
        """All complete lines; none if there is no file.

        Raises:
            RunError: a line is damaged. The message gives its number, counted from 1.
        """
        if not os.path.exists(path):
            return []
        with open(path, "rb") as file:
            complete = [line for line in file if line.endswith(b"\n")]  # the last may be cut off
            return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(complete, 1)]

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line to the file at once."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if "eval" in line:
            self.evaluations[line["step"]] = line["eval"]
        self.baseline = line.get("baseline", self.baseline)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _parsed(line: bytes, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("step"), int):
        what = f"{line[:40]!r} is no JSON object with a step"
        raise RunError(f"{place} is damaged: {what}; remove that line and run again")
    return value
