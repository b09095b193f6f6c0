"""What a run writes for people and tools: metrics.jsonl, result.json, a progress line, optional trackers."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from typing import Any, Protocol

import jax
import tqdm
from ml_collections import ConfigDict

from gmlp_flax.training.errors import RunError

METRICS_FILE, RESULT_FILE, ENVIRONMENT_FILE = "metrics.jsonl", "result.json", "environment.json"
PACKAGES = ("gmlp_flax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "sentencepiece")


class Tracker(Protocol):
    """TensorBoard or Weights & Biases."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Writes scalars."""

    def close(self) -> None:
        """Flushes what is pending."""


class MetricsFile:
    """metrics.jsonl: one object a line; training lines have `step` and `loss`, evaluation lines `step` and `eval`.

    A run that goes on from a checkpoint drops the lines written after it, also half a line that a kill left, so that
    no step is lost or doubled.

    Args:
        path: of the file.
        resume_step: the step that the run goes on from.
        read_only: another process writes it.
    """

    def __init__(self, path: str, resume_step: int, read_only: bool = False):
        self.path, self._file = path, None
        kept = [line for line in self.read(path) if line["step"] <= resume_step]
        self.evaluations = {line["step"]: line["eval"] for line in kept if "eval" in line}
        if read_only:
            return
        temporary = f"{path}.tmp"
        with open(temporary, "w") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(temporary, path)
        self._file = open(path, "a")  # noqa: SIM115 - open for the whole run

    @staticmethod
    def read(path: str) -> list[dict[str, Any]]:
        """All whole lines; none where there is no file.

        Raises:
            RunError: a line is not what `write` writes; it is named by its number, counted from 1.
        """
        if not os.path.exists(path):
            return []
        with open(path, "rb") as file:
            whole = [line for line in file if line.endswith(b"\n")]  # the last may be cut off
            return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(whole, 1)]

    def write(self, line: dict[str, Any]) -> None:
        """Appends a line, at once."""
        if self._file is not None:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        if "eval" in line:
            self.evaluations[line["step"]] = line["eval"]

    def close(self) -> None:
        """Closes the file."""
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


class Progress:
    """A live line on a terminal, a plain line at each log elsewhere: step, loss, throughput, time left.

    Throughput and time left are measured from the second step on, so that compilation does not count.

    Args:
        first: the step that the run goes on from.
        steps: the run's.
        per_step: units a step.
        unit: "tokens" or "images".
        silent: another process shows it.
    """

    def __init__(self, first: int, steps: int, per_step: int, unit: str, silent: bool = False):
        self.first, self.steps, self.per_step, self.unit, self.silent = first, steps, per_step, unit, silent
        self.started: tuple[int, float] | None = None
        live = sys.stderr.isatty() and not silent
        form = "{desc} {percentage:3.0f}%|{bar}| {postfix}"
        self.bar = tqdm.tqdm(total=steps, initial=first, bar_format=form, file=sys.stderr, leave=True) if live else None

    def rate(self, step: int) -> float:
        """Tokens or images a second since the second step of this process; 0 before that."""
        if self.started is None or step <= self.started[0]:
            return 0.0
        return (step - self.started[0]) * self.per_step / (time.perf_counter() - self.started[1])

    def advance(self, step: int) -> None:
        """Notes that a step was finished on the device."""
        if self.started is None:
            self.started = (step, time.perf_counter())
        if self.bar is not None:
            self.bar.update(step - self.bar.n)

    def show(self, step: int, loss: float) -> None:
        """Shows the newest loss."""
        rate = self.rate(step)
        left = (self.steps - step) * self.per_step / rate if rate else 0.0
        text = f"loss {loss:.4f}  {rate:,.0f} {self.unit}/s  ETA {_clock(left)}"
        if self.bar is not None:
            self.bar.set_description_str(f"step {step}/{self.steps}")
            self.bar.set_postfix_str(text)
        else:
            self.say(f"step {step}/{self.steps}  {text}")

    def say(self, text: str) -> None:
        """Prints a line above the live one."""
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        elif not self.silent:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the live line."""
        if self.bar is not None:
            self.bar.close()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class _TensorBoard:
    def __init__(self, folder: str):
        import tensorboardX  # an extra

        self._writer = tensorboardX.SummaryWriter(os.path.join(folder, "tensorboard"))

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: str, config: ConfigDict):
        import wandb  # an extra

        # The folder names the run, so that a resumed one goes on where it was.
        name = os.path.basename(folder)
        self._run = wandb.init(
            project=config.log.wandb, name=name, id=name, resume="allow", dir=folder, config=config.to_dict()
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


def trackers(config: ConfigDict, folder: str) -> list[Tracker]:
    """The trackers that the config asks for.

    Raises:
        RunError: one is asked for and its package is not installed.
    """
    found: list[Tracker] = []
    for wanted, extra, make in (
        (config.log.tensorboard, "tensorboard", lambda: _TensorBoard(folder)),
        (config.log.wandb, "wandb", lambda: _Wandb(folder, config)),
    ):
        if wanted:
            try:
                found.append(make())
            except ImportError:
                mend = f"pip install -e .[{extra}]"
                raise RunError(f"config.log.{extra} is set, but it is not installed: {mend}") from None
    return found


def environment() -> dict[str, Any]:
    """Versions, devices and the commit, as environment.json holds them."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    devices = jax.devices()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "devices": {"kind": devices[0].device_kind, "count": len(devices), "hosts": jax.process_count()},
        "git_commit": _git(root, "rev-parse", "HEAD"),
        "git_dirty": bool(_git(root, "status", "--porcelain")),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(root: str, *command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", root, *command], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def write_text(path: str, text: str) -> None:
    """Writes a file whole or not at all."""
    with open(f"{path}.tmp", "w") as file:
        file.write(text)
    os.replace(f"{path}.tmp", path)


def write_json(path: str, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2) + "\n")
