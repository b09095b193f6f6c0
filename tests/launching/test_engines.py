"""What an engine refuses, and the launch of several runs."""

from dataclasses import replace

import pytest

from gmlp_flax.errors import RunError
from gmlp_flax.launching import engines
from gmlp_flax.launching.engines import Job, Options
from gmlp_flax.planning.chips import CHIPS
from tests.failures import raised

XPK = Options(topology="v5e:4x4", cluster="c", zone="z", project="p", image="i")
SKY = Options(topology="v5e:4x4")
SLURM = Options(topology="gpu:h100x8")


def sky(monkeypatch, folder, does: str) -> None:
    """A stand-in for SkyPilot's command, which runs a line of shell."""
    (folder / "sky").write_text(f"#!/bin/sh\n{does}\n")
    (folder / "sky").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_nothing_is_started_if_one_run_is_refused(monkeypatch, tmp_path):
    sky(monkeypatch, tmp_path, 'touch "$0.called"')
    jobs = [Job("a", "gs://b/x", ("--x",)), Job("b", "runs/x", ("--x",))]
    with pytest.raises(RunError, match="--workdir=runs/x would be lost"):
        engines.launch(engines.find("skypilot", SKY), jobs, dry_run=False)
    assert not (tmp_path / "sky.called").exists()


def test_a_missing_tool_is_reported_before_anything_is_started(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    job = Job("run", "gs://b/x", ("--x",))
    engine_of_tool = {
        "xpk": engines.find("xpk", XPK),
        "sky": engines.find("skypilot", SKY),
        "sbatch": engines.find("slurm", SLURM),
    }
    for tool, engine in engine_of_tool.items():
        with pytest.raises(RunError, match=f"there is no {tool} here: "):
            engines.launch(engine, [job], dry_run=False)


def test_skypilot_copies_a_checkout(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    engine = engines.find("skypilot", SKY)
    job = Job("run", "gs://b/x", ("--x",))
    with pytest.raises(RunError, match="run this in a checkout of the repository"):
        engines.launch(engine, [job], dry_run=True)


def test_all_runs_are_tried_and_the_exit_code_is_the_first_failures(monkeypatch, tmp_path, capfd):
    """The tool finds the specification in a file, which is gone afterwards."""
    sky(
        monkeypatch, tmp_path, 'grep name: "$5" && echo "$5" >>"$0.files" && grep -q "name: b" "$5"'
    )
    jobs = [Job(name, "gs://b/x", ("--x",)) for name in ("a", "b")]
    assert engines.launch(engines.find("skypilot", SKY), jobs, dry_run=False) == 1
    out, err = capfd.readouterr()
    assert (out, err) == ("name: a\nname: b\n", "a: ended with code 1\n")
    for line in (tmp_path / "sky.files").read_text().splitlines():
        assert line.endswith(".yaml")
        assert not (tmp_path / line).exists()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("skypliot", SKY, "no engine 'skypliot' for --on; did you mean 'skypilot'?"),
        ("xpk", replace(XPK, cluster=""), "--on=xpk needs --cluster. The name of the GKE cluster."),
        ("slurm", replace(SLURM, cluster="c"), "--on=slurm takes no --cluster"),
        (
            "slurm",
            replace(SLURM, topology="v5e:4x4"),
            "--on=slurm does not give v5e:4x4: it gives gpu:a100",
        ),
        (
            "skypilot",
            replace(SKY, topology="v5e:2x8"),
            "no slice v5e:2x8 to be had: v5e comes as 2x2, 2x4, 4x4",
        ),
        (
            "skypilot",
            replace(SKY, topology="v9:4x4"),
            "there is no topology 'v9:4x4': the nearest are ",
        ),
        (
            "skypilot",
            replace(SKY, mount=("my-bucket",)),
            "--mount=my-bucket: expected BUCKET:/FOLDER",
        ),
        ("xpk", replace(XPK, mount=("b:/mnt",)), "--mount=b:/mnt: --on=xpk mounts no buckets"),
    ],
)
def test_unsupported_options_of_an_engine_are_refused(name, options, words):
    with pytest.raises(RunError) as error:
        engines.find(name, options)
    assert words in str(error.value)


def test_nodes_of_gpus():
    def nodes(topology: str, gpus_per_node: int = 0) -> tuple[int, int]:
        return engines.find(
            "slurm", Options(topology=topology, gpus_per_node=gpus_per_node)
        ).nodes()

    assert nodes("gpu:h100x32") == (4, 8)
    assert nodes("gpu:h100x32", 4) == (8, 4)
    assert nodes("gpu:a100-40gbx2") == (1, 2)
    assert "32 GPUs are not a whole number of nodes of 5" in raised(
        RunError, nodes, "gpu:h100x32", 5
    )


