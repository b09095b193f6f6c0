"""A stand-in for gcloud, which refuses what the real one would refuse, and a checkout to launch from.

Its workers are folders: `ssh` runs commands there with bash, so that quoting, logs, signals and exit codes are real.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# gcloud as `gcloud compute tpus ... --help` describes it, version 528: required and further flags of each command.
GCLOUD = """#!{python} -SE
import json, os, shutil, signal, subprocess, sys
folder, NODE, REQUEST = "{folder}", "compute tpus tpu-vm ", "compute tpus queued-resources "
flags_of = {{
    NODE + "create": ("--zone --version", "--accelerator-type --spot --reserved --network"),
    NODE + "describe": ("--zone", "--format"), NODE + "delete": ("--zone", "--quiet --async"),
    NODE + "ssh": ("--zone --command", "--worker"), NODE + "scp": ("--zone", "--worker --recurse"),
    REQUEST + "create": ("--zone --runtime-version --accelerator-type --node-id", "--spot --reserved --network"),
    REQUEST + "describe": ("--zone", "--format"), REQUEST + "delete": ("--zone", "--force --quiet --async"),
}}
switches = "--spot --reserved --quiet --async --force --recurse".split()
words = sys.argv[1:]
with open(folder + "/calls.jsonl", "a") as file:
    file.write(json.dumps(words) + "\\n")
def fail(message, code=1):
    print("ERROR: (gcloud) " + message, file=sys.stderr)
    raise SystemExit(code)
command, rest = " ".join(words[:4]), words[4:]
if command not in flags_of:
    fail("Invalid choice: " + command, 2)
kind, verb = words[2:4]
required, further = (text.split() for text in flags_of[command])
flags = dict(word.partition("=")[::2] for word in rest if word.startswith("--"))
for flag, value in flags.items():
    if flag not in [*required, *further, "--project"] or (flag in switches) != (value == ""):
        fail("unrecognized arguments: " + flag, 2)
if missing := [flag for flag in required if flag not in flags]:
    fail("Must be specified: " + " ".join(missing), 2)
names = [word for word in rest if not word.startswith("--")]
if len(names) != (2 if verb == "scp" else 1):
    fail("wrong names " + " ".join(names), 2)
world = json.load(open(folder + "/world.json"))
homes = [folder + "/worker " + str(i) for i in range(2)]
def save():
    json.dump(world, open(folder + "/world.json", "w"))
