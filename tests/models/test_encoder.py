import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models import parameters
from gmlp_flax.models.blocks import BLOCKS
from gmlp_flax.models.encoder import Encoder, find_encoder
from tests.models import reference
from tests.models.reference import (
    count,
    function_of,
    in_float64,
    keys,
    normal,
    params_of,
    program,
    quick_jit,
    randomized,
    small_spec,
)
from tests.selection import marked_unless

KINDS = {
    "gmlp": {},
    "amlp": {"d_attn": 3},
    "depthwise": {"spatial": "depthwise", "gate_kernel": 3},
    "transformer": {"block": "transformer", "heads": 2, "positions": "relative"},
    "bert": {"block": "transformer", "heads": 2, "norm": "post"},
    "rel_only": {"block": "transformer", "heads": 2, "positions": "relative_only"},
    "mixer": {"block": "mixer", "d_spatial": 4},
    "resmlp": {"block": "resmlp"},
    "feed_forward": {"block": "feed_forward", "d_spatial": 20},
    "fnet": {"block": "fnet", "dft": "matmul"},
    "fnet_hybrid": {"block": "fnet_hybrid", "heads": 2, "attention_layers": 1, "dft": "matmul"},
    "random": {"block": "synthesizer"},
    "dense+attention": {"block": "synthesizer", "synthesizer": "dense+attention"},
    "external": {"block": "external_attention"},
    "lightweight": {"block": "convolution"},
    "long_conv": {"block": "long_conv", "filter_width": 4},
    "dynamic": {"block": "convolution", "convolution": "dynamic"},
    "growing": {"block": "convolution", "kernel_widths": (3, 3, 5)},
}


def encoder(**fields):
    return randomized(lambda: Encoder(small_spec(**fields), nnx.Rngs(0)))


def gradient_of(call):
    """The gradient of the sum of squares of an encoder's output, by its parameters and its
    input."""

    def sum_of_squares(state, x):
        y = call(state, x)
        return (y**2).sum()

    return jax.grad(sum_of_squares, argnums=(0, 1))


def equations_named(name, trace):
    """The equations of a traced program with this primitive."""
    return [equation for equation in trace if equation.primitive.name == name]


def outputs_of(name, trace):
    """The shapes and types of the first outputs of the equations with this primitive."""
    return [equation.outvars[0].aval for equation in equations_named(name, trace)]


def identity(_, x):
    return x


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("kind", "block", "norm"),
    [
        ("gmlp", reference.gmlp_block, reference.layer_norm),
        ("amlp", reference.gmlp_block, reference.layer_norm),
        ("resmlp", reference.resmlp_block, reference.affine),
        ("fnet", reference.fnet_block, identity),
        ("bert", reference.post_norm_block, identity),
    ],
)
@in_float64
def test_encoders_agree_with_numpy(kind, block, norm):
    """Each with the final norm that its block names."""
    module = encoder(**KINDS[kind])
    x = normal(0, 5, 6)
    p = {"norm": None} | params_of(module)
    expected = reference.encoder(p, x, block, norm)
    [found] = quick_jit(module)(x[None])
    largest = np.abs(expected).max()
    assert_allclose(found, expected, atol=1e-9 * largest)


@pytest.mark.parametrize(
    "kind", ["transformer", "fnet_hybrid", "dense+attention", "dynamic", "growing"]
)
@in_float64
def test_scans_apply_the_blocks_one_by_one(kind):
    module = encoder(**KINDS[kind])

    @quick_jit
    def one_by_one(x):
        pairs = zip(module.stack_specs, module.stacks, strict=True)
        for spec, stack in pairs:
            definition, stacked = nnx.split(stack)
            for layer in range(spec.layers):
                params = reference.layer_of(stacked, layer)
                block = nnx.merge(definition, params)
                x = block(x)
        return module.norm(x)

    x = normal(0, 2, 5, 6)
    found = quick_jit(module)(x)
    assert_allclose(found, one_by_one(x), atol=1e-12)


