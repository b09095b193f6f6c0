"""A stand-in for gcloud, which refuses flags that the real one would refuse, and a checkout to
launch from.

Its two workers are folders: `ssh` runs commands there with bash, so quoting, logs, signals and exit
codes are real.
"""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from tests.executables import first_lines

ROOT = Path(__file__).resolve().parents[2]

# gcloud as `gcloud compute tpus ... --help` describes it, version 528: the flags of each command.
# The states that `describe` prints, one after the other, are in the file `states`.
GCLOUD = """{python}
import json, os, shutil, subprocess, sys
folder = "{folder}"
flags_of = {{
    "queued-resources create": "--zone --runtime-version --accelerator-type --node-id --spot --reserved",
    "queued-resources describe": "--zone --format", "queued-resources delete": "--zone --force --quiet",
    "tpu-vm ssh": "--zone --command --worker", "tpu-vm scp": "--zone --worker",
}}
words = sys.argv[1:]
with open(folder + "/calls.jsonl", "a") as file:
    file.write(json.dumps(words) + "\\n")
command, rest = " ".join(words[2:4]), words[4:]
flags = dict(word.partition("=")[::2] for word in rest if word.startswith("--"))
if words[:2] != ["compute", "tpus"] or not set(flags) <= {{"--project", *flags_of[command].split()}}:
    sys.exit("ERROR: (gcloud) unrecognized arguments: " + " ".join(words))
if command.endswith("describe"):
    state, *more = open(folder + "/states").read().split()
    open(folder + "/states", "w").write(" ".join(more or [state]))
    print(state)
running = []
for worker in range(2):
    home = folder + "/worker " + str(worker)
    os.makedirs(home, exist_ok=True)
    if flags.get("--worker") in ("all", str(worker)):
        if command.endswith("scp"):
            shutil.copy(rest[0], home)
        else:
            run = ["bash", "-c", flags["--command"]]
            running.append(subprocess.Popen(run, cwd=home, env={{**os.environ, "HOME": home}}))
sys.exit(max((process.wait() for process in running), default=0))
"""

# Training: writes down its arguments, and saves at a signal to stop.
TRAINING = """{python}
import json, os, signal, sys, time
def stop(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print(json.dumps([os.environ["JAX_PLATFORMS"], *sys.argv[1:]]), flush=True)
time.sleep(60)
"""
SETUP = """#!/usr/bin/env bash
echo "$PYTHON $*" >>"$HOME/installed"
cd "$(dirname "$0")/.." && mkdir -p .venv/bin && cp "{folder}/training" .venv/bin/python
"""
UV = '#!/bin/sh\nif [ "$1 $2" = "python find" ]; then echo /uv/python$3; fi\n'


class Cloud:
    """A checkout, a gcloud with two workers, and what launch_tpu.sh does with them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.checkout = folder / "a checkout"
        self.bin = folder / "bin"
        (self.checkout / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy(ROOT / "scripts/launch_tpu.sh", self.checkout / "scripts")
        names = {"python": first_lines("-SE"), "folder": folder}
        self.program(self.checkout / "scripts/setup.sh", SETUP.format(**names))
        self.program(folder / "training", TRAINING.format(**names))
        self.program(self.bin / "gcloud", GCLOUD.format(**names))
        self.program(self.bin / "uv", UV)
        self.program(self.bin / "curl", "#!/bin/sh\n")
        (self.checkout / ".gitignore").write_text("runs/\n")
        subprocess.run(["git", "init", "-q", self.checkout], check=True)
        (folder / "states").write_text("ACTIVE")

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def launch(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        """Runs the script; returns its exit code and what it printed."""
        environment = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "TPU_NAME": "pod",
            "TPU_ZONE": "z",
            "TPU_INTERVAL": "0",
        }
        for name, value in os.environ.items():
            if name != "PATH" and not name.startswith(("JAX_PLATFORMS", "TPU_")):
                environment[name] = value
        command = [self.checkout / "scripts/launch_tpu.sh", *arguments]
        # Files, not pipes: training outlives the command, and would keep a pipe open.
        output = self.folder / "out"
        errors = self.folder / "err"
        with output.open("w+") as stdout, errors.open("w+") as stderr:
            done = subprocess.run(
                command, env=environment | variables, stdout=stdout, stderr=stderr, timeout=60
            )
        return done.returncode, output.read_text(), errors.read_text()

    def calls(self) -> list[list[str]]:
        """The words of all calls of gcloud."""
        path = self.folder / "calls.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines()
        return [json.loads(line) for line in lines]

    def on(self, worker: int, name: str) -> str:
        """The text of a worker's file, once something is in it."""
        path = self.folder / f"worker {worker}" / name
        for _ in range(3000):
            if path.exists() and path.read_text():
                return path.read_text()
            time.sleep(0.01)
        raise AssertionError(path)
