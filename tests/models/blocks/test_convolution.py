import math

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models.blocks.convolution import ConvolutionBlock
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.training import optimizer
from tests.models.reference import (
    convolution_block,
    in_float64,
    keys,
    layer_norm,
    layer_of,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

KINDS = pytest.mark.parametrize("kind", ["lightweight", "dynamic"])


def spec_of(kind="lightweight", **fields):
    options = {"block": "convolution", "convolution": kind}
    return small_spec(**options | fields)


def block(kind="lightweight", **fields):
    return ConvolutionBlock(spec_of(kind, **fields), nnx.Rngs(0))


@pytest.mark.slow
@KINDS
@in_float64
def test_fresh_kernels_have_no_dominant_entry(kind):
    """A softmax of logits within 1 (lightweight), or of normed tokens (dynamic, for each token
    another)."""
    module = block(kind, kernel_widths=(3,))
    x = jnp.asarray(normal(0, 2, 5, 6))
    computed = module.convolution.kernel(x)
    kernel = np.asarray(computed)
    assert_allclose(kernel.sum(-1), 1, atol=1e-12)
    if kind == "lightweight":
        assert kernel.shape == (3, 3)
        lowest = math.e**-2
        least = lowest / (lowest + 2)
        highest = math.e**2
        most = highest / (highest + 2)
    else:
        assert kernel.shape == (2, 5, 3, 3)
        least = 0.003
        most = 0.98
    assert least < kernel.min()
    assert kernel.max() < most
    assert np.ptp(kernel) > 0.1


@KINDS
@in_float64
def test_kernel_dropout_keeps_the_mean(kind):
    """Over many keys, for each example its own."""
    module = randomized(lambda: block(kind, attention_dropout=0.25))
    convolution = module.convolution
    call = quick_jit(convolution)
    x = normal(0, 1, 5, 6)
    undropped = call(x)[0]
    copies = np.broadcast_to(x, (4000, 5, 6))
    key = keys(0, 4000)
    dropped = np.asarray(call(copies, key))
    root = np.sqrt(len(dropped))
    error = dropped.std(0) / root
    assert error.min() > 0
    mean = dropped.mean(0)
    difference = np.abs(mean - undropped)
    assert (difference < 5 * error).all()


@KINDS
@in_float64
def test_kernel_dropout_depends_only_on_the_key(kind):
    module = randomized(lambda: block(kind, attention_dropout=0.25))
    convolution = module.convolution
    call = quick_jit(convolution)
    x = normal(0, 1, 5, 6)
    first = call(x, keys(1, 1))
    again = call(x, keys(1, 1))
    other = call(x, keys(2, 1))
    assert_array_equal(first, again)
    difference = np.abs(first - other)
    assert difference.max() > 1e-3


@KINDS
@in_float64
def test_kernels_without_a_rate_are_not_dropped(kind):
    convolution = randomized(lambda: block(kind)).convolution
    call = quick_jit(convolution)
    x = normal(0, 1, 5, 6)
    assert_array_equal(call(x, keys(1, 1)), call(x))


def test_finetuning_drops_kernels_at_the_rate_of_attention_weights():
    options = gmlp_config.from_file("configs/finetune_glue.py", "mnli")
    config = gmlp_config.changed(options, block="convolution")
    assert config.model.attention_dropout == 0.1


@pytest.mark.parametrize(
    ("widths", "dilations", "stacks"),
    [
        ((3,), (1,), [3]),
        ((3, 3, 3), (1,), [3]),
        ((3, 3, 5), (1,), [2, 1]),
        ((3, 5, 3), (1,), [1, 1, 1]),
        ((3,), (1, 2, 2), [1, 2]),
        ((3, 4, 4), (1, 1, 2), [1, 1, 1]),
    ],
)
@in_float64
def test_layers_with_equal_kernels_are_stacked(widths, dilations, stacks):
    """Each layer computes what it would alone."""
    spec = spec_of(kernel_widths=widths, dilations=dilations)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)))
    p = params_of(module)
    blocks = p["blocks"].values()
    if len(stacks) == 1:
        blocks = [p["blocks"]]
    layers = []
    for stack, count in zip(blocks, stacks, strict=True):
        assert len(stack["mlp_norm"]["scale"]) == count
        stack_layers = []
        for number in range(count):
            stack_layers.append(layer_of(stack, number))
        layers += stack_layers
    x = normal(0, 5, 6)
    [y] = quick_jit(module)(x[None])
    pairs = zip(layers, spec.kernels, strict=True)
    for layer, (width, dilation) in pairs:
        logits = layer["convolution"]["kernel"]["logits"]
        assert logits.shape == (3, width)
        x = convolution_block(layer, x, dilation=dilation)
    expected = layer_norm(p["norm"], x)
    assert_allclose(y, expected, atol=1e-9)


def test_learning_rates_grow_over_the_depth_of_all_stacks():
    config = gmlp_config.default(block="convolution")
    config.model.update(kernel_widths=(3, 3, 5, 7), layers=4, d_model=8, d_ffn=8, vocab_size=20)
    task = tasks.find(config.task)(config)
    lines = ("^encoder/blocks/=0.125..1",)
    metadata = task.param_metadata()
    factors = optimizer.factors(task.shapes(), lines, metadata)
    of_stacks = []
    for number in range(3):
        path = f"encoder/blocks/stack_{number}/mlp_norm/scale"
        of_stacks.append(factors[path])
    shapes = [factor.shape for factor in of_stacks]
    assert shapes == [(2, 1), (1, 1), (1, 1)]
    by_layer = np.concatenate(of_stacks)[:, 0]
    assert_allclose(by_layer, [0.125, 0.25, 0.5, 1], rtol=1e-6)
    assert factors["embedding"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_widths": (3, 3)}, r"kernel_widths is \(3, 3\): .* or 3"),
        ({"kernel_widths": ()}, "kernel_widths"),
        ({"kernel_widths": (0,)}, r"kernel_widths is \(0,\)"),
        ({"dilations": (1, 0, 2)}, r"dilations is \(1, 0, 2\)"),
        # A wider kernel would have an entry that reads no token.
        ({"kernel_widths": (9, 9, 10)}, r"kernel_widths has 10 \(dilation 1\), .* at most 9"),
        (
            {"dilations": (5,), "kernel_widths": (3,)},
            r"kernel_widths has 3 \(dilation 5\), .* at most 1",
        ),
        ({"heads": 4}, "model.heads, 4"),
        ({"convolution": "fixed"}, "model.convolution is 'fixed'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        spec_of(**options)
