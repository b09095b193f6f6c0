"""Runs `gmlp SUBCOMMAND` as a user does, and reads the files of a run."""

import re
import subprocess
from pathlib import Path

import jax
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints import CONFIG_FILE, METRICS_FILE
from gmlp_flax.checkpoints.metrics_file import MetricsFile
from gmlp_flax.training.checkpoints import open_checkpoints
from gmlp_flax.training.partition import Partition
from tests import preloaded


class Commands:
    """Commands on the CPU, with warnings as errors; see tests/preloaded.py."""

    def start(self, *arguments: object, command: str = "train", **options):
        """Starts a subcommand of `gmlp` with pipes for its output; options as in
        `preloaded.start`."""
        return preloaded.start(
            "-m", "gmlp_flax", command, *arguments, PYTHONWARNINGS="error", **options
        )

    def __call__(
        self, *arguments: object, command: str = "train", **options
    ) -> subprocess.CompletedProcess:
        """Runs a command to its end; options as in `preloaded.run`."""
        return preloaded.gmlp(command, *arguments, PYTHONWARNINGS="error", **options)


def assert_done(result: subprocess.CompletedProcess) -> None:
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    assert "Exception ignored" not in result.stderr, result.stderr


def assert_one_line_error(result: subprocess.CompletedProcess, *words: str) -> None:
    """Checks for exit code 2, `error: ...` with the words as the last line on stderr, and no
    traceback."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    assert "Exception ignored" not in result.stderr, result.stderr
    message = result.stderr.splitlines()[-1]
    assert message.startswith("error: "), result.stderr
    for word in words:
        assert word in message, result.stderr


# Lines that a run may print before its first step.
BEFORE_TRAINING = re.compile(
    r"\w+, \w+: [\d,]+ steps of .* writing to |train: |heldout: |the data have no split to hold out, "
    r"|training a tokenizer of |tokenizing |[\d,]+ parameters; "
)


def assert_only_one_line(result: subprocess.CompletedProcess, *words: str) -> None:
    """As assert_one_line_error; before the error there are only lines that a run prints before its
    first step."""
    assert_one_line_error(result, *words)
    *before, _ = result.stderr.splitlines()
    for line in before:
        assert BEFORE_TRAINING.match(line), result.stderr
    assert not result.stdout, result.stderr


def metrics(workdir: Path) -> list[dict]:
    """The lines of metrics.jsonl without throughput, which differs between runs."""
    lines = []
    for line in MetricsFile.read(str(workdir / METRICS_FILE)):
        without_speed = {}
        for name, value in line.items():
            if not name.endswith("_per_second"):
                without_speed[name] = value
        lines.append(without_speed)
    return lines


def await_line(process: subprocess.Popen, pattern: str = "^step ") -> None:
    """Returns when a process has printed a line with this pattern on stderr; by default, that of its
    first step."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if re.search(pattern, line):
            return
    raise AssertionError("".join(lines))


def assert_same_run(workdir: Path, expected: Path) -> None:
    """Checks that the state and the lines of metrics are bit identical."""
    jax.tree.map(assert_array_equal, final_state(workdir), final_state(expected))
    assert metrics(workdir) == metrics(expected)


def final_state(workdir: Path) -> dict:
    """All arrays of the newest checkpoint by path, with verified checksums: parameters, optimizer
    state, window."""
    config = gmlp_config.load(str(workdir / CONFIG_FILE))
    checkpoints = open_checkpoints(config, str(workdir), read_only=True)
    step = checkpoints.pick("latest")
    shapes = Partition.make().describe(checkpoints.shapes(step))
    state = checkpoints.restore(step, shapes)
    checkpoints.close()
    return jax.device_get(state)
