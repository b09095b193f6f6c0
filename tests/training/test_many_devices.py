"""Training on fake CPU devices. Their number is fixed before JAX starts, so they need a separate
process."""

import collections
import json
import math
import re
from typing import NamedTuple

import pytest
from numpy.testing import assert_allclose

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
        is_updated = name.startswith(("0/params", "0/ema"))
        rtol = 1e-4 if is_updated else 2e-5
        atol = 2e-5 if is_updated else 2e-6
        assert_allclose(found[name], expected[name], rtol, atol, err_msg=name)


def test_bfloat16_on_a_mesh(results):
    found = results["bf2x4x1"]
    expected = results["bf1x1x1"]
    assert abs(found["loss"] - expected["loss"]) < 0.01 * expected["loss"]
    float32_loss = results["1x1x1"]["loss"]
    assert abs(float32_loss - expected["loss"]) < 0.02 * expected["loss"]


def test_checksum_does_not_depend_on_sharding(results):
    checksums = set(results[""]["checksums"])
    assert len(checksums) == 1


class Collective(NamedTuple):
    """A collective of a compiled step."""

    kind: str
    in_loop: bool
    shapes: list[tuple[int, ...]]  # of its results


KINDS = "all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all"


def shapes_in(text: str) -> list[tuple[int, ...]]:
    """The shapes of arrays as XLA prints them: f32[2,3]."""
    shapes = []
    for numbers in re.findall(r"\w\[([\d,]+)\]", text):
        sizes = [int(number) for number in numbers.split(",")]
        shapes.append(tuple(sizes))
    return shapes


def collectives(folder, *sizes) -> list[Collective]:
    """The collectives of the step that was compiled for a mesh."""
    programs = json.loads((folder / "programs.json").read_text())
    found = []
    is_entry = False
    for line in programs[str(sizes)].splitlines():
        if line and not line.startswith(" "):
            is_entry = line.startswith("ENTRY")
        match = re.search(rf"= (.*?) ({KINDS})\(", line)
        if match:
            results, kind = match.groups()
            found.append(Collective(kind, not is_entry, shapes_in(results)))
    return found


def test_data_parallel_steps_add_up_gradients_once(folder):
    """Not in each layer or microbatch: a single all-reduce has all gradients and sums."""
    [collective] = collectives(folder, 8, 1, 1)
    assert collective.kind == "all-reduce"
    assert not collective.in_loop
    assert (LAYERS, D_MODEL, 2 * CHANNELS) in collective.shapes
    assert (LAYERS, CHANNELS, D_MODEL) in collective.shapes


def test_fsdp_gathers_kernels_together_and_scatters_their_gradients(folder):
    """The kernels of three layers are in one collective, the embedding in another. No activations,
    which are arrays with tokens and channels, are gathered or summed."""
    sizes = collections.defaultdict(set)
    activations = []
    for collective in collectives(folder, 1, 8, 1):
        for shape in collective.shapes:
            sizes[collective.kind].add(math.prod(shape))
            if TOKENS in shape and (D_MODEL in shape or CHANNELS in shape):
                activations.append(shape)
    u_and_v = 3 * D_MODEL * CHANNELS
    tiny_attention = 12 * D_MODEL + 4 * CHANNELS  # its head has 4 channels
    kernels = 3 * (u_and_v + tiny_attention)
    embedding = 320 * D_MODEL
    assert sizes["all-gather"] == {kernels, embedding}
    assert sizes["reduce-scatter"] == {kernels // 8, embedding // 8}
    assert activations == []


def test_tensor_parallel_gates_exchange_no_channels(folder):
    """Arrays with a token axis are only summed: blocks' outputs [batch, n, d_model], the sums of norms
    [batch, n], the outputs of tiny attention [batch, n, d_attn], and the gradients of W [n, n] and b
    [n]. None has the channels of a gate."""
    kinds = set()
    shapes = set()
    for collective in collectives(folder, 1, 1, 8):
        with_tokens = [shape for shape in collective.shapes if TOKENS in shape]
        if with_tokens:
            kinds.add(collective.kind)
            shapes.update(with_tokens)
    tokens = (BATCH // 2, TOKENS)  # of a microbatch
    activations = {tokens, (*tokens, D_MODEL), (*tokens, 4)}
    gradients = {(TOKENS, TOKENS), (TOKENS,)}
    assert kinds == {"all-reduce"}
    assert shapes <= activations | gradients
