"""SLURM's batch script, with stand-ins for SLURM's commands: sbatch checks and runs the script,
srun trains."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gmlp_flax.launching import engines
from gmlp_flax.launching.engines import Job, Options
from tests.executables import first_lines

AWKWARD = (
    "--config=configs/x.py:base",
    "--workdir=/runs/it's mine",
    '--config.note=$HOME "*" \\ ;\n#',
)

# Notes its own words, and runs the script at once.
SBATCH = """{python}
import json, os, re, subprocess, sys
script = open(sys.argv.pop()).read()
given = re.findall("^#SBATCH (--[a-z-]+)(?:=(\\\\S+))?$", script, re.M)
known = "job-name nodes ntasks-per-node gpus-per-node output open-mode requeue signal partition time cpus-per-task"
for name in [name for name, _ in given] + [word.partition("=")[0] for word in sys.argv[1:]]:
    if name[2:] not in known.split():
        sys.exit("sbatch: unrecognized option " + name)
if not script.startswith("#!"):
    sys.exit("sbatch: This does not look like a batch script.")
json.dump([dict(given), sys.argv[1:]], open("{folder}/sbatch.json", "w"))
open("{folder}/script", "w").write(script)
environment = {{**os.environ, "SLURM_JOB_ID": "77"}}
process = subprocess.Popen(["bash", "{folder}/script"], env=environment)
open("{folder}/shell.part", "w").write(str(process.pid))
os.rename("{folder}/shell.part", "{folder}/shell")
sys.exit(process.wait())
"""
SRUN = """{python}
import json, os, signal, sys, time
def stop(*_):
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open("{folder}/step", "w").write(str(os.getpid()))
json.dump(sys.argv[1:], open("{folder}/srun.part", "w"))
os.rename("{folder}/srun.part", "{folder}/srun.json")
does = os.environ["DOES"]
if does == "waits":
    time.sleep(60)
sys.exit(int(does))
"""
# Without --batch, scancel's signal goes to the steps and not to the script. AFTER=end: returns when
# the step has ended.
SCANCEL = """#!/bin/bash
step=$(cat "{folder}/step")
[ "$*" = "--signal=TERM 77" ] && kill -TERM "$step"
while [ "$AFTER" = end ] && kill -0 "$step" 2>/dev/null; do sleep 0.01; done
"""
SCONTROL = """#!/bin/bash
echo "$*" >>"{folder}/requeued"
"""
PROGRAM = """
import sys
from gmlp_flax.launching import engines
from gmlp_flax.launching.engines import Job, Options
sys.exit(engines.launch(engines.find("slurm", {options!r}), [Job("a-run", "/runs/x", {words})], dry_run=False))
"""
ONE = Options(topology="gpu:h100x1")


class Cluster:
    """A PATH with SLURM's commands on it."""

    def __init__(self, folder: Path):
        self.folder = folder
        programs = {"sbatch": SBATCH, "srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL}
        for name, text in programs.items():
            path = folder / name
            path.write_text(text.format(python=first_lines("-SE"), folder=folder))
            path.chmod(0o755)

    def start(
        self,
        options: Options = ONE,
        words: tuple[str, ...] = ("--x",),
        does: object = 0,
        **variables: str,
    ):
        environment = dict(os.environ)
        environment["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        environment["DOES"] = str(does)
        environment |= variables
        pipe = subprocess.PIPE
        program = PROGRAM.format(options=options, words=words)
        command = [sys.executable, "-c", program]
        return subprocess.Popen(
            command, env=environment, cwd=self.folder, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *arguments, **options) -> tuple[int, str, str]:
        with self.start(*arguments, **options) as launcher:
            output, errors = launcher.communicate(timeout=60)
            code = launcher.returncode
        return code, output, errors

    def read(self, name: str) -> str:
        """Waits for a file that a stand-in writes."""
        for _ in range(3000):
            if (self.folder / name).exists():
                return (self.folder / name).read_text()
            time.sleep(0.01)
        raise AssertionError(name)

    @property
    def requeued(self) -> bool:
        return (self.folder / "requeued").exists() and self.read("requeued") == "requeue 77\n"


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def test_one_process_per_gpu_is_submitted(cluster):
    own = ("--partition=long", "--time=24:00:00")
    options = Options(topology="gpu:h100x32", engine_flag=own)
    code, _, err = cluster.run(options, AWKWARD, SLURM_CPUS_PER_TASK="12")
    assert code == 0, err
    given, words = json.loads(cluster.read("sbatch.json"))
    assert words == list(own)
    assert given == {
        "--job-name": "a-run",
        "--nodes": "4",
        "--ntasks-per-node": "8",
        "--gpus-per-node": "8",
        "--output": "slurm-%j.log",
        "--open-mode": "append",
        "--requeue": "",
        "--signal": "B:USR1@120",
    }
    train = [sys.executable, "-m", "gmlp_flax.train", *AWKWARD, "--multihost=on"]
    assert json.loads(cluster.read("srun.json")) == [
        "--kill-on-bad-exit=1",
        "--cpus-per-task=12",
        *train,
    ]
    assert not cluster.requeued


@pytest.mark.parametrize("after", ["", "end"])
def test_the_time_limit_saves_and_requeues(cluster, after):
    """And forgets the failures before it."""
    (cluster.folder / "slurm-77.failures").write_text("failed\n" * 5)
    launcher = cluster.start(does="waits", AFTER=after, SLURM_RESTART_COUNT="99")
    cluster.read("srun.json")
    os.kill(int(cluster.read("shell")), signal.SIGUSR1)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    assert cluster.requeued
    assert not (cluster.folder / "slurm-77.failures").exists()


def test_a_stop_by_the_user_ends_the_job(cluster):
    launcher = cluster.start(does="waits")
    cluster.read("srun.json")
    subprocess.run([cluster.folder / "scancel", "--signal=TERM", "77"], check=True)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert not cluster.requeued


@pytest.mark.parametrize(
    ("code", "before", "requeued"), [(137, 4, True), (1, 5, False), (2, 0, False), (0, 3, False)]
)
def test_failures_except_user_errors_are_retried(cluster, code, before, requeued):
    """Five times, one after another; ends of the time do not count."""
    failures = cluster.folder / "slurm-77.failures"
    lines = ["failed\n"] * before
    failures.write_text("".join(lines))
    found_code, _, _ = cluster.run(does=code, SLURM_RESTART_COUNT="99")
    assert found_code == code
    assert cluster.requeued == requeued
    assert failures.exists() == (code != 0)


def test_the_printed_script_is_the_submitted_one(cluster):
    options = Options(topology="gpu:h100x8", gpus_per_node=4, engine_flag=("--partition=a b",))
    cluster.run(options, AWKWARD)
    shown = engines.find("slurm", options).show(Job("a-run", "/runs/x", AWKWARD))
    script, command = re.fullmatch(r"(.*\n)# submitted by: (.*)", shown, re.S).groups()
    assert script == cluster.read("script")
    assert "--nodes=2" in script
    assert command == "sbatch '--partition=a b' a-run.sbatch"
