"""What parameters say of themselves, read off whole models, and how they are resized for another
number of tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


def test_a_plain_parameter_stays_whole_and_is_decayed():
    class Module(nnx.Module):
        def __init__(self):
            self.plain = nnx.Param(jnp.zeros(3))
            self.ours = parameter(jnp.zeros((2, 3)), sharding=("fsdp", None), decayed=False)

    assert metadata(Module()) == {
        "plain": ParamMetadata(),
        "ours": ParamMetadata(("fsdp", None), False),
    }


@pytest.mark.parametrize("block", BLOCKS)
def test_stacked_blocks_keep_the_facts(block):
    """Vectors are not decayed, matrices over channels are sharded by fsdp, and metadata have no
    axis for the layers."""
    spec = BLOCKS[block].spec(length=6, layers=3, d_model=8, d_ffn=16)
    module = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    found = metadata(module)
    shapes = {
        "/".join(map(str, path)): leaf
        for path, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))
    }
    assert found.keys() == shapes.keys()
    for path, each in found.items():
        own = (
            shapes[path].get_value().shape[1:]
            if path.startswith("blocks/")
            else shapes[path].get_value().shape
        )
        assert len(each.sharding) <= len(own), path
        if path.endswith("kernel"):
            assert "fsdp" in each.sharding, path
            assert each.decayed, path
        name = path.rpartition("/")[2]
        assert each.decayed or name not in ("kernel", "weight", "taps", "keys", "values"), path
        assert not (each.decayed and name in ("bias", "scale", "logits", "weights")), path


def test_a_language_models_embedding_is_cut_and_decayed():
    spec = BLOCKS["gmlp"].spec(length=6, layers=1, d_model=8, d_ffn=16, positions="absolute")
    found = metadata(nnx.eval_shape(lambda: MaskedLM(spec, 32, nnx.Rngs(0))))
    assert found["embedding"] == ParamMetadata(("tensor", "fsdp"))
    assert found["bias"] == ParamMetadata(("tensor",), False)
    assert not found["positions/table"].decayed


def numbered(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_taps_keep_their_middle():
    taps = numbered(LAYERS, 7)  # for 4 tokens
    shorter = TAPS(taps, (LAYERS, 3), None)
    np.testing.assert_array_equal(shorter, taps[:, 2:5])
    longer = TAPS(taps, (LAYERS, 11), None)
    np.testing.assert_array_equal(longer[:, 2:9], taps)
    np.testing.assert_array_equal(longer[:, [0, 1, 9, 10]], 0)


def test_token_biases_are_extended_with_their_mean():
    bias = jnp.array([[1.0, 2.0, 3.0], [4.0, 4.0, 7.0]])
    shorter = TOKEN_BIAS(bias, (2, 2), None)
    np.testing.assert_array_equal(shorter, bias[:, :2])
    longer = TOKEN_BIAS(bias, (2, 5), None)
    np.testing.assert_array_equal(longer, [[1, 2, 3, 2, 2], [4, 4, 7, 5, 5]])


def test_offset_biases_are_extended_with_the_farthest_and_buckets_stay():
    bias = numbered(LAYERS, 1, 5)
    np.testing.assert_array_equal(OFFSETS(bias, (LAYERS, 1, 3), None), bias[..., 1:4])
    np.testing.assert_array_equal(
        OFFSETS(bias, (LAYERS, 1, 9), None)[0, 0], [0, 0, 0, 1, 2, 3, 4, 4, 4]
    )
    buckets = numbered(LAYERS, 1, 8)
    assert OFFSETS(buckets, (LAYERS, 1, 9), None) is buckets


def test_causal_taps_keep_the_nearest():
    taps = numbered(LAYERS, 4) + 1
    shorter = PAST_TAPS(taps, (LAYERS, 2), None)
    np.testing.assert_array_equal(shorter, taps[:, 2:])
    longer = PAST_TAPS(taps, (LAYERS, 6), None)
    np.testing.assert_array_equal(longer[0], [0, 0, 1, 2, 3, 4])


def test_only_the_named_axes_are_resized():
    grids = Grids((2, 2), (4, 4), 1)
    weight = numbered(LAYERS, 5, 5)
    for axes, shape in (((-2, None), (17, 5)), ((None, -1), (5, 17)), ((-2, -1), (17, 17))):
        rule = OverPatches(*axes)
        assert jax.eval_shape(lambda weight, rule=rule: rule(weight, (), grids), weight).shape == (
            LAYERS,
            *shape,
        )
    other = numbered(LAYERS, 6, 5)  # an axis that is not of these patches
    assert OverPatches(outputs=-2)(other, (), grids) is other
    assert OverPatches(outputs=-2)(weight, (), None) is weight


def test_rules_are_values():
    """Two models of one kind have equal graph definitions only if their rules are equal."""
    assert OverPatches(-2, -1) == OverPatches(-2, -1) != OverPatches(-2)
    assert CropOrPad("center", "constant") == TAPS != OFFSETS


def resize(weight, bias, *grids):
    """A dense projection for another resolution: W over the grids of its outputs and inputs, b over
    its one."""

    @quick_jit
    def resized(weight, bias):
        return [
            resize_tokens(x, 0, Grids(*grids))
            for x in (resize_tokens(weight, 1, Grids(*grids), True), bias)
        ]

    return resized(weight, bias)


def test_causal_offsets_repeat_the_farthest():
    taps = numbered(LAYERS, 4) + 1
    longer = PAST_OFFSETS(taps, (LAYERS, 6), None)
    np.testing.assert_array_equal(longer[0], [1, 1, 1, 2, 3, 4])


def smooth_projection(grid):
    """W and b sampled from smooth functions of the places of patches in the unit square."""
    height, width = grid
    rows = (np.arange(height) + 0.5) / height
    columns = (np.arange(width) + 0.5) / width
    y = np.repeat(rows, width)
    x = np.tile(columns, height)
    down = y[:, None] - y
    right = x[:, None] - x
    distance = down**2 + 0.5 * (right - 0.1) ** 2
    weight = np.exp(-3 * distance) * (1 + y[:, None] + 0.5 * x) / len(y)
    bias = np.sin(2 * y) + x
    return weight.astype(np.float32), bias.astype(np.float32)


@pytest.mark.parametrize("grid, new_grid", [((10, 12), (13, 15)), ((12, 9), (9, 8))])
def test_resizing_a_smooth_projection_samples_it_elsewhere(grid, new_grid):
    weight, bias = smooth_projection(grid)
    new_weight, new_bias = resize(jnp.asarray(weight), jnp.asarray(bias), grid, new_grid)
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
def test_a_mean_stays_a_mean(new_grid):
    """W whose every entry is 1 / n averages its inputs; resized, it averages the new ones."""
    rows, columns = new_grid
    n = rows * columns
    weight, bias = resize(jnp.full((12, 12), 1 / 12), jnp.ones(12), (3, 4), new_grid)
    np.testing.assert_allclose(weight, np.full((n, n), 1 / n), rtol=1e-5)
    np.testing.assert_allclose(bias, np.ones(n), rtol=1e-5)