# The filters of a long convolution read no activations, and are computed in float32.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "long_conv"])
def test_bfloat16_branches_may_have_a_float32_stream(kind):
    """The scan carries it; the operands of all products that read activations stay in bfloat16."""
    module = encoder(dtype="bfloat16", residual_dtype="float32", **KINDS[kind])
    state, call = function_of(module)
    x = jnp.ones((2, 5, 6), jnp.bfloat16)
    traced = program(call, state, x)
    carried = {str(output.dtype) for output in outputs_of("scan", traced)}
    assert carried == {"float32"}
    multiplied = set()
    for product in equations_named("dot_general", traced):
        for operand in product.invars:
            multiplied.add(str(operand.aval.dtype))
    assert multiplied == {"bfloat16"}
    assert jax.eval_shape(call, state, x).dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", ["gmlp", "transformer"])
def test_causal_encoders_continue_in_a_float32_stream(kind):
    types = {"dtype": "bfloat16", "residual_dtype": "float32"}
    module = encoder(causal=True, **types, **KINDS[kind])
    state, extend = function_of(module, "extend")

    def begin(state, x):
        return extend(state, x, None, 0)

    x = jnp.ones((2, 3, 6), jnp.bfloat16)
    traced = program(begin, state, x)
    [carried] = outputs_of("scan", traced)
    assert carried.dtype == jnp.float32


def mixed_precision_encoder(kind, scan_layers):
    types = {"dtype": "bfloat16", "residual_dtype": "float32"}
    return encoder(scan_layers=scan_layers, **types, **KINDS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("kind", ["gmlp", "bert", "fnet_hybrid", "growing"])
def test_the_last_state_is_the_output_and_the_first_that_of_one_layer(kind, scan_layers):
    module = mixed_precision_encoder(kind, scan_layers)
    layers = module.spec.layers
    numbers = normal(0, 2, 5, 6)
    x = jnp.asarray(numbers, jnp.bfloat16)

    @quick_jit
    def states(x):
        return module.states(x, [0, -1, layers - 1])

    first, last, same = states(x)
    output = quick_jit(module)(x)
    assert_array_equal(last, output)
    assert_array_equal(same, last)
    first_spec, *_ = module.stack_specs
    first_stack, *_ = module.stacks
    one_layer = dataclasses.replace(first_spec, layers=1)
    definition, stacked = nnx.split(first_stack)
    layer_state = reference.layer_of(stacked, 0)
    block = nnx.merge(definition, layer_state)

    @quick_jit
    def first_alone(x):
        stream = x.astype(one_layer.stream_dtype)
        return module.norm(block(stream))

    assert first.dtype == jnp.bfloat16
    expected = np.float32(first_alone(x))
    assert_allclose(np.float32(first), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("layer", [3, -4])
def test_states_of_missing_layers_are_refused(layer):
    module = encoder(layers=3, dtype="float32")
    x = jnp.ones((2, 5, 6))
    with pytest.raises(ValueError, match=f"no layer {layer}"):
        module.states(x, [layer])


@pytest.mark.parametrize(("stream_dtype", "total"), [("", 256), ("float32", 272)])
def test_small_branches_are_not_lost_in_a_float32_stream(stream_dtype, total):
    """32 layers add 1/2 to one channel of 256, near which bfloat16 has only even numbers."""
    spec = small_spec(block="resmlp", layers=32, dtype="bfloat16", residual_dtype=stream_dtype)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)), std=0.0)
    no_positions = jnp.zeros((32, 6))
    half_for_first_channel = no_positions.at[:, 0].set(0.5)
    blocks = module.blocks
    blocks.mlp_scale.scale[...] = jnp.ones((32, 6))
    blocks.mlp.proj_out.bias[...] = half_for_first_channel
    module.norm.scale[...] = jnp.ones(6)
    x = jnp.full((1, 5, 6), 256, jnp.bfloat16)
    y = quick_jit(module)(x)
    expected = np.full((1, 5, 6), 256)
    expected[..., 0] = total
    assert_array_equal(np.float32(y), expected)


