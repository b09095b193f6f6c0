"""SkyPilot's task files, read back by YAML and bash, and by the real skypilot if it is here."""

import json
import os
import subprocess

import pytest
import yaml

from tests.executables import first_lines
from tests.launching import golden, tools

TASK = """
import json, sys
import sky
task = sky.Task.from_yaml(sys.argv[1])
(found,) = task.resources
print(json.dumps([task.name, task.num_nodes, found.accelerators, found.use_spot, found.accelerator_args,
    str(found.cloud), found.region, found.job_recovery]))
"""
TPU_VERSION = {"runtime_version": "v2-alpha-tpuv5-lite"}
# As any program of the run: prints how it was called.
PRINT = "{python}\nimport json, os, sys\nprint(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]))\n"


def task(name: str) -> tuple[str, dict]:
    """The text of a golden call's task file, and its content."""
    text, _, command = golden.expected(name).partition("# submitted by: ")
    assert command == "sky jobs launch --yes --async base-1.yaml\n"
    return text, yaml.safe_load(text)


def given(name: str) -> list[str]:
    return [word for word in golden.CALLS[name] if word.startswith(("--config", "--workdir"))]


def called(run: str, program: str, folder, **variables: str) -> list[str]:
    """What bash calls for a task's `run`, which begins with a program."""
    path = folder / program
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PRINT.format(python=first_lines()))
    path.chmod(0o755)
    variables = {"PATH": f"{folder}:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        ["bash", "-c", run],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_arguments_reach_training_and_nodes_find_each_other(tmp_path):
    train = ["python", "-m", "gmlp_flax.train"]
    words = called(task("skypilot_tpu")[1]["run"], ".venv/bin/python", tmp_path)
    assert words == [*train, *given("skypilot_tpu"), "--stopped_code=75", "--multihost=on"]
    _, said = task("skypilot_gpu")
    variables = {
        "SKYPILOT_NODE_IPS": "10.0.0.5\n10.0.0.6",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_RANK": "1",
    }
    words = called(said["run"], ".venv/bin/python", tmp_path, **variables)
    joining = ["--coordinator=10.0.0.5:8476", "--processes=2", "--process=1"]
    assert words == [*train, *given("skypilot_gpu"), "--stopped_code=75", *joining]
    assert said["file_mounts"] == {"/mnt/runs": {"source": "gs://my-bucket", "mode": "MOUNT"}}
    assert said["setup"].endswith("scripts/setup.sh cuda gcs")
    assert said["workdir"] == "."


def test_arguments_reach_training_in_a_container(tmp_path):
    _, said = task("skypilot_image")
    words = called(said["run"], "sudo", tmp_path)
    image = words.index("gcr.io/my-project/gmlp")
    assert words[:3] == ["sudo", "docker", "run"]
    assert {"--gpus=all", "--volume=/mnt/runs:/mnt/runs"} < set(words[:image])
    assert words[image + 1 :] == [
        "python",
        "-m",
        "gmlp_flax.train",
        *given("skypilot_image"),
        "--stopped_code=75",
    ]
    assert "workdir" not in said
    assert "setup" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("skypilot_tpu", [1, {"tpu-v5litepod-16": 1}, True, TPU_VERSION, "GCP", "us-central1"]),
        ("skypilot_gpu", [2, {"H100": 8}, False, None, "None", None]),
        ("skypilot_image", [1, {"A100-80GB": 8}, True, None, "None", None]),
    ],
)
def test_skypilot_reads_the_intended_resources(tmp_path, name, expected):
    python = tools.python_with("sky", "sky")
    file = tmp_path / "task.yaml"
    file.write_text(task(name)[0])
    done = tools.run(python, "-c", TASK, str(file), home=tmp_path)
    assert done.returncode == 0, done.stderr
    *found, recovery = json.loads(done.stdout.splitlines()[-1])
    assert found == ["base-1", *expected]
    assert {"max_restarts_on_errors": 3, "recover_on_exit_codes": [75]}.items() <= recovery.items()
