"""scripts/launch_local.sh with a stand-in for Python, which notes how it was called and does what it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/launch_local.sh"

# Does what stands in does.json for its process: "waits" until SIGTERM, "ignores" SIGTERM, or an exit code. It fails only
# once process 0 is there, which would otherwise be ended before it has started.
STANDIN = """#!{python}
import json, os, signal, sys, time
process = sys.argv[-1].partition("=")[2]
def stop(*_):
    print("saved", flush=True)
    sys.exit(0)
does = json.load(open("{folder}/does.json")).get(process, 0)
if does == "waits":
    signal.signal(signal.SIGTERM, stop)
if does == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
names = ("JAX_PLATFORMS", "PJRT_NPROC")
with open("{folder}/" + process + ".part", "w") as file:
    json.dump([sys.argv[1:], os.getpid(), [os.environ[name] for name in names]], file)
os.rename("{folder}/" + process + ".part", "{folder}/call-" + process)
print("a line", process, flush=True)
print("an error", file=sys.stderr, flush=True)
if isinstance(does, str):
    time.sleep(60)
while does and not os.path.exists("{folder}/call-0"):
    time.sleep(0.01)
sys.exit(does)
"""


class Machine:
    """A folder with a stand-in `python`, and what launch_local.sh does with it."""

    def __init__(self, folder: Path):
        self.folder, self.python = folder, folder / "a python"
        self.python.write_text(STANDIN.format(python=sys.executable, folder=folder))
        self.python.chmod(0o755)
        self.does({})

    def does(self, plan: dict[str, object]) -> None:
        (self.folder / "does.json").write_text(json.dumps(plan))

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen:
        kept = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "PJRT_NPROC")}
        environment = kept | {"PYTHON": str(self.python)} | variables
        pipe = subprocess.PIPE
        return subprocess.Popen([SCRIPT, *arguments], env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        with self.start(*arguments, **variables) as launcher:
            out, err = launcher.communicate(timeout=60)
        return launcher.returncode, out, err

    def call(self, process: int) -> tuple[list[str], int, list[str]]:
        """Waits for a process to start: its arguments, process id and variables."""
        path = self.folder / f"call-{process}"
        for _ in range(3000):
            if path.exists():
                return tuple(json.loads(path.read_text()))
            time.sleep(0.01)
        raise AssertionError(f"process {process} did not start")


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_flags_prefixes_and_a_free_port(machine):
    code, out, err = machine.run("3", "--", "--config=a b.py:x", "--workdir=it's", "--config.note=$HOME *")
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[{i}] {line}" for i in range(3) for line in (f"a line {i}", "an error"))
    calls = [machine.call(i) for i in range(3)]
    port = calls[0][0][6].rpartition(":")[2]
    for i, (arguments, _, variables) in enumerate(calls):
        assert arguments == [
            "-m", "gmlp_flax.train", "--config=a b.py:x", "--workdir=it's", "--config.note=$HOME *",
            "--multihost=on", f"--coordinator=127.0.0.1:{port}", "--processes=3", f"--process={i}",
        ]
        assert variables == ["cpu", "16"]
    assert 20000 <= int(port) < 32000


def test_port_and_platform_may_be_given(machine):
    assert machine.run("1", "--", "--x", PORT="1234", JAX_PLATFORMS="cuda", PJRT_NPROC="4")[0] == 0
    arguments, _, variables = machine.call(0)
    assert "--coordinator=127.0.0.1:1234" in arguments and variables == ["cuda", "4"]


def test_dry_run_prints_what_is_run(machine):
    code, out, _ = machine.run("2", "--dry_run", "--", "--workdir=it's", PORT="1234")
    assert code == 0 and not (machine.folder / "call-0").exists()
    for line in out.splitlines():
        subprocess.run(["bash", "-c", line], check=True, capture_output=True)
    printed = [machine.call(i)[0] for i in range(2)]
    machine.run("2", "--", "--workdir=it's", PORT="1234")
    assert printed == [machine.call(i)[0] for i in range(2)]


def test_failure_of_one_ends_all_with_its_code(machine):
    machine.does({"0": "waits", "1": 7})
    code, out, err = machine.run("2", "--", "--x")
    assert code == 7 and "[0] saved" in out
    assert err.splitlines() == ["launch_local: a process ended with code 7"]


def test_what_does_not_end_after_a_failure_is_killed(machine):
    machine.does({"0": "ignores", "1": 3})
    assert machine.run("2", "--", "--x", GRACE="0")[0] == 3
    assert is_gone(machine.call(0)[1])


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_the_runs_save(machine, name):
    machine.does({"0": "waits", "1": "waits"})
    # A shell cannot trap a signal that it finds ignored, as background jobs find SIGINT; Python does not ignore it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        launcher = machine.start("2", "--", "--x")
    finally:
        signal.signal(signal.SIGINT, before)
    pids = [machine.call(i)[1] for i in range(2)]
    launcher.send_signal(name)
    out, err = launcher.communicate(timeout=60)
    assert (launcher.returncode, err) == (0, "")
    assert out.count("saved") == 2 and all(map(is_gone, pids))


def test_a_second_signal_kills(machine):
    machine.does({"0": "ignores"})
    launcher = machine.start("1", "--", "--x")
    pid = machine.call(0)[1]
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 137 and is_gone(pid)


@pytest.mark.parametrize(("arguments", "words"), [
    ((), "number of processes is ''"), (("two", "--", "--x"), "'two'"), (("0", "--", "--x"), "'0'"),
    (("2", "--x"), "expected --"), (("2", "--"), "nothing to run"), (("2",), "expected --"),
])
def test_mistakes_are_one_line(machine, arguments, words):
    code, out, err = machine.run(*arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1


def test_missing_python_is_one_line(machine):
    code, _, err = machine.run("1", "--", "--x", PYTHON="python3.99")
    assert code == 2 and "python3.99" in err and len(err.splitlines()) == 1
