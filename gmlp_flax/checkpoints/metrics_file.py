"""metrics.jsonl, the metrics of a run by step, and result.json, how it ended."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gmlp_flax.checkpoints import RESULT_FILE
from gmlp_flax.errors import RunError
from gmlp_flax.io import files, json_files, logs

Line = dict[str, Any]
BASELINE = "baseline"  # a key that version 0.2.0 wrote, where there are `baselines` today


class MetricsFile:
    """metrics.jsonl: one JSON object per line. Training lines have `step` and `loss`, evaluation
    lines `step` and `eval`; the last one also has `baselines`, the scores of trivial models. Lines
    with `changed` name the keys of the config that have other values after `step`:
    {"optimizer.learning_rate": [old, new]}.

    A run that resumes from a checkpoint drops the lines of later steps, and half a line that a kill
    left. So no step is lost or doubled. The file is not touched before the first line is written.

    Args:
        path: the path of the file; a damaged file raises RunError, as in `read`.
        resume_step: the step of the checkpoint.
        read_only: another process writes the file.

    Attributes:
        evaluations: the `eval` of each step.
        baselines: the newest ones, [] if there are none.
        dropped_changes: the keys of the config whose changes were dropped, with the values before
            them.
    """

    def __init__(self, path: str, resume_step: int, read_only: bool = False):
        self.path = path
        self.resume_step = resume_step
        self._read_only = read_only
        self._file: logs.Log | None = None
        self._begun = False
        self._kept: list[Line] = []
        self._dropped_change_lines: list[Line] = []
        for line in self.read(path):
            is_change = "changed" in line
            # A change at this very step was made for steps that are taken again.
            last_kept = resume_step - 1 if is_change else resume_step
            if line["step"] <= last_kept:
                self._kept.append(line)
            elif is_change:
                self._dropped_change_lines.append(line)
        self.evaluations = evaluations(self._kept)
        self.baselines = newest_baselines(self._kept)
        self.dropped_changes = _values_before(self._dropped_change_lines)

    @staticmethod
    def read(path: str) -> list[Line]:
        """All complete lines; none if there is no file. Raises RunError, with its number, if a line
        is damaged."""
        content = files.read(path) or b""
        complete = content.split(b"\n")[:-1]  # the last may be cut off
        lines = []
        for number, line in enumerate(complete, 1):
            where = f"{path}, line {number}"
            lines.append(_parse_line(line, where))
        return lines

    def begin(self) -> None:
        """Drops the lines that do not stay from the file, when a step is taken."""
        if not self._begun:
            self._begun = True
            self._open(self._kept)

    def write(self, line: Line) -> None:
        """Appends a line to the file: at once on a disk, with `flush` in a bucket. Each step has
        one evaluation.

        Before `begin`, the changes under which no step has been taken stay in the file, for the
        next `dropped_changes`.
        """
        is_evaluation = "eval" in line
        if is_evaluation and line["step"] in self.evaluations:
            return
        if self._file is None:
            self._open([*self._kept, *self._dropped_change_lines])
        if self._file is not None:
            self._file.write(_encode(line))
        if not self._begun:
            self._kept.append(line)
        if is_evaluation:
            self.evaluations[line["step"]] = line["eval"]
        self.baselines = line.get("baselines") or self.baselines

    def _open(self, lines: list[Line]) -> None:
        if self._read_only:
            return
        self.close()
        content = b"".join(_encode(line) for line in lines)
        self._file = logs.begin(self.path, content)

    def flush(self) -> None:
        """Returns when all lines are in storage."""
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Ends writing."""
        if self._file is not None:
            self._file.close()


def evaluations(lines: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """The `eval` of each step that has one."""
    by_step = {}
    for line in lines:
        if "eval" in line:
            step = line["step"]
            by_step[step] = line["eval"]
    return by_step


def _values_before(lines: Iterable[Line]) -> dict[str, Any]:
    """The keys that lines with `changed` name, with their values before the first of the changes."""
    values: dict[str, Any] = {}
    for line in lines:
        for key, (old, _) in line["changed"].items():
            values.setdefault(key, old)
    return values


def newest_baselines(lines: Iterable[Mapping[str, Any]]) -> list[Any]:
    """The scores of trivial models, {"name", "eval"} each, in the last line with some; else []."""
    newest = []
    for line in lines:
        newest = line.get("baselines") or newest
    return newest


def read_result(workdir: str) -> dict[str, Any] | None:
    """The content of a run's result.json, with at least `eval` with numbers; None if there is none.
    Raises RunError if it is damaged."""
    path = os.path.join(workdir, RESULT_FILE)
    content = files.read(path)
    if content is None:
        return None
    result = json_files.parse_object(content)
    _refuse_old(result, path)
    line = {"step": 0} | result
    if "eval" not in result or not _is_line(line):
        raise RunError(
            f"{path} is damaged: expected an object with the metrics eval; "
            "remove it, and train again"
        )
    return result


def _encode(line: Line) -> bytes:
    return json.dumps(line).encode() + b"\n"


def _parse_line(line: bytes, where: str) -> Line:
    value = json_files.parse_object(line)
    _refuse_old(value, where)
    if not _is_line(value):
        raise RunError(
            f"{where} is damaged: {line[:40]!r} is not a JSON object with a step; "
            "remove it and run again"
        )
    return value


def _refuse_old(value: Mapping[str, Any], where: str) -> None:
    if BASELINE in value:
        raise RunError(f"{where} has the format of gmlp_flax 0.2.0: read the run with that version")


def _is_line(line: Mapping[str, Any]) -> bool:
    """Whether everything that readers use has the right types."""
    if "step" not in line:
        return False
    checks = []
    for name, is_right in _TYPES.items():
        if name in line:
            checks.append(is_right(line[name]))
    return all(checks)


def _is_step(value: Any) -> bool:
    return type(value) is int and _is_number(value) and value >= 0


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < 1 << 63
    return type(value) is float


def _is_table(value: Any) -> bool:
    """Whether a value is a dict of numbers by name."""
    if not isinstance(value, dict):
        return False
    return all(map(_is_number, value.values()))


def _is_baseline(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return isinstance(value.get("name"), str) and _is_table(value.get("eval"))


def _are_baselines(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_baseline, value))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _are_changes(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(map(_is_pair, value.values()))


# Key of a line -> whether its value has the right type.
_TYPES: dict[str, Callable[[Any], bool]] = {
    "step": _is_step,
    "loss": _is_number,
    "eval": _is_table,
    "baselines": _are_baselines,
    "changed": _are_changes,
}
