"""The mesh that the planner chooses."""

import itertools
import json
import pathlib
import types
import unittest.mock
from typing import NamedTuple

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
def test_candidate_meshes(devices, slices, expected):
    assert [*meshes.candidates(devices, slices)] == expected


class Plan(NamedTuple):
    """A plan of a mesh."""

    fits: bool
    products: float  # milliseconds of a step
    memory: float
    links: float
    gigabytes: float

    def seconds(self) -> dict[str, float]:
        return {
            "products": self.products / 1e3,
            "memory": self.memory / 1e3,
            "links": self.links / 1e3,
        }


def replace_plans(monkeypatch, plans):
    """Makes `plan.make` return these plans, or raise errors, by mesh. Returns the list of the meshes
    that it is called with."""
    tried = []

    def make(config, topology, devices=None):
        sizes = (config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
        tried.append(sizes)
        planned = plans[sizes]
        if isinstance(planned, Exception):
            raise planned
        seconds = planned.seconds()
        return types.SimpleNamespace(
            fits=planned.fits,
            seconds=seconds,
            step_seconds=max(seconds.values()),
            per_chip_bytes={"peak": planned.gigabytes * 1e9},
            hbm_bytes=60e9,
        )

    monkeypatch.setattr(plan, "make", make)
    return tried


PLANS = {
    (8, 1, 1): Plan(fits=False, products=5, memory=6, links=8, gigabytes=99),
    (1, 8, 1): Plan(fits=True, products=5, memory=6, links=9, gigabytes=50),
    (1, 4, 2): Plan(fits=True, products=5, memory=8, links=8.5, gigabytes=40),
}


def test_data_parallelism_is_chosen_if_links_are_fast_enough(monkeypatch):
    fast = Plan(fits=True, products=5, memory=9, links=8, gigabytes=10)
    tried = replace_plans(monkeypatch, {(8, 1, 1): fast})
    sizes, reason = meshes.choose(small(), "gpu:h100x8")
    assert sizes == (8, 1, 1)
    assert tried == [(8, 1, 1)]
    assert reason == "9 ms at least; it fits, and links do not hold it up"


def test_the_fastest_mesh_that_fits_is_chosen(monkeypatch):
    replace_plans(monkeypatch, PLANS)
    sizes, reason = meshes.choose(small(), "gpu:h100x8")
    assert sizes == (1, 4, 2)
    others = "data 8 x fsdp 1 x tensor 1 does not fit; data 1 x fsdp 8 x tensor 1 9 ms at least"
    assert reason == f"8.5 ms at least; the fastest that fits ({others})"


def test_meshes_that_the_model_does_not_support_are_skipped(monkeypatch):
    refusal = RunError("config.batch_size is 3")
    replace_plans(monkeypatch, PLANS | {(1, 8, 1): refusal})
    sizes, _ = meshes.choose(small(), "gpu:h100x8")
    assert sizes == (1, 4, 2)


def test_runs_that_no_mesh_supports_are_refused(monkeypatch):
    refusal = RunError("config.batch_size is 3")
    replace_plans(monkeypatch, dict.fromkeys(PLANS, refusal))
    message = r"no mesh of gpu:h100x8 suits the run: config.batch_size is 3$"
    with pytest.raises(RunError, match=message):
        meshes.choose(small(), "gpu:h100x8")


@pytest.mark.slow
def test_the_error_names_a_slice_that_would_fit(monkeypatch):
    """The estimate: gMLP-B with 1,024 images on one GPU must recompute its activations."""
    monkeypatch.setattr(dry_run, "gpu_plugin", lambda: None)
    options = config.from_file("configs/imagenet.py", "gmlp_b")
    options.batch_size = 1024
    with pytest.raises(
        RunError,
        match=r"no mesh of gpu:h100x1 fits; .* needs least, \d+\.\d of 60.0 GB a chip: remat=",
    ):
        meshes.choose(options, "gpu:h100x1")


def test_one_device_has_one_mesh():
    options = small(**{"mesh.auto": True})
    assert meshes.choose_here(options) == ((1, 1, 1), "one device")


def devices_of(monkeypatch, kind, count):
    """Makes JAX find devices of a kind."""
    devices = [types.SimpleNamespace(device_kind=kind)] * count
    monkeypatch.setattr(jax, "devices", lambda: devices)
    return devices


@pytest.mark.parametrize(("kind", "count"), [("cpu", 8), ("TPU v4", 2)])
def test_unknown_devices_have_data_parallelism(monkeypatch, kind, count):
    devices_of(monkeypatch, kind, count)
    monkeypatch.setattr(meshes, "choose", lambda *_: pytest.fail("planned"))
    options = small(**{"mesh.auto": True})
    sizes, _ = meshes.choose_here(options)
    assert sizes == (count, 1, 1)


def test_the_mesh_of_known_devices_is_planned(monkeypatch):
    options = small(**{"mesh.auto": True})
    devices = devices_of(monkeypatch, "TPU v5 lite", 4)
    choose = unittest.mock.Mock(return_value=((1, 4, 1), "a reason"))
    monkeypatch.setattr(meshes, "choose", choose)
    sizes, _ = meshes.choose_here(options)
    choose.assert_called_once_with(options, "v5e:2x2", devices)
    assert sizes == (1, 4, 1)


def test_the_short_form_of_the_flag():
    arguments = ["gmlp train", "--config.mesh=auto", "--workdir=x"]
    options, others = config_lib.apply_overrides(small(), arguments)
    assert options.mesh.auto
    assert others == ["gmlp train", "--workdir=x"]


@pytest.mark.parametrize("kind", chips.CHIPS)
def test_chips_are_found_by_the_name_of_their_device(kind):
    chip = chips.CHIPS[kind]
    assert chips.of_device(chip.device) == kind


def test_similar_names_of_devices_are_distinguished():
    assert chips.of_device("TPU v5") == "v5p"
    assert chips.of_device("TPU v5 lite") == "v5e"
    assert chips.of_device("NVIDIA L40S") != "gpu:l4"
    assert chips.of_device("cpu") is None


def test_the_usual_topology_of_a_number_of_chips():
    assert chips.usual("v5e", 16) == "v5e:4x4"
    assert chips.usual("gpu:h100", 3) == "gpu:h100x3"
    assert chips.usual("v5e", 5) is None


# Model -> its config file.
MODELS = {
    "gmlp_ti": "imagenet",
    "gmlp_s": "imagenet",
    "gmlp_b": "imagenet",
    "bert_base": "c4_bert",
    "bert_large": "c4_bert",
    "gmlp_base": "c4_bert",
    "gmlp_large": "c4_bert",
    "amlp_base": "c4_bert",
    "amlp_large": "c4_bert",
    "gmlp_xlarge": "c4_bert",
}


def golden_row(name, topology):
    """The row of the golden file for a model of the paper. If no mesh fits, its reason is the
    error."""
    row = {"model": name, "topology": topology}
    options = config.from_file(f"configs/{MODELS[name]}.py", name)
    try:
        sizes, reason = meshes.choose(options, topology)
    except RunError as error:
        return row | {"mesh": "none", "reason": str(error)}
    return row | {"mesh": config.mesh_name(sizes), "reason": reason}


def read_golden():
    """(model, topology) -> its mesh in the golden file."""
    found = {}
    for row in json.loads(FILE.read_text()):
        found[row["model"], row["topology"]] = row["mesh"]
    return found


def test_the_golden_file_has_every_model_on_every_topology():
    assert read_golden().keys() == set(itertools.product(MODELS, TOPOLOGIES))


@pytest.mark.parametrize("name", ["gmlp_b", "gmlp_large"])
def test_meshes_of_the_paper(name, monkeypatch):
    """Plans of GPUs are estimated, so that they are quick to repeat."""
    monkeypatch.setattr(dry_run, "gpu_plugin", lambda: None)
    row = golden_row(name, "gpu:h100x8")
    assert row["mesh"] == read_golden()[name, "gpu:h100x8"]


if __name__ == "__main__":
    rows = [golden_row(*case) for case in itertools.product(MODELS, TOPOLOGIES)]
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