def end_machines():
    for home in homes:
        if os.path.exists(home + "/gmlp_flax_training/pid"):
            try:
                os.kill(int(open(home + "/gmlp_flax_training/pid").read()), signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(home, ignore_errors=True)
if verb == "create":
    if world[kind]:
        fail("ALREADY_EXISTS: " + names[0])
    world[kind] = "READY" if kind == "tpu-vm" else "WAITING_FOR_RESOURCES"
    if kind == "queued-resources":
        world["next"][kind][:0] = ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
        world["tpu-vm"] = "READY"
    for home in homes:
        os.makedirs(home)
    save()
elif verb == "delete":
    if not world[kind]:
        fail("NOT_FOUND: Resource was not found")
    world[kind] = world["tpu-vm"] = None
    end_machines()
    save()
elif verb == "describe":
    if world["next"][kind]:
        world[kind] = world["next"][kind].pop(0)
        save()
        if world[kind] == "UNREACHABLE":
            fail("the network is down")
        if world[kind] in ("PREEMPTED", "SUSPENDED"):
            end_machines()
    if not world[kind]:
        fail("NOT_FOUND: Resource was not found")
    if flags.get("--format") != ("value(state)" if kind == "tpu-vm" else "value(state.state)"):
        fail("this is not the format of a state")
    print(world[kind])
    print("Updates are available for some Google Cloud CLI components.", file=sys.stderr)
else:
    if world["tpu-vm"] != "READY":
        fail("no such node", 255)
    which = flags.get("--worker", "0")
    running = []
    for home in homes if which == "all" else [homes[int(which)]]:
        if verb == "scp":
            shutil.copy(names[0], home)
        else:
            environment = {{**os.environ, "HOME": home}}
            running.append(subprocess.Popen(["bash", "-c", flags["--command"]], cwd=home, env=environment))
    raise SystemExit(max((process.wait() for process in running), default=0))
"""

# What training does on a worker: notes its arguments, and ends as does.json says: its next code, or after SIGTERM.
TRAINING = """#!{python} -SE
import json, os, signal, sys, time
home = os.environ["HOME"]
does = json.load(open("{folder}/does.json"))
with open("{folder}/trained.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
starts = len(open("{folder}/trained.jsonl").readlines())
def stop(*_):
    print("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("a step on", home[-1], os.environ["JAX_PLATFORMS"], flush=True)
code = does[min((starts - 1) // 2, len(does) - 1)]
if code == "waits":
    time.sleep(60)
sys.exit(code)
"""
SETUP = """#!/usr/bin/env bash
echo "$PYTHON $*" >>"$HOME/installed"
cd "$(dirname "$0")/.." && mkdir -p .venv/bin && cp "{folder}/training" .venv/bin/python
"""
TOOLS = {
    "uv": 'if [ "$1 $2" = "python find" ]; then echo /uv/python$3; fi',
    "mountpoint": "exit 1",
    "sudo": 'exec "$@"',
    "gcsfuse": 'echo "$@" >>"$HOME/mounted"',
}


class Cloud:
    """A checkout, a gcloud with two workers, and what launch_tpu.sh does with them."""

    def __init__(self, folder: Path):
        self.folder, self.checkout, self.bin = folder, folder / "a checkout", folder / "bin"
        (self.checkout / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("launch_tpu.sh", "tpu_worker.sh"):
            shutil.copy(ROOT / "scripts" / name, self.checkout / "scripts")
        names = {"python": sys.executable, "folder": folder}
        self.program(self.checkout / "scripts/setup.sh", SETUP.format(**names))
        self.program(folder / "training", TRAINING.format(**names))
        self.program(self.bin / "gcloud", GCLOUD.format(**names))
        for name, does in TOOLS.items():
            self.program(self.bin / name, f"#!/bin/sh\n{does}\n")
        (self.checkout / ".gitignore").write_text("runs/\n")
        subprocess.run(["git", "init", "-q", self.checkout], check=True)
        self.does("waits")
        (folder / "world.json").write_text(json.dumps({"tpu-vm": None, "queued-resources": None}))
        self.then()

    def program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def does(self, *codes: object) -> None:
        """What training does at its first start on both workers, at its second, and so on."""
        (self.folder / "does.json").write_text(json.dumps(codes))

    def launch(self, *arguments: str, **variables: str) -> tuple[int, str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
        environment = kept | {"PATH": f"{self.bin}:{os.environ['PATH']}"} | variables
        # Files, not pipes: training goes on after the command, and would keep a pipe open.
        with (self.folder / "out").open("w+") as out, (self.folder / "err").open("w+") as err:
            done = subprocess.run(
                [self.checkout / "scripts/launch_tpu.sh", *arguments],
                env=environment,
                stdout=out,
                stderr=err,
                timeout=60,
            )
            return done.returncode, (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def then(self, node: tuple = (), request: tuple = ()) -> None:
        """The next looks at the node and at the request find these states."""
        state = json.loads((self.folder / "world.json").read_text())
        state["next"] = {"tpu-vm": node, "queued-resources": request}
        (self.folder / "world.json").write_text(json.dumps(state))

    def records(self, name: str) -> list[list[str]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def trained(self, starts: int) -> list[list[str]]:
        """Training's arguments, once it has begun on both workers so many times."""
        for _ in range(3000):
            if len(calls := self.records("trained.jsonl")) == 2 * starts:
                return calls
            time.sleep(0.01)
        raise AssertionError(calls)

    def verbs(self) -> list[str]:
        """The calls of gcloud that change something, or that run something, in order."""
        script = "gmlp_flax/scripts/tpu_worker.sh "
        told = [
            next((word.partition(script)[2].split()[0] for word in call if script in word), call[3])
            for call in self.records("calls.jsonl")
        ]
        return [verb for verb in told if verb not in ("describe", "status")]

    def on(self, worker: int, name: str) -> str:
        return (self.folder / f"worker {worker}" / name).read_text()
