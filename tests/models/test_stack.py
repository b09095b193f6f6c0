"""Encoders whose layers have several programs in turn: attention in windows, and of all tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.encoder import Encoder
from tests.models.attention.cases import ROTARY, normal, transformer
from tests.models.reference import quick_jit


def first_layers(stacked, count):
    """The first layers of a tree of stacked parameters."""
    return jax.tree.map(lambda leaf: leaf[:count], stacked)


def in_turn(encoder, x):
    """The layers of an encoder one by one, each made from its spec."""
    number = 0
    for stack_spec, stack in zip(encoder.stack_specs, encoder.stacks, strict=True):
        params = nnx.state(stack)
        for row in range(stack_spec.layers):
            spec = encoder.layer_specs[number]
            block = spec.block(spec, nnx.Rngs(0))
            nnx.update(block, jax.tree.map(lambda leaf, row=row: leaf[row], params))
            x = block(x)
            number += 1
    return encoder.norm(x)


# Whole periods, incomplete ones, and less than one.
@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (2, {}),
        pytest.param(7, {}, marks=pytest.mark.slow),
        pytest.param(1, {"first_norm": False}, marks=pytest.mark.slow),
        pytest.param(8, {"first_norm": False}, marks=pytest.mark.slow),
        pytest.param(7, {"scan_layers": False}, marks=pytest.mark.slow),
    ],
)
def test_every_layer_has_its_program(layers, options):
    spec = transformer(layers=layers, window=4, **ROTARY, **options)
    encoder = Encoder(spec, nnx.Rngs(0))
    windows = [layer.window for layer in encoder.layer_specs]
    assert windows == [0 if number % 3 == 0 else 4 for number in range(layers)]
    thetas = [layer.rotary_theta for layer in encoder.layer_specs]
    assert thetas == [10_000.0 if number % 3 == 0 else 100.0 for number in range(layers)]
    x = normal(2, 24, 16)

    def loss(x, run):
        y = run(x)
        return jnp.sin(y).sum(), y

    gradient_of = jax.grad(loss, has_aux=True)
    gradient, y = quick_jit(lambda x: gradient_of(x, encoder))(x)
    expected, expected_y = quick_jit(lambda x: gradient_of(x, functools.partial(in_turn, encoder)))(
        x
    )
    np.testing.assert_allclose(y, expected_y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4)


def test_the_states_of_layers_within_a_period():
    """As an encoder of so many layers has them."""
    spec = transformer(layers=7, window=4, **ROTARY)
    encoder = Encoder(spec, nnx.Rngs(0))
    x = normal(2, 24, 16)
    layers = (1, 4, 6)
    states = quick_jit(lambda x: encoder.states(x, layers))(x)
    for layer, state in zip(layers, states, strict=True):
        count = layer + 1
        shorter = Encoder(dataclasses.replace(spec, layers=count), nnx.Rngs(0))
        nnx.update(shorter.blocks, first_layers(nnx.state(encoder.blocks), count))
        np.testing.assert_allclose(state, quick_jit(shorter)(x), rtol=1e-4, atol=1e-5)


def test_runs_are_consecutive_layers_of_one_program():
    spec = transformer(layers=8, window=4, first_norm=False, **ROTARY)
    encoder = Encoder(spec, nnx.Rngs(0))
    counts = []
    windows = []
    for run in encoder.runs:
        counts.append(len(run.mlp_norm.scale[...]))
        windows.append(run.attention.spec.window)
    assert counts == [1, 2, 1, 2, 1, 1]
    assert windows == [0, 4, 0, 4, 0, 4]
    last = encoder.runs[-1].mlp.proj_in.kernel[...]
    np.testing.assert_array_equal(last[0], encoder.stacks[-1].mlp.proj_in.kernel[-1])


def test_a_deep_encoder_is_compiled_by_periods():
    """As many products in the program for 22 layers as for 7."""

    def products(layers):
        spec = transformer(layers=layers, window=4, first_norm=False, **ROTARY)
        abstract = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
        definition, params = nnx.split(abstract)

        def run(params, x):
            return nnx.merge(definition, params)(x)

        return str(jax.make_jaxpr(run)(params, normal(1, 24, 16))).count("dot_general")

    assert products(22) == products(7)
    assert products(22) < 2 * products(4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_norm": False, "norm": "post"}, "set model.norm to 'pre'"),
        ({"global_every": -1}, "global_every is -1: expected at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        transformer(**options)