def test_parameters_are_stacked_and_differ_by_layer():
    spec = small_spec(dtype="float32")

    @quick_jit
    def make():
        encoder = Encoder(spec, nnx.Rngs(0))
        return nnx.state(encoder, nnx.Param)

    module = make()
    params = jax.tree.map(np.asarray, nnx.to_pure_dict(module))
    kernel = params["blocks"]["proj_in"]["kernel"]
    assert kernel.shape == (3, 6, 8)
    gate = params["blocks"]["gate"]
    assert gate["spatial"]["taps"].shape == (3, 9)
    assert params["norm"]["scale"].shape == (6,)
    for first, second in itertools.combinations(kernel, 2):
        difference = np.abs(first - second)
        assert difference.max() > 0.1


# Layers of one program, of several in turn, and a transform that draws nothing.
REMATERIALISED = ("gmlp", "fnet_hybrid", "growing")


@pytest.mark.slow
@pytest.mark.parametrize("kind", marked_unless(REMATERIALISED, KINDS, pytest.mark.nightly))
@in_float64
def test_remat_policies_change_no_number(kind):
    """Outputs and gradients of the three policies, and of layers one by one, under one key's
    dropout and stochastic depth."""
    x = normal(0, 2, 5, 6)
    key = keys(0, 2)
    layers = 3 if kind == "growing" else 2

    def numbers(**options):
        """The gradients and the output."""
        module = encoder(layers=layers, dropout=0.2, survival=0.8, **options, **KINDS[kind])
        state, call = function_of(module)

        def loss(state, x):
            y = call(state, x, key)
            return (y**2).sum(), y

        gradient = quick_jit(jax.grad(loss, argnums=(0, 1), has_aux=True))
        return jax.tree.leaves(gradient(state, x))

    without_remat = numbers(remat="none")
    with_remat = [
        numbers(remat="matmuls"),
        numbers(remat="full"),
        numbers(remat="matmuls", scan_layers=False),
    ]
    for arrays in with_remat:
        for found, expected in zip(arrays, without_remat, strict=True):
            largest = np.abs(expected).max()
            assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * largest)


class Recomputed(NamedTuple):
    """Matrix products of one layer: those of the forward pass, and those that a backward pass
    repeats under the remat policies `matmuls` and `full`."""

    forward: int
    matmuls: int
    full: int


# Under `matmuls`, the scores of attention, tokens x tokens, are not kept; its other products are.
# The last product of a block is only needed for the scales of ResMLP and for a post-norm. Two
# stacks of one layer count as two layers.
RECOMPUTED = {
    "gmlp": Recomputed(4, 0, 3),
    "depthwise": Recomputed(3, 0, 2),
    "amlp": Recomputed(8, 1, 7),
    "transformer": Recomputed(6, 1, 5),
    "mixer": Recomputed(4, 0, 3),
    "feed_forward": Recomputed(4, 0, 3),
    "resmlp": Recomputed(3, 0, 3),
    "fnet": Recomputed(6, 0, 6),
    "fnet_hybrid": Recomputed(12, 1, 12),
    "random": Recomputed(5, 0, 4),
    "dense+attention": Recomputed(9, 2, 8),  # both kinds of logits
    "external": Recomputed(6, 2, 5),
    "lightweight": Recomputed(5, 0, 4),
    "dynamic": Recomputed(6, 0, 5),
    "growing": Recomputed(10, 0, 8),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECOMPUTED)
def test_backward_passes_recompute_as_few_products_as_the_policy_allows(kind):
    """Each product of the forward pass has two in the backward pass, but the gradient of a Fourier
    transform by four products takes four, not eight."""
    counts = RECOMPUTED[kind]
    saved = 4 if kind.startswith("fnet") else 0
    recomputed = {"none": 0, "matmuls": counts.matmuls, "full": counts.full}
    x = jnp.ones((2, 5, 6))
    for policy, repeated in recomputed.items():
        module = encoder(remat=policy, dtype="float32", **KINDS[kind])
        state, call = function_of(module)
        backward = 2 * counts.forward - saved + repeated
        forward_count = count("dot_general", call, state, x)
        assert forward_count == counts.forward
        gradient_count = count("dot_general", gradient_of(call), state, x)
        assert gradient_count == counts.forward + backward


