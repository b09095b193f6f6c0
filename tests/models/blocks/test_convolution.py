import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models.blocks.convolution import ConvolutionBlock
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.training import optimizer
from tests.models import reference
from tests.models.reference import (
    convolution_block,
    in_float64,
    keys,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

KINDS = pytest.mark.parametrize("kind", ["lightweight", "dynamic"])


def spec_of(kind="lightweight", **fields):
    return small_spec(**{"block": "convolution", "convolution": kind} | fields)


def block(kind="lightweight", **fields):
    return ConvolutionBlock(spec_of(kind, **fields), nnx.Rngs(0))


@KINDS
@in_float64
def test_no_entry_prevails_in_a_fresh_kernel(kind):
    """A softmax of logits within 1 (lightweight), or of normed tokens (dynamic, for each token
    another)."""
    module = block(kind, kernel_widths=(3,))
    kernel = np.asarray(module.convolution.kernel(jnp.asarray(normal(0, 2, 5, 6))))
    np.testing.assert_allclose(kernel.sum(-1), 1, atol=1e-12)
    assert kernel.shape == ((3, 3) if kind == "lightweight" else (2, 5, 3, 3))
    least, most = (
        (math.e**-2 / (math.e**-2 + 2), math.e**2 / (math.e**2 + 2))
        if kind == "lightweight"
        else (0.003, 0.98)
    )
    assert least < kernel.min()
    assert kernel.max() < most
    assert np.ptp(kernel) > 0.1


@KINDS
@in_float64
def test_dropout_of_kernels(kind):
    """Of the softmax's outputs, for each example: its mean over keys is what is undropped, a key
    decides all of it, and no rate, or no key, drops nothing."""
    module = randomized(lambda: block(kind, attention_dropout=0.25)).convolution
    x = normal(0, 1, 5, 6)
    call = quick_jit(module)
    undropped = quick_jit(module)(x)[0]
    drops = np.asarray(call(np.broadcast_to(x, (4000, 5, 6)), keys(0, 4000)))
    error = drops.std(0) / np.sqrt(len(drops))
    assert (np.abs(drops.mean(0) - undropped) < 5 * error).all()
    assert error.min() > 0
    np.testing.assert_array_equal(call(x, keys(1, 1)), call(x, keys(1, 1)))
    assert np.abs(call(x, keys(1, 1)) - call(x, keys(2, 1))).max() > 1e-3
    none = randomized(lambda: block(kind)).convolution
    np.testing.assert_array_equal(quick_jit(none)(x, keys(1, 1)), undropped[None])


def test_finetuning_drops_kernels_as_attentions_weights():
    options = gmlp_config.from_file("configs/finetune_glue.py", "mnli")
    assert gmlp_config.changed(options, block="convolution").model.attention_dropout == 0.1


@pytest.mark.parametrize(("widths", "dilations", "stacks"), [
    ((3,), (1,), [3]), ((3, 3, 3), (1,), [3]), ((3, 3, 5), (1,), [2, 1]), ((3, 5, 3), (1,), [1, 1, 1]),
    ((3,), (1, 2, 2), [1, 2]), ((3, 4, 4), (1, 1, 2), [1, 1, 1]),
])  # fmt: skip
@in_float64
def test_kernels_that_grow_with_depth(widths, dilations, stacks):
    """Layers with equal kernels are scanned together; each layer computes what it would alone."""
    spec = spec_of(kernel_widths=widths, dilations=dilations)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)))
    p = params_of(module)
    x = normal(0, 5, 6)
    blocks = [p["blocks"]] if len(stacks) == 1 else list(p["blocks"].values())
    assert [len(each["mlp_norm"]["scale"]) for each in blocks] == stacks
    y = quick_jit(module)(x[None])[0]
    flat = [
        jax.tree.map(lambda leaf, at=at: leaf[at], each)
        for each, count in zip(blocks, stacks, strict=True)
        for at in range(count)
    ]
    for layer, (width, dilation) in zip(flat, spec.kernels, strict=True):
        assert layer["convolution"]["kernel"]["logits"].shape == (3, width)
        x = convolution_block(layer, x, dilation=dilation)
    np.testing.assert_allclose(y, reference.layer_norm(p["norm"], x), atol=1e-9)


def test_rates_grow_over_the_depth_of_all_stacks():
    config = gmlp_config.default(block="convolution")
    config.model.update(kernel_widths=(3, 3, 5, 7), layers=4, d_model=8, d_ffn=8, vocab_size=20)
    task = tasks.find(config.task)(config)
    lines = ("^encoder/blocks/=0.125..1",)
    found = optimizer.factors(task.shapes(), lines, task.param_metadata())
    by_stack = [found[f"encoder/blocks/stack_{number}/mlp_norm/scale"] for number in range(3)]
    np.testing.assert_allclose(np.concatenate(by_stack)[:, 0], [0.125, 0.25, 0.5, 1], rtol=1e-6)
    assert [each.shape for each in by_stack] == [(2, 1), (1, 1), (1, 1)]
    assert found["embedding"] == 1


@pytest.mark.parametrize(("options", "message"), [
    ({"kernel_widths": (3, 3)}, r"kernel_widths is \(3, 3\): .* or 3"), ({"kernel_widths": ()}, "kernel_widths"),
    ({"kernel_widths": (0,)}, r"kernel_widths is \(0,\)"), ({"dilations": (1, 0, 2)}, r"dilations is \(1, 0, 2\)"),
    # One entry more than at most would meet no token from any place.
    ({"kernel_widths": (9, 9, 10)}, r"kernel_widths has 10 \(dilation 1\), .* at most 9"),
    ({"dilations": (5,), "kernel_widths": (3,)}, r"kernel_widths has 3 \(dilation 5\), .* at most 1"),
    ({"heads": 4}, "model.heads, 4"), ({"convolution": "fixed"}, "model.convolution is 'fixed'"),
])  # fmt: skip
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        spec_of(**options)
