"""Plain TPU VMs: scripts/launch_tpu.sh with a stand-in for gcloud and workers that are folders."""

from __future__ import annotations

import pytest

from gmlp_flax.launching import engines
from gmlp_flax.launching.engine import Job, Options
from tests.scripts.cloud_stand_in import Cloud

AWKWARD = ("--config=x.py:base", "--workdir=/mnt/it's mine/a", '--config.note=$HOME "*" \\ ;\n#')


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    made = Cloud(tmp_path)
    monkeypatch.chdir(made.checkout)
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    return made


def test_the_runs_of_a_sweep_share_a_slice(cloud):
    cloud.does(0, 0)
    bucket = cloud.folder / "mnt"
    options = Options(
        name="pod",
        topology="v5e:2x4",
        zone="us-central1-a",
        mount=(f"gs://my-bucket:{bucket}",),
        engine_flag=("--interval=0",),
    )
    runs = [(f"--config.seed={seed}", *AWKWARD) for seed in range(2)]
    jobs = [Job(f"pod-{place}", f"{bucket}/{place}", words) for place, words in enumerate(runs)]
    assert engines.launch(engines.find("tpu-vm", options), jobs, dry_run=False) == 0
    assert cloud.verbs() == ["create", "scp", "install", "mount", "start", "start"]
    assert cloud.trained(2) == [
        ["-m", "gmlp_flax.train", *words, "--multihost=on", "--stopped_code=75"]
        for words in runs
        for _worker in range(2)
    ]
    create = cloud.records("calls.jsonl")
    assert any("--accelerator-type=v5litepod-8" in call for call in create)
