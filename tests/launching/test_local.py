"""Several processes of this machine, with a stand-in for training, which notes how it was called."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gmlp_flax.launching import engines, local
from gmlp_flax.launching.engine import Job, Options
from gmlp_flax.launching.local import ENVIRONMENT
from gmlp_flax.processes import signals

# Does what does.json says of its process: "waits" until SIGTERM, "ignores" SIGTERM, or an exit code. It fails only once
# process 0 is there, which would otherwise be ended before it has started.
STANDIN = """
import json, os, signal, sys, time
folder, process = os.environ["STANDIN"], sys.argv[-1].partition("=")[2]
def stop(*_):
    print("saved", flush=True)
    sys.exit(0)
does = json.load(open(folder + "/does.json")).get(process, 0)
if does == "waits":
    signal.signal(signal.SIGTERM, stop)
if does == "ignores":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
names = ("JAX_PLATFORMS", "PJRT_NPROC")
with open(folder + "/" + process + ".part", "w") as file:
    json.dump([sys.argv[1:], os.getpid(), [os.environ[name] for name in names]], file)
os.rename(folder + "/" + process + ".part", folder + "/call-" + process)
print("a line", process, flush=True)
print("an error", file=sys.stderr, flush=True)
if isinstance(does, str):
    time.sleep(60)
while does and not os.path.exists(folder + "/call-0"):
    time.sleep(0.01)
sys.exit(does)
"""
# The engine, with the stand-in for gmlp_flax.train.
PROGRAM = """
import sys
from gmlp_flax.launching import engines, local
from gmlp_flax.launching.engine import Job, Options
local.TRAIN, local.GRACE = ["-c", {standin!r}], {grace}
engine = engines.find("local", Options(processes=int(sys.argv[1])))
job = Job("run", "runs/x", tuple(sys.argv[2:]))
sys.exit(engines.launch(engine, [job, *[job] * {more}], dry_run=False))
"""
AWKWARD = ("--config=a b.py:x", "--workdir=it's", '--config.note=$HOME "*"\n;#')


class Machine:
    """A folder for what the stand-ins are told and tell."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.does({})

    def does(self, plan: dict[str, object]) -> None:
        (self.folder / "does.json").write_text(json.dumps(plan))

    def start(self, processes: int, *words: str, grace: float = 10, more: int = 0, **variables: str):
        kept = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
        environment = kept | {"STANDIN": str(self.folder)} | variables
        program = PROGRAM.format(standin=STANDIN, grace=grace, more=more)
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", program, str(processes), *words]
        # A process does not receive a signal that it finds ignored, as background jobs find SIGINT.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)
        finally:
            signal.signal(signal.SIGINT, before)

    def run(self, processes: int, *words: str, **options) -> tuple[int, str, str]:
        with self.start(processes, *words, **options) as launcher:
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
    for _ in range(500):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_words_prefixes_and_a_free_port(machine):
    code, out, err = machine.run(3, *AWKWARD)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == sorted(f"[{i}] {line}" for i in range(3) for line in (f"a line {i}", "an error"))
    calls = [machine.call(i) for i in range(3)]
    port = calls[0][0][4].rpartition(":")[2]
    for i, (arguments, _, variables) in enumerate(calls):
        joining = ["--multihost=on", f"--coordinator=127.0.0.1:{port}", "--processes=3", f"--process={i}"]
        assert arguments == [*AWKWARD, *joining]
        assert variables == ["cpu", "16"]
    assert 20000 <= int(port) < 32000


def test_what_is_shown_is_what_is_run():
    """A shell reads each line back."""
    engine = engines.find("local", Options(processes=2))
    for i, line in enumerate(engine.show(Job("run", "runs/x", AWKWARD)).splitlines()):
        show = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))"]
        printed = subprocess.run(["bash", "-c", f"{shlex.join(show)} {line}"], capture_output=True, check=True).stdout
        words = json.loads(printed)
        assert words[2:-4] == [sys.executable, "-m", "gmlp_flax.train", *AWKWARD] and words[-1] == f"--process={i}"


def test_failure_of_one_ends_all_with_its_code(machine):
    machine.does({"0": "waits", "1": 7})
    code, out, err = machine.run(2, "--x")
    assert code == 7 and "[0] saved" in out
    assert err.splitlines() == ["a process ended with code 7: the others are ended"]


def test_what_does_not_end_after_a_failure_is_killed(machine):
    machine.does({"0": "ignores", "1": 3})
    assert machine.run(2, "--x", grace=0)[0] == 3
    assert is_gone(machine.call(0)[1])


@pytest.mark.parametrize("name", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_the_runs_save(machine, name):
    """And no further run of a sweep begins."""
    machine.does({"0": "waits", "1": "waits"})
    launcher = machine.start(2, "--x", more=1)
    pids = [machine.call(i)[1] for i in range(2)]
    launcher.send_signal(name)
    out, err = launcher.communicate(timeout=60)
    assert (launcher.returncode, err) == (0, "")
    assert out.count("saved") == 2 and all(map(is_gone, pids))


def test_a_second_signal_kills(machine):
    machine.does({"0": "ignores"})
    launcher = machine.start(1, "--x")
    pid = machine.call(0)[1]
    launcher.send_signal(signal.SIGTERM)
    launcher.send_signal(signal.SIGTERM)  # the same request, which came twice
    time.sleep(signals.SAME + 0.3)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 137 and is_gone(pid)


def test_the_processes_of_a_killed_launcher_end(machine):
    machine.does({"0": "ignores"})
    launcher = machine.start(1, "--x")
    pid = machine.call(0)[1]
    launcher.kill()
    launcher.communicate(timeout=60)
    assert is_gone(pid)


def test_the_runs_after_one_that_fails_are_tried(machine):
    machine.does({"0": 5})
    code, out, err = machine.run(1, "--x", more=1)
    assert code == 5 and out.count("a line 0") == 2
    assert err.count("run: ended with code 5") == 2


def test_lines_that_nobody_reads_are_read_on(monkeypatch):
    """As behind `| head`: else the process would wait for its pipe."""

    def lost(*_, **__):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", lost)
    lines = io.StringIO("one\ntwo\n")
    local._prefix(0, lines)
    assert lines.closed