@pytest.mark.parametrize(
    ("policy", "channels"),
    [
        ("matmuls", [4, 4, 4, 6]),
        ("full", [6]),
    ],
)
def test_layers_store_what_their_policy_allows(policy, channels):
    """The block's input (6) and, of the products, those that backward needs: both halves of U's and
    W's (4)."""
    module = encoder(remat=policy, dtype="float32")
    state, call = function_of(module)
    x = jnp.ones((2, 5, 6))
    traced = program(gradient_of(call), state, x)
    forward, backward = equations_named("scan", traced)
    assert forward.params["length"] == 3
    assert backward.params["length"] == 3
    _, *stored = forward.outvars
    shapes = sorted(output.aval.shape for output in stored)
    assert shapes == [(3, 2, 5, width) for width in channels]


@pytest.mark.parametrize(
    ("fields", "survival"),
    [
        pytest.param(
            {"survival_schedule": "constant"},
            [0.6, 0.6, 0.6, 0.6],
            id="constant",
        ),
        pytest.param(
            {"survival_schedule": "linear"},
            [1.0, 13 / 15, 11 / 15, 0.6],
            id="linear",
        ),
        pytest.param(
            {"survival_schedule": "linear", "kernel_widths": (3, 3, 5, 5)},
            [1.0, 13 / 15, 11 / 15, 0.6],
            id="linear over two stacks",
        ),
    ],
)
def test_layers_drop_their_branches_independently(fields, survival):
    """By a schedule over the layers of all stacks. The branch of layer l adds only to
    channel l."""
    spec = small_spec(block="convolution", layers=4, survival=0.6, dtype="float32", **fields)
    samples = 4000
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)), std=0.0)
    rows = 1000 * jnp.eye(4, 6)
    biases = np.split(rows, len(module.stacks))
    for stack, bias in zip(module.stacks, biases, strict=True):
        stack.convolution.out.bias[...] = bias
    module.norm.scale[...] = jnp.ones(6)
    zeros = jnp.zeros((samples, 5, 6))
    outputs = quick_jit(module)(zeros, keys(0, samples))
    y = np.asarray(outputs[:, 0])
    untouched = y[:, 4:5]
    first_channels = y[:, :4]
    survived = first_channels > untouched + 1e-3
    deviation = np.sqrt(0.25 / samples)
    share = survived.mean(0)
    assert_allclose(share, survival, atol=4 * deviation)
    can_drop = np.array(survival) < 1
    correlations = np.corrcoef(survived.T[can_drop])
    with_itself = np.eye(len(correlations))
    between_layers = correlations - with_itself
    limit = 4.5 / np.sqrt(samples)
    assert np.abs(between_layers).max() < limit


def names_of_blocks(**fields):
    params = params_of(encoder(dtype="float32", **fields))
    return list(params["blocks"])


def test_equal_layers_are_one_stack():
    """Under the names that all models have."""
    assert names_of_blocks(block="convolution")[0] == "convolution"
    without_attention = names_of_blocks(block="fnet_hybrid", attention_layers=0)
    assert without_attention == names_of_blocks(block="fnet")


@pytest.mark.parametrize("kind", ["fnet_hybrid", "growing"])
def test_stacks_of_different_layers_are_numbered(kind):
    assert names_of_blocks(**KINDS[kind]) == ["stack_0", "stack_1"]


def layers_by_path(module):
    metadata = parameters.metadata(module)
    return {path: found.layers for path, found in metadata.items()}


@in_float64
def test_metadata_have_the_layers_of_each_stack():
    """Each stack begins where the one before it ends; parameters outside the stacks have no
    layers."""
    hybrid = encoder(**KINDS["fnet_hybrid"])
    first, second = (spec.layers for spec in hybrid.stack_specs)
    total = first + second
    for path, layers in layers_by_path(hybrid).items():
        if path.startswith("blocks/stack_0/"):
            assert layers == (0, total), path
        elif path.startswith("blocks/stack_1/"):
            assert layers == (first, total), path
        else:
            assert layers is None, path
            assert path.startswith("norm/"), path


