"""Encoders whose layers alternate: attention in windows, and to all tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.encoder import Encoder
from tests.models.attention.cases import ROTARY, normal, transformer
from tests.models.reference import count, function_of, layer_of, quick_jit


def first_layers(stacked, count):
    """The first layers of a tree of stacked parameters."""
    return jax.tree.map(lambda leaf: leaf[:count], stacked)


def one_by_one(encoder, x):
    """The layers of an encoder one by one, each made from its spec."""
    number = 0
    for stack_spec, stack in zip(encoder.stack_specs, encoder.stacks, strict=True):
        params = nnx.state(stack)
        for row in range(stack_spec.layers):
            spec = encoder.layer_specs[number]
            block = spec.block(spec, nnx.Rngs(0))
            nnx.update(block, layer_of(params, row))
            x = block(x)
            number += 1
    return encoder.norm(x)


# Whole periods, incomplete ones, and less than one.
@pytest.mark.parametrize(
    ("layers", "options"),
    [
        (2, {}),
        pytest.param(7, {}, marks=pytest.mark.nightly),
        pytest.param(1, {"first_norm": False}, marks=pytest.mark.nightly),
        pytest.param(8, {"first_norm": False}, marks=pytest.mark.nightly),
        pytest.param(7, {"scan_layers": False}, marks=pytest.mark.slow),
    ],
)
def test_every_third_layer_reads_all_tokens(layers, options):
    """Outputs and gradients are those of the layers one by one."""
    spec = transformer(layers=layers, window=4, **ROTARY, **options)
    encoder = Encoder(spec, nnx.Rngs(0))
    for number, layer in enumerate(encoder.layer_specs):
        reads_all = number % 3 == 0
        assert layer.window == (0 if reads_all else 4)
        assert layer.rotary_theta == (10_000.0 if reads_all else 100.0)
    assert len(encoder.layer_specs) == layers
    x = normal(2, 24, 16)

    def output_and_gradient(run):
        def loss(x):
            y = run(x)
            return jnp.sin(y).sum(), y

        gradient_of = quick_jit(jax.grad(loss, has_aux=True))
        gradient, y = gradient_of(x)
        return y, gradient

    y, gradient = output_and_gradient(encoder)
    layer_by_layer = functools.partial(one_by_one, encoder)
    expected, expected_gradient = output_and_gradient(layer_by_layer)
    assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_states_within_a_period_are_outputs_of_shorter_encoders():
    spec = transformer(layers=7, window=4, **ROTARY)
    encoder = Encoder(spec, nnx.Rngs(0))
    x = normal(2, 24, 16)
    layers = (1, 4, 6)
    compute_states = quick_jit(lambda x: encoder.states(x, layers))
    states = compute_states(x)
    for layer, state in zip(layers, states, strict=True):
        count = layer + 1
        shorter_spec = dataclasses.replace(spec, layers=count)
        shorter = Encoder(shorter_spec, nnx.Rngs(0))
        params = nnx.state(encoder.blocks)
        nnx.update(shorter.blocks, first_layers(params, count))
        expected = quick_jit(shorter)(x)
        assert_allclose(state, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_runs_are_consecutive_layers_of_one_program():
    spec = transformer(layers=8, window=4, first_norm=False, **ROTARY)
    encoder = Encoder(spec, nnx.Rngs(0))
    counts = []
    windows = []
    for run in encoder.runs:
        scale = run.mlp_norm.scale[...]
        counts.append(len(scale))
        windows.append(run.attention.spec.window)
    assert counts == [1, 2, 1, 2, 1, 1]
    assert windows == [0, 4, 0, 4, 0, 4]
    last_run_mlp = encoder.runs[-1].mlp
    last_run = last_run_mlp.proj_in.kernel[...]
    last_stack_mlp = encoder.stacks[-1].mlp
    last_stack = last_stack_mlp.proj_in.kernel[...]
    assert_array_equal(last_run[0], last_stack[-1])


def test_deep_encoders_are_compiled_by_periods():
    """As many products in the program for 22 layers as for 7."""

    def products(layers):
        spec = transformer(layers=layers, window=4, first_norm=False, **ROTARY)
        module = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
        state, call = function_of(module)
        return count("dot_general", call, state, normal(1, 24, 16))

    assert products(22) == products(7)
    assert products(22) < 2 * products(4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"first_norm": False, "norm": "post"}, "set model.norm to 'pre'"),
        ({"global_every": -1}, "global_every is -1: expected at least 0"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        transformer(**options)
