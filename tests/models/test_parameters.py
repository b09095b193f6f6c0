"""The metadata of the parameters of whole models, and parameters resized for another number of
tokens."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.parameters import (
    OFFSETS,
    PAST_OFFSETS,
    PAST_TAPS,
    TAPS,
    TOKEN_BIAS,
    CropOrPad,
    Grids,
    OverPatches,
    ParamMetadata,
    metadata,
    parameter,
    resize_tokens,
)
from gmlp_flax.models.text import MaskedLM
from tests.models.reference import quick_jit

LAYERS = 2


def test_plain_parameters_are_decayed_and_not_sharded():
    class Module(nnx.Module):
        def __init__(self):
            self.plain = nnx.Param(jnp.zeros(3))
            self.ours = parameter(jnp.zeros((2, 3)), sharding=("fsdp", None), decayed=False)

    assert metadata(Module()) == {
        "plain": ParamMetadata(),
        "ours": ParamMetadata(("fsdp", None), False),
    }


@pytest.mark.parametrize("block", BLOCKS)
def test_metadata_of_stacked_blocks_are_those_of_one_layer(block):
    """Vectors are not decayed, matrices over channels are sharded by fsdp, and metadata have no
    axis for the layers."""
    spec = BLOCKS[block].spec(length=6, layers=3, d_model=8, d_ffn=16)
    module = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    ranks = {}
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    for path, leaf in flat:
        is_stacked = path[0] == "blocks"
        rank = len(leaf.shape)
        ranks["/".join(map(str, path))] = rank - 1 if is_stacked else rank
    found = metadata(module)
    assert found.keys() == ranks.keys()
    for path, of_parameter in found.items():
        sharded = len(of_parameter.sharding)
        assert sharded <= ranks[path], path
        name = path.rpartition("/")[2]
        if name == "kernel":
            assert "fsdp" in of_parameter.sharding, path
        if name in ("kernel", "weight", "taps", "keys", "values"):
            assert of_parameter.decayed, path
        if name in ("bias", "scale", "logits", "weights"):
            assert not of_parameter.decayed, path


def test_embeddings_of_language_models_are_sharded_and_decayed():
    spec = BLOCKS["gmlp"].spec(length=6, layers=1, d_model=8, d_ffn=16, positions="absolute")
    model = nnx.eval_shape(lambda: MaskedLM(spec, 32, nnx.Rngs(0)))
    found = metadata(model)
    assert found["embedding"] == ParamMetadata(("tensor", "fsdp"))
    assert found["bias"] == ParamMetadata(("tensor",), False)
    assert not found["positions/table"].decayed


def numbered(*shape):
    """0, 1, 2, ... in a shape."""
    numbers = np.arange(np.prod(shape), dtype=np.float32)
    return numbers.reshape(shape)


def test_taps_keep_their_middle():
    taps = numbered(LAYERS, 7)  # for 4 tokens
    shorter = TAPS(taps, (LAYERS, 3), None)
    assert_array_equal(shorter, taps[:, 2:5])
    longer = TAPS(taps, (LAYERS, 11), None)
    assert_array_equal(longer[:, 2:9], taps)
    ends = longer[:, [0, 1, 9, 10]]
    assert_array_equal(ends, 0)


def test_token_biases_are_extended_with_their_mean():
    rows = [[1.0, 2.0, 3.0], [4.0, 4.0, 7.0]]
    bias = jnp.array(rows)
    shorter = TOKEN_BIAS(bias, (2, 2), None)
    assert_array_equal(shorter, bias[:, :2])
    longer = TOKEN_BIAS(bias, (2, 5), None)
    expected = [[1, 2, 3, 2, 2], [4, 4, 7, 5, 5]]
    assert_array_equal(longer, expected)


def test_offset_biases_are_extended_with_the_farthest():
    bias = numbered(LAYERS, 1, 5)
    shorter = OFFSETS(bias, (LAYERS, 1, 3), None)
    assert_array_equal(shorter, bias[..., 1:4])
    longer = OFFSETS(bias, (LAYERS, 1, 9), None)
    row = longer[0, 0]
    assert_array_equal(row, [0, 0, 0, 1, 2, 3, 4, 4, 4])


def test_buckets_of_offsets_are_not_resized():
    buckets = numbered(LAYERS, 1, 8)
    assert OFFSETS(buckets, (LAYERS, 1, 9), None) is buckets


def test_causal_taps_keep_the_nearest():
    taps = numbered(LAYERS, 4) + 1
    shorter = PAST_TAPS(taps, (LAYERS, 2), None)
    assert_array_equal(shorter, taps[:, 2:])
    longer = PAST_TAPS(taps, (LAYERS, 6), None)
    assert_array_equal(longer[0], [0, 0, 1, 2, 3, 4])


GRIDS = Grids((2, 2), (4, 4), 1)


@pytest.mark.parametrize(
    ("outputs", "inputs", "shape"),
    [
        (-2, None, (17, 5)),
        (None, -1, (5, 17)),
        (-2, -1, (17, 17)),
    ],
)
def test_only_the_named_axes_are_resized(outputs, inputs, shape):
    weight = numbered(LAYERS, 5, 5)
    rule = OverPatches(outputs, inputs)
    resized = jax.eval_shape(lambda weight: rule(weight, (), GRIDS), weight)
    assert resized.shape == (LAYERS, *shape)


def test_axes_of_other_sizes_are_not_resized():
    """And none is without grids."""
    rule = OverPatches(outputs=-2)
    other = numbered(LAYERS, 6, 5)
    assert rule(other, (), GRIDS) is other
    weight = numbered(LAYERS, 5, 5)
    assert rule(weight, (), None) is weight


def test_equal_rules_compare_equal():
    """Two models of one kind have equal graph definitions only if their rules are equal."""
    assert OverPatches(-2, -1) == OverPatches(-2, -1)
    assert OverPatches(-2, -1) != OverPatches(-2)
    assert CropOrPad("center", "constant") == TAPS
    assert TAPS != OFFSETS


@functools.partial(quick_jit, static_argnums=(2, 3))
def resize(weight, bias, grid, new_grid):
    """A dense projection for another resolution: W over the grids of its outputs and inputs, b over
    its one."""
    grids = Grids(grid, new_grid)
    over_inputs = resize_tokens(weight, 1, grids, True)
    new_weight = resize_tokens(over_inputs, 0, grids)
    return new_weight, resize_tokens(bias, 0, grids)


def test_causal_offsets_repeat_the_farthest():
    taps = numbered(LAYERS, 4) + 1
    longer = PAST_OFFSETS(taps, (LAYERS, 6), None)
    assert_array_equal(longer[0], [1, 1, 1, 2, 3, 4])


def smooth_projection(grid):
    """W and b sampled from smooth functions of the positions of patches in the unit square."""
    height, width = grid
    row_centers = np.arange(height) + 0.5
    rows = row_centers / height
    column_centers = np.arange(width) + 0.5
    columns = column_centers / width
    y = np.repeat(rows, width)
    x = np.tile(columns, height)
    down = y[:, None] - y
    offsets = x[:, None] - x
    right = offsets - 0.1
    right_squares = 0.5 * right**2
    distance = down**2 + right_squares
    nearness = np.exp(-3 * distance)
    rise = 0.5 * x
    slope = 1 + y[:, None] + rise
    patches = height * width
    weight = nearness * slope / patches
    wave = np.sin(2 * y)
    bias = wave + x
    float_weight = weight.astype(np.float32)
    return float_weight, bias.astype(np.float32)


@pytest.mark.parametrize(
    ("grid", "new_grid"),
    [
        ((10, 12), (13, 15)),
        ((12, 9), (9, 8)),
    ],
)
def test_resized_smooth_projections_are_sampled_elsewhere(grid, new_grid):
    weight, bias = smooth_projection(grid)
    new_weight, new_bias = resize(weight, bias, grid, new_grid)
    expected_weight, expected_bias = smooth_projection(new_grid)
    assert new_weight.shape == expected_weight.shape
    assert new_bias.shape == expected_bias.shape
    largest = np.abs(expected_weight).max()
    errors = np.abs(new_weight - expected_weight)
    assert errors.max() < 0.06 * largest  # at the edges
    assert errors.mean() < 0.01 * largest
    errors = np.abs(new_bias - expected_bias)
    assert errors.max() < 0.1
    assert errors.mean() < 0.02


@pytest.mark.parametrize("new_grid", [(4, 6), (7, 5), (3, 8)])
def test_resized_means_are_means(new_grid):
    """W whose every entry is 1 / n averages its inputs; resized, it averages the new ones."""
    rows, columns = new_grid
    patches = rows * columns
    mean = jnp.full((12, 12), 1 / 12)
    ones = jnp.ones(12)
    weight, bias = resize(mean, ones, (3, 4), new_grid)
    shape = (patches, patches)
    new_mean = np.full(shape, 1 / patches)
    assert_allclose(weight, new_mean, rtol=1e-5)
    assert_allclose(bias, np.ones(patches), rtol=1e-5)
