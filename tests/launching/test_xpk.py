"""XPK's command, as the real xpk reads it: its dry run writes the Kubernetes manifest, whose script
is run here."""

import json
import os
import shlex
import signal
import subprocess
import time

import pytest
import yaml

from gmlp_flax.launching.engines import Job, Options, Xpk
from gmlp_flax.planning.chips import CHIPS
from tests.executables import first_lines
from tests.launching import golden, tools

# `python` in the container: writes down its arguments, and saves at a signal to stop.
TRAINING = """{python}
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
json.dump([sys.argv[1:], os.environ["JAX_PLATFORMS"]], open("{folder}/part", "w"))
os.rename("{folder}/part", "{folder}/call")
time.sleep(60)
"""
TYPES = """
import json, sys
from xpk.core.system_characteristics import get_system_characteristics_by_device_type as find
print(json.dumps([found and found.topology for found, _ in map(find, json.load(sys.stdin))]))
"""
CLI = "import sys; from xpk.main import main; sys.argv[0] = 'xpk'; main()"


def manifest(name: str, folder) -> dict:
    """The manifest that the real xpk makes of a golden call."""
    python = tools.python_with("xpk", "xpk")
    words = shlex.split(golden.expected(name))
    path = folder / "manifest.yaml"
    more = ["--dry-run", "--quiet", "--skip-validation", f"--output-manifest-file={path}"]
    done = tools.run(python, "-c", CLI, *words[1:], *more, home=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return yaml.safe_load(path.read_text())


@pytest.mark.slow
def test_xpk_writes_the_intended_manifest(tmp_path):
    made = manifest("xpk_two_slices", tmp_path)
    (slices,) = made["spec"]["replicatedJobs"]
    assert made["metadata"]["name"] == "base-1"
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 100
    job = slices["template"]["spec"]
    pod = job["template"]["spec"]
    assert slices["replicas"] == 2
    assert job["completions"] == 2
    assert pod["priorityClassName"] == "high"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x2x2"
    assert pod["containers"][0]["image"] == "gcr.io/my-project/gmlp"
    (rule,) = job["podFailurePolicy"]["rules"]
    restarted = rule["onExitCodes"]["values"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"]["operator"] == "NotIn"
    assert {1, 75, 137, 143} <= set(restarted)
    assert not {0, 2} & set(restarted)


@pytest.mark.slow
def test_the_container_forwards_arguments_signals_and_exit_codes(tmp_path):
    made = manifest("xpk", tmp_path)
    container = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    shell, flag, script = container["command"]
    assert (shell, flag) == ("bash", "-c")
    script = script.replace("$$", "$")  # as Kubernetes does
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(TRAINING.format(python=first_lines(), folder=tmp_path))
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    process = subprocess.Popen(
        [shell, flag, script], env=os.environ | {"PATH": path}, stdout=subprocess.DEVNULL
    )
    try:
        while not (tmp_path / "call").exists():
            time.sleep(0.05)
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 75
    finally:
        process.kill()
    words, platforms = json.loads((tmp_path / "call").read_text())
    given = [word for word in golden.CALLS["xpk"] if word.startswith(("--config", "--workdir"))]
    assert words == ["-m", "gmlp_flax.train", *given, "--multihost=on", "--stopped_code=75"]
    assert platforms == "tpu,cpu"


@pytest.mark.slow
def test_types_of_slices_exist_in_xpk(tmp_path):
    """Every slice that the engine offers, except one that xpk does not have."""
    python = tools.python_with("xpk", "xpk")
    types = []
    expected = []
    for kind in Xpk.kinds:
        for shape in CHIPS[kind].slices:
            topology = f"{kind}:{shape}"
            if topology != "v5e:2x2":
                types.append(tpu_type(topology))
                expected.append(shape)
    done = tools.run(python, "-c", TYPES, home=tmp_path, input=json.dumps(types))
    shapes = json.loads(done.stdout.splitlines()[-1])
    assert shapes == expected, types


def tpu_type(topology):
    """The type of a slice in xpk's command."""
    options = Options(cluster="c", zone="z", project="p", image="i", topology=topology)
    job = Job("run", "gs://b/x", ("--x",))
    command, *_ = Xpk("xpk", options).specification(job)
    [flag] = [word for word in command if word.startswith("--tpu-type=")]
    return flag.removeprefix("--tpu-type=")
