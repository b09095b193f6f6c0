"""scripts/launch_tpu.sh with a stand-in for gcloud."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from tests.scripts.cloud_stand_in import Cloud

AWKWARD = ["--config=configs/x.py:gmlp_xlarge", "--workdir=/mnt/my runs/it's", '--config.note=$HOME "*" \\ & ;\n#']
PLACE = ["--name=pod", "--zone=us-central1-a"]
POD, SMALL = [*PLACE, "--type=v5litepod-16"], [*PLACE, "--type=v5litepod-8"]


def ready(cloud: Cloud) -> None:
    assert cloud.launch("create", *SMALL)[0] == cloud.launch("setup", *SMALL)[0] == 0


@pytest.fixture
def cloud(tmp_path):
    yield Cloud(tmp_path)
    for path in tmp_path.glob("worker */gmlp_flax_training/pid"):
        if not path.with_name("code").exists():
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                pass


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--type=v5litepod-8"],
            "tpu-vm create pod --zone=z --version=v2-alpha-tpuv5-lite --accelerator-type=v5litepod-8",
        ),
        (
            ["--type=v4-32", "--project=p"],
            "queued-resources create pod --zone=z --project=p --node-id=pod "
            "--runtime-version=tpu-ubuntu2204-base --accelerator-type=v4-32",
        ),
        (
            ["--type=v6e-8", "--spot"],
            "queued-resources create pod --zone=z --node-id=pod "
            "--runtime-version=v2-alpha-tpuv6e --accelerator-type=v6e-8 --spot",
        ),
        (
            ["--type=v5p-128", "--direct", "--spot", "--create_flag=--reserved"],
            "tpu-vm create pod --zone=z --version=v2-alpha-tpuv5 --accelerator-type=v5p-128 --spot --reserved",
        ),
        (
            ["--type=v9-4", "--runtime=mine", "--queued"],
            "queued-resources create pod --zone=z --node-id=pod --runtime-version=mine --accelerator-type=v9-4",
        ),
    ],
)
def test_create_asks_for_the_type(cloud, options, words):
    code, out, err = cloud.launch("create", "--name=pod", "--zone=z", "--interval=0", *options)
    assert code == 0, err
    assert cloud.records("calls.jsonl")[0] == ["compute", "tpus", *words.split()]


def test_create_waits_in_the_queue(cloud):
    code, _, err = cloud.launch("create", *POD, "--interval=0")
    assert code == 0
    assert re.findall(r"pod is (\w+)", err) == ["WAITING_FOR_RESOURCES", "PROVISIONING"]


def test_request_that_fails_is_one_line(cloud):
    gcloud = cloud.bin / "gcloud"
    gcloud.write_text(gcloud.read_text().replace('"PROVISIONING", "ACTIVE"', '"FAILED"'))
    code, _, err = cloud.launch("create", *POD, "--interval=0")
    assert code == 1 and "FAILED" in err.splitlines()[-1]


def test_setup_copies_and_installs_on_all_workers(cloud):
    for name in ("new.py", "runs/big", "-odd name's.py"):
        (cloud.checkout / name).parent.mkdir(exist_ok=True)
        (cloud.checkout / name).touch()
    cloud.launch("create", *SMALL)
    bucket = cloud.folder / "mnt" / "runs"
    code, _, err = cloud.launch("setup", *PLACE, "--extras=tpu,gcs,wandb", f"--mount=my-bucket:{bucket}")
    assert code == 0, err
    for worker in range(2):
        copied = cloud.folder / f"worker {worker}" / "gmlp_flax"
        names = {path.name for path in copied.iterdir()}
        assert names == {"new.py", "-odd name's.py", "scripts", ".gitignore", ".venv"}
        assert cloud.on(worker, "installed") == "/uv/python3.12 tpu gcs wandb\n"
        assert cloud.on(worker, "mounted").endswith(f"my-bucket {bucket}\n")
    assert cloud.launch("setup", *PLACE)[0] == 0  # again, over what is there


def test_run_survives_the_connection_and_stop_saves(cloud):
    ready(cloud)
    code, out, err = cloud.launch("run", *PLACE, "--", *AWKWARD)
    assert code == 0, err
    assert out.count("training running") == 2
    assert cloud.trained(1) == 2 * [["-m", "gmlp_flax.train", *AWKWARD, "--multihost=on", "--stopped_code=75"]]
    code, out, _ = cloud.launch("status", *SMALL)
    assert code == 0 and out.splitlines()[0] == "READY" and out.count("training running, process") == 2
    code, _, err = cloud.launch("run", *PLACE, "--", "--other")
    assert code != 0 and "runs already" in err
    assert cloud.launch("stop", *PLACE)[1].count("training stopped by hand") == 2
    for worker in range(2):
        log = cloud.on(worker, "gmlp_flax_training/log")
        assert f"a step on {worker} tpu,cpu" in log and log.endswith("saved\n")


def test_logs_follow_one_worker(cloud):
    cloud.program(cloud.bin / "tail", '#!/bin/sh\nprintf "%s " "$@"\n')
    ready(cloud)
    code, out, _ = cloud.launch("logs", *PLACE, "--worker=1")
    assert (code, out) == (0, f"-n 100 -F {cloud.folder}/worker 1/gmlp_flax_training/log ")


def test_run_before_setup_says_so(cloud):
    cloud.launch("create", *SMALL)
    assert cloud.launch("run", *PLACE, "--", "--x")[0] != 0
    cloud.launch("setup", *PLACE)
    shutil.rmtree(cloud.folder / "worker 1/gmlp_flax/.venv")
    code, _, err = cloud.launch("run", *PLACE, "--", "--x")
    assert code == 2 and "run setup first" in err


@pytest.mark.parametrize("options", [SMALL, POD])
def test_delete_removes_what_create_made(cloud, options):
    cloud.launch("create", *options, "--interval=0")
    assert cloud.launch("delete", *options)[0] == 0
    world = json.loads((cloud.folder / "world.json").read_text())
    assert world["tpu-vm"] is world["queued-resources"] is None


@pytest.mark.parametrize("command", ["create", "setup", "run", "status", "stop", "logs", "delete"])
def test_dry_run_prints_what_is_run(cloud, command):
    ready(cloud)
    cloud.does(0)
    words = [command, *SMALL, "--mount=b:" + str(cloud.folder / "mnt")] + (["--", *AWKWARD] if command == "run" else [])
    cloud.program(cloud.bin / "tail", "#!/bin/sh\n")
    if command == "create":
        cloud.launch("delete", *SMALL)
    (cloud.folder / "calls.jsonl").unlink()
    code, out, err = cloud.launch(command, "--dry_run", *words[1:])
    assert (code, err) == (0, "") and not (cloud.folder / "calls.jsonl").exists()
    cloud.launch(*words)
    run = cloud.records("calls.jsonl")
    # The shell reads the printed lines back, with a gcloud that does nothing but note.
    cloud.program(cloud.bin / "gcloud", f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    again = subprocess.run(["/bin/sh", "-c", out], env={"PATH": str(cloud.bin)}, capture_output=True, text=True)
    assert [json.loads(line) for line in again.stdout.splitlines()] == run


def test_dry_run_needs_no_gcloud(cloud):
    out = cloud.launch("run", "--retry", *POD, "--spot", "--dry_run", "--", "--x", PATH="/usr/bin:/bin")[1]
    verbs = re.findall(r"(?:tpu-vm|queued-resources) (\w+) ", out)
    assert verbs == "ssh describe describe ssh delete create describe describe scp ssh ssh".split()


def test_retry_makes_everything_and_ends_with_the_training(cloud):
    cloud.does(0)
    code, _, err = cloud.launch("run", "--retry", *POD, "--interval=0", "--", *AWKWARD)
    assert code == 0, err
    assert cloud.verbs() == ["create", "scp", "install", "start"]
    assert "training has ended on all workers" in err


@pytest.mark.parametrize("options", [SMALL, POD])
def test_retry_begins_again_after_preemption(cloud, options):
    cloud.does("waits", 0)
    cloud.launch("create", *options, "--interval=0")
    if options is SMALL:
        cloud.then(node=("READY", "READY", "PREEMPTED"))
    else:
        cloud.then(request=("ACTIVE", "ACTIVE", "SUSPENDED"))
    code, _, err = cloud.launch("run", "--retry", *options, "--interval=0", "--", *AWKWARD)
    assert code == 0, err
    # The slice that is there has to be set up, too: that is found out by asking.
    assert cloud.verbs()[1:] == ["scp", "install", "start", "delete", "create", "scp", "install", "start"]
    assert cloud.trained(2) == 4 * [["-m", "gmlp_flax.train", *AWKWARD, "--multihost=on", "--stopped_code=75"]]


@pytest.mark.parametrize("lost", ["PREEMPTED", "SUSPENDED", "TERMINATED"])
def test_retry_goes_on_when_the_slice_is_lost_while_it_is_made_again(cloud, lost):
    cloud.does("waits", 0)
    cloud.launch("create", *POD, "--interval=0")
    cloud.launch("setup", *POD)
    remade = ("SUSPENDED", "WAITING_FOR_RESOURCES", lost) if lost == "SUSPENDED" else ("SUSPENDED", "ACTIVE")
    cloud.then(request=("ACTIVE", "ACTIVE", *remade), node=() if lost == "SUSPENDED" else ("READY", "READY", lost))
    code, _, err = cloud.launch("run", "--retry", *POD, "--interval=0", "--", "--x")
    assert code == 0, err
    assert cloud.verbs().count("create") >= 2 and "training has ended on all workers" in err


def test_what_the_machine_stops_is_started_again_and_counts_as_no_failure(cloud):
    ready(cloud)
    cloud.does(75, 75, 75, 75, 75, 0)
    code, _, err = cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--x")
    assert code == 0 and "stopped by its machine, and started again" in err
    assert cloud.verbs().count("start") == 6


def test_what_is_stopped_by_hand_is_not_started_again(cloud):
    ready(cloud)
    cloud.launch("run", *SMALL, "--", "--x")
    cloud.trained(1)
    for worker in range(2):
        (cloud.folder / f"worker {worker}/gmlp_flax_training/stopped").touch()
        os.kill(int(cloud.on(worker, "gmlp_flax_training/pid")), signal.SIGKILL)
    assert cloud.launch("status", *SMALL)[1].count("training stopped by hand") == 2
    cloud.does("waits", 0)
    assert cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--x")[0] == 0  # asked for anew, it goes on
    assert cloud.verbs().count("start") == 2


def test_retry_does_not_take_another_run_for_its_own(cloud):
    ready(cloud)
    cloud.launch("run", *SMALL, "--", "--workdir=gs://a/base")
    cloud.trained(1)
    code, _, err = cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--workdir=gs://b/base")
    assert code == 2 and "pod trains another run: stop it first, or give another --name" in err.splitlines()[-1]
    assert cloud.verbs().count("start") == 1


def test_a_run_goes_on_with_the_code_that_it_began_with(cloud):
    """The checkout is edited by training itself, after its first start."""
    (cloud.checkout / "code.py").write_text("lr = 1\n")
    cloud.does("waits", 0)
    training = (cloud.folder / "training").read_text()
    edit = f"open({str(cloud.checkout / 'code.py')!r}, 'w').write('lr = 999')\n"
    cloud.program(cloud.folder / "training", training.replace("import json", edit + "import json", 1))
    cloud.launch("create", *SMALL)
    cloud.then(node=("READY", "READY", "READY", "PREEMPTED"))
    code, _, err = cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--x")
    assert code == 0, err
    assert cloud.verbs().count("scp") == 2 and (cloud.checkout / "code.py").read_text() == "lr = 999"
    assert cloud.on(0, "gmlp_flax/code.py") == "lr = 1\n"


def test_retry_keeps_watching_when_the_network_is_down(cloud):
    ready(cloud)
    cloud.does(0)
    cloud.then(node=("READY", "UNREACHABLE", "READY", "READY"))
    code, _, err = cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--x")
    assert code == 0 and "the network is down" in err
    assert "delete" not in cloud.verbs()


def test_retry_starts_what_failed_and_gives_up_after_three(cloud):
    ready(cloud)
    cloud.does(1)
    code, _, err = cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--x")
    assert code == 1 and "failed 4 times" in err
    assert cloud.verbs().count("start") == 4


def test_retry_does_not_repeat_a_mistake(cloud):
    ready(cloud)
    cloud.does(2)
    code, _, err = cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--x")
    assert code == 2 and "mistake" in err
    # Mended, the same command starts it.
    cloud.does(0)
    assert cloud.launch("run", "--retry", *SMALL, "--interval=0", "--", "--y")[0] == 0
    assert cloud.records("trained.jsonl")[-1][2] == "--y"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected create, setup"),
        (["crate", *SMALL], "'crate'"),
        (["create", "--zone=z", "--type=v4-8"], "--name"),
        (["create", "--name=My_run", "--zone=z"], "'My_run'"),
        (["create", "--name=pod"], "--zone"),
        (["create", *PLACE], "--type"),
        (["delete", *PLACE], "--type"),
        (["create", *PLACE, "--type=v5e-16"], "v5litepod-16"),
        (["create", *PLACE, "--type=v7-16"], "--runtime"),
        (["run", *PLACE], "nothing to run"),
        (["run", *PLACE, "--"], "nothing to run"),
        (["run", *PLACE, "--config=x"], "'--config=x'"),
        (["stop", *PLACE, "--", "--x"], "for run"),
        (["logs", *PLACE, "--worker=all"], "'all'"),
        (["setup", *PLACE, "--mount=gs://b:/mnt"], "BUCKET:/FOLDER"),
        (["run", "--retry", *PLACE, "--", "--x"], "--type"),
    ],
)
def test_mistakes_are_one_line(cloud, arguments, words):
    code, out, err = cloud.launch(*arguments)
    assert (code, out) == (2, "") and words in err and len(err.splitlines()) == 1
    assert not cloud.records("calls.jsonl")


def test_missing_gcloud_is_one_line(cloud):
    for tool in ("bash", "dirname"):
        (cloud.bin / tool).symlink_to(shutil.which(tool))
    (cloud.bin / "gcloud").unlink()
    code, out, err = cloud.launch("status", *SMALL, PATH=str(cloud.bin))
    assert (code, out) == (2, "") and "no gcloud" in err and len(err.splitlines()) == 1
