"""Runs `gmlp SUBCOMMAND` as a user does, and reads what a run leaves."""

import os
import subprocess
import sys
from pathlib import Path

import jax

from gmlp_flax import config as gmlp_config
from gmlp_flax.training import run_folder
from gmlp_flax.training.metrics_file import METRICS_FILE, MetricsFile
from gmlp_flax.training.partition import Partition

ROOT = Path(__file__).parents[2]

class Commands:
    """Commands on the CPU, with warnings as errors, that share compiled programs in a folder."""

    def __init__(self, programs: Path):
        self.environment = os.environ | {
            "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "PJRT_NPROC": "16",
            "JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }

    def start(
        self, *arguments: str, command: str = "train", prefix: tuple[str, ...] = (), **variables: str
    ) -> subprocess.Popen:
        """Starts a subcommand of `gmlp` with pipes for its output.

        `prefix` goes before the command, `variables` into its environment.
        """
        words = [*prefix, sys.executable, "-m", "gmlp_flax", command, *map(str, arguments)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(words, cwd=ROOT, env=self.environment | variables, **pipes)

    def __call__(self, *arguments: str, timeout: int = 300, **options) -> subprocess.CompletedProcess:
        """Runs a command to its end; options as in `start`."""
        process = self.start(*arguments, **options)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def assert_done(result: subprocess.CompletedProcess) -> None:
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr, result.stderr


def assert_one_line_error(result: subprocess.CompletedProcess, *words: str) -> None:
    """Exit code 2, and on standard error `error: ...` as the last line, with the words; no traceback."""
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr, result.stderr
    message = result.stderr.splitlines()[-1]
    assert message.startswith("error: "), result.stderr
    for word in words:
        assert word in message, result.stderr


def assert_only_one_line(result: subprocess.CompletedProcess, *words: str) -> None:
    """As assert_one_line_error, and nothing else was printed: the line came before any step."""
    assert_one_line_error(result, *words)
    assert len(result.stderr.splitlines()) == 1 and not result.stdout, result.stderr


def metrics(workdir: Path) -> list[dict]:
    """The lines of metrics.jsonl, less throughput, which no two runs share."""
    lines = MetricsFile.read(str(workdir / METRICS_FILE))
    return [{name: value for name, value in line.items() if not name.endswith("_per_second")} for line in lines]


def final_state(workdir: Path) -> dict:
    """All arrays of the newest checkpoint, checksums verified, by path: parameters, optimizer state, window."""
    config = gmlp_config.load(str(workdir / run_folder.CONFIG_FILE))
    checkpoints = run_folder.open_checkpoints(config, str(workdir), read_only=True)
    step = checkpoints.pick("latest")
    state = checkpoints.restore(step, Partition.make().describe(checkpoints.shapes(step)))
    checkpoints.close()
    return jax.device_get(state)
