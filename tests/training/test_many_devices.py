"""Fake CPU devices. Their number is fixed before JAX starts, so they need a process of their
own."""

import collections
import json
import math
import re

import numpy as np
import pytest

from tests.once import made_once
from tests.training import fake_devices
from tests.training.many_devices import MESHES, TOKENS

BATCH = 16
LAYERS = 6
D_MODEL = 16
CHANNELS = 32  # a gate's channels: half of d_ffn

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    def make(path):
        fake_devices.run("many_devices", str(path), str(path / "results.npz"))

    return made_once(tmp_path_factory, "devices", make)


@pytest.fixture(scope="module")
def results(folder):
    return fake_devices.read(folder / "results.npz")


@pytest.mark.parametrize("sizes", MESHES[1:])
def test_mesh_changes_only_rounding(results, sizes):
    found = results["x".join(map(str, sizes))]
    expected = results["1x1x1"]
    assert found.keys() == expected.keys()
    assert len(found) > 60
    assert found["predictions"] == expected["predictions"]
    assert found["examples"] == expected["examples"]
    for name in found:
        # Adam divides by the root of a second moment: if that is only rounding, so is the step.
        rtol, atol = (1e-4, 2e-5) if name.startswith(("0/params", "0/ema")) else (2e-5, 2e-6)
        np.testing.assert_allclose(found[name], expected[name], rtol, atol, err_msg=name)


def test_bfloat16_on_a_mesh(results):
    found = results["bf2x4x1"]
    expected = results["bf1x1x1"]
    assert abs(found["loss"] - expected["loss"]) < 0.01 * expected["loss"]
    got = abs(results["1x1x1"]["loss"] - expected["loss"])
    assert got < 0.02 * expected["loss"]


def test_checksum_does_not_depend_on_sharding(results):
    assert len(set(results[""]["checksums"])) == 1


def collectives(folder, *sizes) -> list[tuple[str, bool, list[tuple[int, ...]]]]:
    """The collectives of a compiled step: kind, whether inside a loop, and shapes of the
    results."""
    program = json.loads((folder / "programs.json").read_text())[str(sizes)]
    found = []
    entry = False
    for line in program.splitlines():
        if line and not line.startswith(" "):
            entry = line.startswith("ENTRY")
        kind = re.search(
            r"= (.*?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)\(", line
        )
        if kind:
            shapes = [
                tuple(map(int, dims.split(","))) for dims in re.findall(r"\w\[([\d,]+)\]", kind[1])
            ]
            found.append((kind[2], not entry, shapes))
    return found


def test_data_parallel_steps_add_up_gradients_once(folder):
    """Not in each layer or microbatch: a single all-reduce holds every gradient and every sum."""
    ((kind, in_loop, shapes),) = collectives(folder, 8, 1, 1)
    assert kind == "all-reduce"
    assert not in_loop
    assert (LAYERS, D_MODEL, 2 * CHANNELS) in shapes
    assert (LAYERS, CHANNELS, D_MODEL) in shapes


def test_fsdp_gathers_kernels_together_and_scatters_their_gradients(folder):
    """The kernels of three layers in one collective; the embedding in another. No activations are
    gathered or added up: no array with tokens and channels."""
    found = [(kind, shape) for kind, _, shapes in collectives(folder, 1, 8, 1) for shape in shapes]
    sizes = collections.defaultdict(set)
    for kind, shape in found:
        sizes[kind].add(math.prod(shape))
    # U, V, and the two kernels of tiny attention, whose head has 4 channels; the vocabulary has 320
    # entries.
    kernels = 3 * (3 * D_MODEL * CHANNELS + 12 * D_MODEL + 4 * CHANNELS)
    assert sizes["all-gather"] == {kernels, 320 * D_MODEL}
    assert sizes["reduce-scatter"] == {kernels // 8, 320 * D_MODEL // 8}
    assert not [shape for _, shape in found if TOKENS in shape and {D_MODEL, CHANNELS} & {*shape}]


def test_tensor_parallel_gates_exchange_no_channels(folder):
    """Arrays with a token axis are only added up: blocks' outputs [batch, n, d_model], the sums of
    norms [batch, n], what tiny attention hands to the gate [batch, n, d_attn], and the gradients of
    W [n, n] and b [n]. None has the channels of a gate."""
    found = [
        (kind, shape)
        for kind, _, shapes in collectives(folder, 1, 1, 8)
        for shape in shapes
        if TOKENS in shape
    ]
    assert {kind for kind, _ in found} == {"all-reduce"}
    tokens = (BATCH // 2, TOKENS)  # of a microbatch
    allowed = {tokens, (*tokens, D_MODEL), (*tokens, 4), (TOKENS, TOKENS), (TOKENS,)}
    assert {shape for _, shape in found} <= allowed
