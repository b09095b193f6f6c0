"""The mesh that the planner chooses."""

import json
import pathlib
import types
import unittest.mock

import jax
import pytest

from gmlp_flax import config
from gmlp_flax import config as config_lib
from gmlp_flax.errors import RunError
from gmlp_flax.planning import chips, dry_run, meshes, plan
from tests.planning.test_plan import small

FILE = pathlib.Path(__file__).parent / "mesh_golden.json"
TOPOLOGIES = ("gpu:h100x1", "gpu:h100x8", "v5e:4x4", "v5e:8x8")


@pytest.mark.parametrize(
    ("devices", "slices", "expected"),
    [
        (1, 1, [(1, 1, 1)]),
        (4, 1, [(4, 1, 1), (1, 4, 1), (1, 2, 2)]),
        (8, 1, [(8, 1, 1), (1, 8, 1), (1, 4, 2)]),
        (64, 1, [(64, 1, 1), (8, 8, 1), (1, 64, 1), (1, 32, 2)]),
        (32, 2, [(32, 1, 1), (4, 8, 1), (2, 16, 1), (2, 8, 2)]),
    ],
)
def test_meshes_that_make_sense(devices, slices, expected):
    assert [*meshes.candidates(devices, slices)] == expected


def planned(monkeypatch, figures):
    """Has `plan.make` give, for a mesh, (does it fit, milliseconds of products, memory and links,
    GB); or an error."""
    tried = []

    def make(config, topology, devices=None):
        sizes = tuple(config.mesh[axis] for axis in ("data", "fsdp", "tensor"))
        tried.append(sizes)
        if isinstance(figures[sizes], Exception):
            raise figures[sizes]
        fits, *times, size = figures[sizes]
        seconds = dict(
            zip(("products", "memory", "links"), (time / 1e3 for time in times), strict=True)
        )
        return types.SimpleNamespace(
            fits=fits,
            seconds=seconds,
            step_seconds=max(seconds.values()),
            per_chip_bytes={"peak": size * 1e9},
            hbm_bytes=60e9,
        )

    monkeypatch.setattr(plan, "make", make)
    return tried


def test_copies_are_taken_if_links_do_not_hold_them_up(monkeypatch):
    tried = planned(monkeypatch, {(8, 1, 1): (True, 5, 9, 8, 10)})
    sizes, reason = meshes.choose(small(), "gpu:h100x8")
    assert sizes == (8, 1, 1)
    assert tried == [(8, 1, 1)]
    assert reason == "9 ms at least; it fits, and links do not hold it up"


def test_the_fastest_of_those_that_fit_is_taken(monkeypatch):
    figures = {
        (8, 1, 1): (False, 5, 6, 8, 99),
        (1, 8, 1): (True, 5, 6, 9, 50),
        (1, 4, 2): (True, 5, 8, 8.5, 40),
    }
    planned(monkeypatch, figures)
    sizes, reason = meshes.choose(small(), "gpu:h100x8")
    assert sizes == (1, 4, 2)
    others = "data 8 x fsdp 1 x tensor 1 does not fit; data 1 x fsdp 8 x tensor 1 9 ms at least"
    assert reason == f"8.5 ms at least; the fastest that fits ({others})"


def test_a_mesh_that_the_model_cannot_have_is_passed_over(monkeypatch):
    refusal = RunError("config.batch_size is 3")
    figures = {
        (8, 1, 1): (False, 5, 6, 8, 99),
        (1, 8, 1): refusal,
        (1, 4, 2): (True, 5, 8, 8.5, 40),
    }
    planned(monkeypatch, figures)
    assert meshes.choose(small(), "gpu:h100x8")[0] == (1, 4, 2)
    planned(monkeypatch, dict.fromkeys(figures, refusal))
    with pytest.raises(
        RunError, match=r"no mesh of gpu:h100x8 suits the run: config.batch_size is 3$"
    ):
        meshes.choose(small(), "gpu:h100x8")