@pytest.mark.parametrize(
    ("topology", "clouds", "shaped"),
    [
        ("v5e:2x4", "tpu-v5litepod-8", "v5litepod-2x4"),
        ("v4:2x2x1", "tpu-v4-8", "v4-2x2x1"),
        ("v5p:2x2x2", "tpu-v5p-16", "v5p-2x2x2"),
        ("v6e:2x4", "tpu-v6e-8", "v6e-2x4"),
    ],
)
def test_types_of_slices(topology, clouds, shaped):
    """The types of v4 and v5p count cores, two of them in a chip."""
    job = Job("run", "gs://b/x", ("--x",))
    assert f"accelerators: {clouds}\n" in engines.find("skypilot", Options(topology=topology)).show(
        job
    )
    got = engines.find("xpk", replace(XPK, topology=topology)).show(job)
    assert f"--tpu-type={shaped} " in got


def test_every_planned_kind_of_chip_can_be_launched():
    launched = set()
    for engine in engines.ENGINES.values():
        launched.update(engine.kinds)
    assert launched == set(CHIPS)
    slurm = engines.ENGINES["slurm"]
    assert set(engines.GPUS) == set(slurm.kinds)


def check(name: str, options: Options, workdir: str, slices: int = 1) -> str:
    """The refusal of a run; empty if there is none."""
    try:
        engines.find(name, options).check(Job("run", workdir, ("--x",), slices))
    except RunError as error:
        return str(error)
    return ""


def test_run_folders_that_would_be_lost_are_refused():
    mounted = replace(SKY, mount=("b:/mnt/runs", "/nfs/"))
    for workdir in ("runs/x", "/home/me/x", "/mnt/runs/../x", "/mnt/runsx/y", "/mnt/runs"):
        refused = check("skypilot", mounted, workdir)
        assert refused.startswith(
            f"--workdir={workdir} would be lost with the machines of --on=skypilot: give gs://"
        )
    for workdir in ("gs://b/x", "s3://b/x", "/mnt/runs/x", "/nfs/a/b"):
        assert not check("skypilot", mounted, workdir)
    assert check("xpk", XPK, "runs/x").endswith("or a folder below a --mount=/FOLDER")
    assert "own disk" in check("slurm", SLURM, "/tmp/x")
    assert not check("slurm", SLURM, "/shared/x")


def refused_data(name: str, options: Options, path: str) -> str:
    """The refusal of a run that reads from a path; empty if there is none."""
    job = Job("run", "gs://b/x", (), reads={"data.train": (path,)})
    try:
        engines.find(name, options).check(job)
    except RunError as error:
        return str(error)
    return ""


def test_data_that_only_this_machine_has_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "mounted").mkdir()
    mounted = replace(SKY, mount=(f"b:{tmp_path}/mounted",))
    for path in ("books", f"{tmp_path}/books", f"{tmp_path}/mounted/../books"):
        message = refused_data("skypilot", mounted, path)
        assert message.startswith(
            f"config.data.train={path} is on this machine, and not on those of --on=skypilot: give "
            "gs://BUCKET/FOLDER"
        )
    (tmp_path / "mounted/books").mkdir()
    for path in (f"{tmp_path}/mounted/books", "gs://b/books", "/opt/image/books", "embedded"):
        assert not refused_data("skypilot", mounted, path)
    refused = refused_data("xpk", XPK, "tfds:c4/en")
    assert refused == (
        "config.data.train=tfds:c4/en is read from ~/tensorflow_datasets of the machine, which "
        "those of --on=xpk do not have: give gs://BUCKET/FOLDER, or a folder below a --mount=/FOLDER"
    )
    # the nodes of a cluster see the disks of its login node, but for the machine's own
    assert not refused_data("slurm", SLURM, "tfds:c4/en")
    assert not refused_data("slurm", SLURM, "/usr")
    monkeypatch.setattr(engines, "OWN_DISKS", (f"{tmp_path}/",))
    assert "own disk" in refused_data("slurm", SLURM, "books")


def test_several_slices_need_an_engine_that_supports_them():
    assert not check("xpk", XPK, "gs://b/x", slices=2)
    assert "config.mesh.slices is 2, and --on=skypilot gives one slice" in check(
        "skypilot", SKY, "gs://b/x", slices=2
    )
