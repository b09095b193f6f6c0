"""Processes that read data: scripts without a main guard, and messages about a dead process."""

import subprocess
import sys

import pytest

from gmlp_flax.data.workers import IMPORTED_AGAIN, why_one_ended
from tests import preloaded

SCRIPT = """
import multiprocessing
from gmlp_flax.data.workers import end_if_imported_again

def work(data):
    pass

end_if_imported_again()
print("trained", __name__, flush=True)

process = multiprocessing.get_context("spawn").Process(target=work, args=(bytes(SIZE),))
process.start()
process.join()
print("ended with", process.exitcode, flush=True)
"""


def run(tmp_path, size: int) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("SIZE", str(size)))
    result = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=preloaded.ROOT, timeout=60,
        env={"PYTHONPATH": str(preloaded.ROOT), "PATH": ""},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1 << 22])
def test_workers_that_import_a_script_without_a_guard_end(tmp_path, size):
    """It also ends if the script sends it more than a pipe holds, such as the examples."""
    assert run(tmp_path, size) == f"trained __main__\nended with {IMPORTED_AGAIN}\n"


def test_messages_say_why_a_worker_ended():
    message = "Worker process was terminated unexpectedly with exit code {}"
    assert "__name__" in why_one_ended(message.format(IMPORTED_AGAIN))
    assert "signal 9" in why_one_ended(message.format(-9))
    assert "exit code 1" in why_one_ended(message.format(1))
    assert why_one_ended("another error") == ""
