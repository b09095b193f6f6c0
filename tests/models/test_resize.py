"""Parameters made to serve another number of tokens. The interpolation itself is tested in test_spatial.py."""

import jax.numpy as jnp
import numpy as np

from gmlp_flax.models.resize import Grids, Offsets, OverPatches, PastTaps, Positions, Taps, TokenBias, resize_tokens

LAYERS = 2


def numbered(*shape):
    return jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)


def test_taps_keep_their_middle():
    taps = numbered(LAYERS, 7)  # for 4 tokens
    np.testing.assert_array_equal(Taps()(taps, (LAYERS, 3), None), taps[:, 2:5])
    longer = Taps()(taps, (LAYERS, 11), None)
    np.testing.assert_array_equal(longer[:, 2:9], taps)
    np.testing.assert_array_equal(longer[:, [0, 1, 9, 10]], 0)


def test_token_biases_are_extended_with_their_mean():
    bias = jnp.array([[1.0, 2.0, 3.0], [4.0, 4.0, 7.0]])
    np.testing.assert_array_equal(TokenBias()(bias, (2, 2), None), bias[:, :2])
    np.testing.assert_array_equal(TokenBias()(bias, (2, 5), None), [[1, 2, 3, 2, 2], [4, 4, 7, 5, 5]])


def test_offset_biases_are_extended_with_the_farthest_and_buckets_stay():
    bias = numbered(LAYERS, 1, 5)
    np.testing.assert_array_equal(Offsets()(bias, (LAYERS, 1, 3), None), bias[..., 1:4])
    np.testing.assert_array_equal(Offsets()(bias, (LAYERS, 1, 9), None)[0, 0], [0, 0, 0, 1, 2, 3, 4, 4, 4])
    buckets = numbered(LAYERS, 1, 8)
    assert Offsets()(buckets, (LAYERS, 1, 9), None) is buckets


def test_causal_taps_keep_the_nearest():
    taps = numbered(LAYERS, 4) + 1
    np.testing.assert_array_equal(PastTaps()(taps, (LAYERS, 2), None), taps[:, 2:])
    np.testing.assert_array_equal(PastTaps()(taps, (LAYERS, 6), None)[0], [0, 0, 1, 2, 3, 4])
    np.testing.assert_array_equal(PastTaps(repeat=True)(taps, (LAYERS, 6), None)[0], [1, 1, 1, 2, 3, 4])


def test_only_the_named_axes_are_resized():
    grids, weight = Grids((2, 2), (4, 4), 1), numbered(LAYERS, 5, 5)
    assert OverPatches(outputs=-2)(weight, (), grids).shape == (LAYERS, 17, 5)
    assert OverPatches(inputs=-1)(weight, (), grids).shape == (LAYERS, 5, 17)
    assert OverPatches(outputs=-2, inputs=-1)(weight, (), grids).shape == (LAYERS, 17, 17)
    other = numbered(LAYERS, 6, 5)  # an axis that is not of these patches
    assert OverPatches(outputs=-2)(other, (), grids) is other and OverPatches(outputs=-2)(weight, (), None) is weight


def test_positions_are_interpolated_for_images_and_cut_for_text():
    table, grids = numbered(4, 3), Grids((2, 2), (4, 4))
    np.testing.assert_array_equal(
        OverPatches(outputs=-2)(table, (16, 3), grids), resize_tokens(table, 0, (2, 2), (4, 4))
    )
    np.testing.assert_array_equal(Positions()(table, (2, 3), None), table[:2])


def test_rules_are_values():
    """Two models of one kind have equal graph definitions only if their rules are equal."""
    assert OverPatches(-2, -1) == OverPatches(-2, -1) != OverPatches(-2) and hash(Taps()) == hash(Taps())
