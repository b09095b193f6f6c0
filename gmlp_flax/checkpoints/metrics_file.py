"""metrics.jsonl, the metrics of a run by step, and result.json, how it ended."""

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from gmlp_flax.checkpoints import RESULT_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files, logs


class MetricsFile:
    """metrics.jsonl: one JSON object per line. Training lines have `step` and `loss`, evaluation
    lines `step` and `eval`, the last one also `baselines`: what trivial models score there. Lines
    with `changed` tell which keys of the
    config have other values after `step`: {"optimizer.learning_rate": [old, new]}.

    A run that resumes from a checkpoint drops the lines of later steps, and half a line that a kill
    left. So no step is lost or doubled. The file is not touched before the first line is written.

    Args:
        path: of the file; a damaged one raises RunError, as in `read`.
        resume_step: the step of the checkpoint.
        read_only: another process writes the file.

    Attributes:
        undone: the keys of the config whose changes were dropped, with the values before them.
    """

    def __init__(self, path: str, resume_step: int, read_only: bool = False):
        self.path, self.resume_step, self._read_only = path, resume_step, read_only
        self._file: logs.Log | None = None
        self._begun, self._kept, self._changes, self.undone = False, [], [], {}
        for line in self.read(path):
            # A change at this very step was made for steps that are taken again.
            if line["step"] < resume_step + ("changed" not in line):
                self._kept.append(line)
            else:
                self._changes += [line] if "changed" in line else []
                self.undone = {
                    name: old for name, (old, _) in line.get("changed", {}).items()
                } | self.undone
        self.evaluations = {line["step"]: line["eval"] for line in self._kept if "eval" in line}
        self.baselines = next(filter(None, map(baselines_of, reversed(self._kept))), [])

    @staticmethod
    def read(path: str) -> list[dict[str, Any]]:
        """All complete lines; none if there is no file. Raises RunError, with its number, if a line
        is damaged."""
        complete = (files.read(path) or b"").split(b"\n")[:-1]  # the last may be cut off
        return [
            _parse_line(line, f"{path}, line {number}") for number, line in enumerate(complete, 1)
        ]

    def begin(self) -> None:
        """Drops what does not stay from the file, when a step is taken."""
        if not self._begun:
            self._begun = True
            self._open(self._kept)

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line to the file: at once, but for a bucket, where `flush` does. Each step has
        one evaluation.

        Before `begin`, the changes that no step is taken under any more stay in the file, for the
        next `undone`.
        """
        if line["step"] in self.evaluations and "eval" in line:
            return
        if self._file is None:
            self._open([*self._kept, *self._changes])
        if self._file is not None:
            self._file.write(_encode(line))
        if not self._begun:
            self._kept.append(line)
        if "eval" in line:
            self.evaluations[line["step"]] = line["eval"]
        self.baselines = baselines_of(line) or self.baselines

    def _open(self, lines: list[dict[str, Any]]) -> None:
        if not self._read_only:
            self.close()
            self._file = logs.begin(self.path, b"".join(map(_encode, lines)))

    def flush(self) -> None:
        """Returns when all lines are in storage."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def baselines_of(line: Mapping[str, Any]) -> list[Any]:
    """What trivial models score, {"name", "eval"} each, in a line of metrics; before 0.3 it had
    one, as `baseline`."""
    return line.get("baselines") or [line[name] for name in ("baseline",) if name in line]


def read_result(workdir: str) -> dict[str, Any] | None:
    """What a run's result.json says, at least `eval` with numbers; None if there is none. Raises
    RunError if it is damaged."""
    path = os.path.join(workdir, RESULT_FILE)
    content = files.read(path)
    if content is None:
        return None
    result = json_files.parse_object(content)
    if "eval" not in result or not _is_line({"step": 0} | result):
        raise RunError(
            f"{path} is damaged: expected an object with the metrics eval; remove it, and train again"
        )
    return result


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    value = json_files.parse_object(line)
    if not _is_line(value):
        raise RunError(
            f"{where} is damaged: {line[:40]!r} is no JSON object with a step; remove it and run again"
        )
    return value


def _is_line(line: dict[str, Any]) -> bool:
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        models, changes = baselines_of(line), line.get("changed", {}).values()
        tables = [line.get("eval", {}), *(model["eval"] for model in models)]
        numbers = [
            line["step"],
            line.get("loss", 0),
            *(number for table in tables for number in table.values()),
        ]
        return (
            type(line["step"]) is int
            and line["step"] >= 0
            and all(
                type(number) is float or (type(number) is int and abs(number) < 1 << 63)
                for number in numbers
            )
            and all(isinstance(model["name"], str) for model in models)
            and all(isinstance(pair, list) and len(pair) == 2 for pair in changes)
        )
    return False
