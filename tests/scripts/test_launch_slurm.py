"""scripts/launch_slurm.sh with stand-ins for SLURM's commands: sbatch checks and runs the script, srun trains."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/launch_slurm.sh"
AWKWARD = ["--config=configs/x.py:base", "--workdir=/runs/it's mine", '--config.note=$HOME "*" \\ ;\n#']

# Takes the script from standard input, as sbatch does without a file, notes its own words, and runs the script at once.
SBATCH = """#!{python} -SE
import json, os, re, subprocess, sys
script = sys.stdin.read()
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
SRUN = """#!{python} -SE
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
# Without --batch, scancel's signal goes to the steps and not to the script. AFTER=end: returns when the step has ended.
SCANCEL = """#!/bin/bash
step=$(cat "{folder}/step")
[ "$*" = "--signal=TERM 77" ] && kill -TERM "$step"
while [ "$AFTER" = end ] && kill -0 "$step" 2>/dev/null; do sleep 0.01; done
"""
SCONTROL = """#!/bin/bash
echo "$*" >>"{folder}/requeued"
"""


class Cluster:
    """A PATH with SLURM's commands on it."""

    def __init__(self, folder: Path):
        self.folder = folder
        for name, text in {"sbatch": SBATCH, "srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL}.items():
            path = folder / name
            path.write_text(text.format(python=sys.executable, folder=folder))
            path.chmod(0o755)

    def start(self, *arguments: str, does: object = 0, **variables: str) -> subprocess.Popen:
        mine = {"PATH": f"{self.folder}:{os.environ['PATH']}", "PYTHON": sys.executable, "DOES": str(does)}
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [SCRIPT, *arguments], env=os.environ | mine | variables, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, *arguments: str, does: object = 0, **variables: str) -> tuple[int, str, str]:
        with self.start(*arguments, does=does, **variables) as launcher:
            out, err = launcher.communicate(timeout=60)
        return launcher.returncode, out, err

    def read(self, name: str) -> str:
        """A file that a stand-in writes, once it is there."""
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


def test_submits_one_process_a_gpu(cluster):
    code, _, err = cluster.run("--nodes=4", "--gpus=8", "--partition=long", "--time=24:00:00", "--", *AWKWARD)
    assert code == 0, err
    given, words = json.loads(cluster.read("sbatch.json"))
    assert words == ["--partition=long", "--time=24:00:00"]
    assert given == {
        "--job-name": "gmlp_flax", "--nodes": "4", "--ntasks-per-node": "8", "--gpus-per-node": "8",
        "--output": "slurm-%j.log", "--open-mode": "append", "--requeue": "", "--signal": "B:USR1@120",
    }
    assert json.loads(cluster.read("srun.json")) == [
        "--kill-on-bad-exit=1", sys.executable, "-m", "gmlp_flax.train", *AWKWARD, "--multihost=on"
    ]
    assert not cluster.requeued


def test_cpus_are_handed_on(cluster):
    cluster.run("--nodes=1", "--gpus=1", "--", "--x", SLURM_CPUS_PER_TASK="12")
    assert json.loads(cluster.read("srun.json"))[1] == "--cpus-per-task=12"


@pytest.mark.parametrize("after", ["", "end"])
def test_end_of_the_time_saves_and_requeues(cluster, after):
    launcher = cluster.start("--nodes=1", "--gpus=1", "--", "--x", does="waits", AFTER=after)
    cluster.read("srun.json")
    os.kill(int(cluster.read("shell")), signal.SIGUSR1)
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    assert cluster.requeued


def test_stop_by_the_user_ends_the_job(cluster):
    launcher = cluster.start("--nodes=1", "--gpus=1", "--", "--x", does="waits")
    cluster.read("srun.json")
    subprocess.run([cluster.folder / "scancel", "--signal=TERM", "77"], check=True)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0 and not cluster.requeued


@pytest.mark.parametrize(("code", "restarts", "requeued"), [(1, "", True), (137, "4", True), (1, "5", False),
                                                            (2, "", False), (0, "3", False)])
def test_failures_but_mistakes_are_tried_again(cluster, code, restarts, requeued):
    assert cluster.run("--nodes=1", "--gpus=1", "--", "--x", does=code, SLURM_RESTART_COUNT=restarts)[0] == code
    assert cluster.requeued == requeued


def test_dry_run_prints_what_is_submitted(cluster):
    words = ["--nodes=2", "--gpus=4", "--partition=a b", "--", *AWKWARD]
    code, printed, err = cluster.run("--dry_run", *words)
    assert (code, err) == (0, "") and not (cluster.folder / "sbatch.json").exists()
    cluster.run(*words)
    script, command = re.fullmatch(r"(.*\n)# submitted by: (.*)\n", printed, re.S).groups()
    assert script == cluster.read("script")
    assert command == r"sbatch --partition=a\ b"


@pytest.mark.parametrize(("arguments", "words"), [
    (["--gpus=8", "--", "--x"], "--nodes"), (["--nodes=2", "--", "--x"], "--gpus"),
    (["--nodes=0", "--gpus=8", "--", "--x"], "'0'"), (["--nodes=2", "--gpus=all", "--", "--x"], "'all'"),
    (["--nodes=2", "--gpus=8"], "nothing to run"), (["--nodes=2", "--gpus=8", "--"], "nothing to run"),
    (["--nodes=2", "--gpus=8", "configs/x.py"], "'configs/x.py'"),
    (["--nodes=2", "--gpus=8", "--ntasks=3", "--", "--x"], "--ntasks"),
])
def test_mistakes_are_one_line(cluster, arguments, words):
    code, out, err = cluster.run(*arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1


def test_missing_sbatch_is_one_line(cluster):
    for tool in ("bash", "dirname"):
        (cluster.folder / tool).symlink_to(shutil.which(tool))
    (cluster.folder / "sbatch").unlink()
    code, _, err = cluster.run("--nodes=1", "--gpus=1", "--", "--x", PATH=str(cluster.folder))
    assert code == 2 and "no sbatch" in err and len(err.splitlines()) == 1