@in_float64
def test_metadata_have_the_layers_of_a_single_stack():
    for path, layers in layers_by_path(encoder(layers=3)).items():
        if path in ("norm/scale", "norm/bias"):
            assert layers is None, path
        else:
            assert layers == (0, 3), path


class Model(nnx.Module):
    """A user's model with some modules."""

    def __init__(self, **attributes):
        for name, module in attributes.items():
            setattr(self, name, module)


@in_float64
def test_encoders_are_found_under_any_name():
    body = encoder(layers=2)
    head = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    model = Model(head=head, inner=Model(body=body))
    assert find_encoder(model) is body
    layers = layers_by_path(model)
    without_layers = {path for path, found in layers.items() if found is None}
    assert without_layers == {
        "head/kernel",
        "head/bias",
        "inner/body/norm/scale",
        "inner/body/norm/bias",
    }


def test_models_without_an_encoder_are_refused():
    head = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="Model has no Encoder"):
        find_encoder(Model(head=head))


@in_float64
def test_training_without_noise_is_evaluation():
    x = normal(0, 2, 5, 6)
    key = keys(0, 2)
    other_key = keys(1, 2)
    quiet = quick_jit(encoder())
    noisy = quick_jit(encoder(survival=0.5, dropout=0.3))
    evaluated = quiet(x)
    assert_array_equal(quiet(x, key), evaluated)
    assert_array_equal(noisy(x), evaluated)
    trained = noisy(x, key)
    assert_array_equal(noisy(x, key), trained)
    noise = noisy(x, other_key) - trained
    assert np.abs(noise).max() > 0.01


def shapes_of_draws(x, *inputs, **fields):
    """The shapes of the random numbers that an encoder draws."""
    module = encoder(dtype="float32", **fields)
    state, call = function_of(module)
    trace = program(call, state, x, *inputs)
    return [output.shape for output in outputs_of("random_bits", trace)]


def test_dropout_reaches_the_embeddings_and_every_branch():
    """One random draw for the embeddings and, scanned, one for each layer's branch."""
    x = jnp.ones((2, 5, 6))
    shapes = shapes_of_draws(x, keys(0, 2), dropout=0.1)
    assert shapes == [(2, 5, 6), (2, 5, 6)]
    assert shapes_of_draws(x, dropout=0.1) == []


@pytest.mark.parametrize(
    ("kind", "draws"),
    [
        ("amlp", [(2, 5, 5)]),
        ("rel_only", [(2, 2, 5, 5)]),
        ("gmlp", []),
        ("fnet_hybrid", [(2, 2, 5, 5)]),
        ("random", [(2, 3, 5, 5)]),
        ("lightweight", [(2, 1, 3, 7)]),
        ("dynamic", [(2, 5, 3, 7)]),
    ],
)
def test_attention_dropout_reaches_only_the_weights(kind, draws):
    """Once for all layers, which are scanned; also weights that all examples share are drawn for
    each."""
    x = jnp.ones((2, 5, 6))
    fields = {"attention_dropout": 0.1} | KINDS[kind]
    shapes = shapes_of_draws(x, keys(0, 2), **fields)
    assert shapes == draws
    assert shapes_of_draws(x, **fields) == []


def abstract_encoder():
    spec = BLOCKS["gmlp"].spec(length=5, layers=1, d_model=6, d_ffn=8)
    return nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))


def test_inputs_of_another_width_are_refused():
    with pytest.raises(AssertionError):
        abstract_encoder()(normal(0, 2, 5, 7))


@pytest.mark.parametrize("shape", [(2, 4), (1, 5), (5,), (2, 5, 1)])
def test_masks_of_another_shape_are_refused(shape):
    mask = jnp.ones(shape, bool)
    with pytest.raises(ValueError, match="padding_mask has the shape"):
        abstract_encoder()(normal(0, 2, 5, 6), padding_mask=mask)