def test_what_would_fit_is_said(monkeypatch):
    """Estimated: gMLP-B with 1,024 images on one GPU needs its activations computed again."""
    monkeypatch.setattr(dry_run, "gpu_plugin", lambda: None)
    options = config.from_file("configs/imagenet.py", "gmlp_b")
    options.batch_size = 1024
    with pytest.raises(
        RunError,
        match=r"no mesh of gpu:h100x1 fits; .* needs least, \d+\.\d of 60.0 GB a chip: remat=",
    ):
        meshes.choose(options, "gpu:h100x1")


def test_of_this_machine(monkeypatch):
    """One device has one mesh, devices without figures have copies, others are planned."""
    given = small(**{"mesh.auto": True})
    assert meshes.choose_here(given) == ((1, 1, 1), "one device")
    for kind, count, topology in (
        ("cpu", 8, None),
        ("TPU v5 lite", 4, "v5e:2x2"),
        ("TPU v4", 2, None),
    ):
        devices = [types.SimpleNamespace(device_kind=kind)] * count
        monkeypatch.setattr(jax, "devices", lambda devices=devices: devices)
        choose = unittest.mock.Mock(return_value=((1, 4, 1), "so"))
        monkeypatch.setattr(meshes, "choose", choose)
        sizes, _ = meshes.choose_here(given)
        calls = [call.args for call in choose.call_args_list]
        assert calls == ([(given, topology, devices)] if topology else [])
        assert sizes == ((1, 4, 1) if topology else (count, 1, 1))


def test_the_short_form_of_the_flag():
    new, left = config_lib.apply_overrides(
        small(), ["gmlp train", "--config.mesh=auto", "--workdir=x"]
    )
    assert new.mesh.auto
    assert left == ["gmlp train", "--workdir=x"]


def test_kinds_of_devices():
    names = {kind: chips.of_device(chip.device) for kind, chip in chips.CHIPS.items()}
    for kind, found in names.items():
        assert kind == found
    assert chips.of_device("TPU v5") == "v5p"
    assert chips.of_device("TPU v5 lite") == "v5e"
    assert chips.of_device("NVIDIA L40S") != "gpu:l4"
    assert chips.of_device("cpu") is None
    assert chips.usual("v5e", 16) == "v5e:4x4"
    assert chips.usual("gpu:h100", 3) == "gpu:h100x3"
    assert chips.usual("v5e", 5) is None


def chosen(name, topology):
    """What the golden file has of a model of the paper: the mesh, or what is said if none fits."""
    file = "imagenet" if name in MODELS[:3] else "c4_bert"
    try:
        sizes, reason = meshes.choose(config.from_file(f"configs/{file}.py", name), topology)
        return {"mesh": config.mesh_name(sizes), "reason": reason}
    except RunError as error:
        return {"mesh": "none", "reason": str(error)}


MODELS = ["gmlp_ti", "gmlp_s", "gmlp_b"] + [
    f"{model}_{size}" for model in ("bert", "gmlp", "amlp") for size in ("base", "large")
]
MODELS.append("gmlp_xlarge")


@pytest.mark.parametrize("name", ["gmlp_b", "gmlp_large"])
def test_meshes_of_the_paper(name, monkeypatch):
    """Ten models on four topologies are known; those of GPUs, which are estimated, are chosen
    again."""
    golden = json.loads(FILE.read_text())
    got = {(row["model"], row["topology"]) for row in golden}
    expected = {(model, topology) for model in MODELS for topology in TOPOLOGIES}
    assert got == expected
    monkeypatch.setattr(dry_run, "gpu_plugin", lambda: None)
    [row] = [row for row in golden if (row["model"], row["topology"]) == (name, "gpu:h100x8")]
    assert row["mesh"] == chosen(name, "gpu:h100x8")["mesh"]


if __name__ == "__main__":
    rows = [
        {"model": name, "topology": at} | chosen(name, at) for name in MODELS for at in TOPOLOGIES
    ]
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
