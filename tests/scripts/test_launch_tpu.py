"""scripts/launch_tpu.sh with a stand-in for gcloud."""

import contextlib
import json
import os
import re
import signal

import pytest

from tests.scripts.cloud_stand_in import Cloud

AWKWARD = [
    "--config=configs/x.py:gmlp_xlarge",
    "--workdir=/mnt/my runs/it's",
    '--config.note=$HOME "*" \\ & ;\n#',
]


@pytest.fixture
def cloud(tmp_path):
    yield Cloud(tmp_path)
    for path in tmp_path.glob("worker */gmlp_flax/train.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        (
            {"TPU_TYPE": "v5litepod-8"},
            "--runtime-version=v2-alpha-tpuv5-lite --accelerator-type=v5litepod-8",
        ),
        (
            {"TPU_TYPE": "v9-4", "TPU_RUNTIME": "mine"},
            "--runtime-version=mine --accelerator-type=v9-4",
        ),
    ],
)
def test_create_requests_the_type_and_waits(cloud, variables, flags):
    (cloud.folder / "states").write_text("WAITING_FOR_RESOURCES PROVISIONING ACTIVE")
    code, out, err = cloud.launch("create", "--spot", **variables)
    assert code == 0, err
    request = cloud.calls()[0]
    assert request[:5] == ["compute", "tpus", "queued-resources", "create", "pod"]
    assert set(request[5:]) == {"--zone=z", "--node-id=pod", "--spot", *flags.split()}
    assert re.findall(r"pod is (\w+)", out) == ["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]


def test_failed_requests_are_one_line(cloud):
    (cloud.folder / "states").write_text("FAILED")
    code, _, err = cloud.launch("create", TPU_TYPE="v5litepod-16")
    assert code == 2
    assert "pod is FAILED" in err
    assert len(err.splitlines()) == 1


def test_setup_copies_and_installs_on_all_workers(cloud):
    for name in ("new.py", "runs/big", "-odd name's.py", "deleted.py"):
        (cloud.checkout / name).parent.mkdir(exist_ok=True)
        (cloud.checkout / name).touch()
    os.system(f"cd '{cloud.checkout}' && git add deleted.py && rm deleted.py")
    assert cloud.launch("setup")[0] == 0
    code, _, err = cloud.launch("setup", "tpu", "gcs", "wandb")  # again, over what is there
    assert code == 0, err
    for worker in range(2):
        names = {path.name for path in (cloud.folder / f"worker {worker}/gmlp_flax").iterdir()}
        assert names == {"new.py", "-odd name's.py", "scripts", ".gitignore", ".venv"}
        assert (
            cloud.on(worker, "installed")
            == "/uv/python3.12 tpu gcs\n/uv/python3.12 tpu gcs wandb\n"
        )


@pytest.mark.slow
def test_training_outlives_the_connection_and_saves_when_it_is_stopped(cloud):
    code, _, err = cloud.launch("train", "--x")
    assert code != 0
    assert "run setup first" in err
    cloud.launch("setup")
    code, _, err = cloud.launch("train", *AWKWARD)
    assert code == 0, err
    for worker in range(2):
        words = json.loads(cloud.on(worker, "gmlp_flax/train.log"))
        assert words == ["tpu,cpu", "-m", "gmlp_flax.train", *AWKWARD, "--multihost=on"]
    code, _, err = cloud.launch("train", "--other")
    assert code != 0
    assert "runs already" in err
    assert cloud.launch("stop")[0] == 0
    assert all(cloud.on(worker, "gmlp_flax/train.log").endswith("\nsaved\n") for worker in range(2))
    assert cloud.launch("train", "--other")[0] == 0


def test_logs_follow_one_worker_and_delete_removes_the_slice(cloud):
    cloud.program(cloud.bin / "tail", '#!/bin/sh\necho "$HOME $*"\n')
    assert cloud.launch("logs", "1")[:2] == (
        0,
        f"{cloud.folder}/worker 1 -n 100 -F gmlp_flax/train.log\n",
    )
    assert cloud.launch("delete")[0] == 0
    command = [
        "compute",
        "tpus",
        "queued-resources",
        "delete",
        "pod",
        "--zone=z",
        "--force",
        "--quiet",
    ]
    assert cloud.calls()[-1] == command


@pytest.mark.parametrize(
    ("command", "variables", "words"),
    [
        ("create", {"TPU_NAME": ""}, "TPU_NAME"),
        ("create", {}, "TPU_TYPE"),
        ("create", {"TPU_TYPE": "v7-16"}, "TPU_RUNTIME"),
        ("create", {"TPU_TYPE": "v5e:8x8"}, "such as v5litepod-64 for v5e:8x8"),
        ("train", {}, "--config"),
    ],
)
def test_user_errors_are_one_line(cloud, command, variables, words):
    code, out, err = cloud.launch(command, **variables)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not cloud.calls()
