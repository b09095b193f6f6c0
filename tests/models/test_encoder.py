import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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


@pytest.mark.smoke
@pytest.mark.parametrize("kind, block, norm", [
    ("gmlp", reference.gmlp_block, reference.layer_norm), ("amlp", reference.gmlp_block, reference.layer_norm),
    ("resmlp", reference.resmlp_block, reference.affine), ("fnet", reference.fnet_block, lambda p, x: x),
    ("bert", reference.post_norm_block, lambda p, x: x),
])  # fmt: skip
@in_float64
def test_against_numpy(kind, block, norm):
    """Each with the final norm that its block names."""
    module = encoder(**KINDS[kind])
    x = normal(0, 5, 6)
    p = {"norm": None} | params_of(module)
    expected = reference.encoder(p, x, block, norm)
    [found] = quick_jit(module)(x[None])
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=1e-9 * largest)


@pytest.mark.parametrize(
    "kind", ["transformer", "fnet_hybrid", "dense+attention", "dynamic", "growing"]
)
@in_float64
def test_the_scan_applies_the_blocks_one_by_one(kind):
    module = encoder(**KINDS[kind])

    @quick_jit
    def one_by_one(x):
        for spec, stack in zip(module.stack_specs, module.stacks, strict=True):
            definition, stacked = nnx.split(stack)
            for layer in range(spec.layers):
                params = reference.layer_of(stacked, layer)
                block = nnx.merge(definition, params)
                x = block(x)
        return module.norm(x)

    x = normal(0, 2, 5, 6)
    np.testing.assert_allclose(quick_jit(module)(x), one_by_one(x), atol=1e-12)


# The filters of a long convolution read no activations, and are computed in float32.
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "long_conv"])
def test_a_float32_stream_between_branches_in_bfloat16(kind):
    """The scan carries it; the operands of all products that read activations stay in bfloat16."""
    state, call = function_of(encoder(dtype="bfloat16", residual_dtype="float32", **KINDS[kind]))
    x = jnp.ones((2, 5, 6), jnp.bfloat16)
    traced = program(call, state, x)
    carried = {output.dtype for output in outputs_of("scan", traced)}
    assert carried == {jnp.dtype("float32")}
    multiplied = set()
    for product in equations_named("dot_general", traced):
        for operand in product.invars:
            multiplied.add(operand.aval.dtype)
    assert multiplied == {jnp.dtype("bfloat16")}
    assert jax.eval_shape(call, state, x).dtype == jnp.bfloat16


@pytest.mark.parametrize("kind", ["gmlp", "transformer"])
def test_a_causal_encoder_continues_in_a_float32_stream(kind):
    types = {"dtype": "bfloat16", "residual_dtype": "float32"}
    module = encoder(causal=True, **types, **KINDS[kind])
    state, call = function_of(module, "extend")

    def begin(state, x):
        return call(state, x, None, 0)

    traced = program(begin, state, jnp.ones((2, 3, 6), jnp.bfloat16))
    [carried] = outputs_of("scan", traced)
    assert carried.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [True, False])
@pytest.mark.parametrize("kind", ["gmlp", "bert", "fnet_hybrid", "growing"])
def test_states_are_those_that_the_output_is_made_of(kind, scan_layers):
    """The last is the output; the first that of an encoder with one layer, in the same types."""
    module = encoder(
        dtype="bfloat16", residual_dtype="float32", scan_layers=scan_layers, **KINDS[kind]
    )
    layers = module.spec.layers
    x = jnp.asarray(normal(0, 2, 5, 6), jnp.bfloat16)
    first, last, again = quick_jit(lambda x: module.states(x, [0, -1, layers - 1]))(x)
    np.testing.assert_array_equal(last, quick_jit(module)(x))
    np.testing.assert_array_equal(again, last)
    first_spec, *_ = module.stack_specs
    first_stack, *_ = module.stacks
    one_layer = dataclasses.replace(first_spec, layers=1)
    definition, stacked = nnx.split(first_stack)
    block = nnx.merge(definition, reference.layer_of(stacked, 0))

    @quick_jit
    def first_alone(x):
        stream = x.astype(one_layer.stream_dtype)
        return module.norm(block(stream))

    assert first.dtype == jnp.bfloat16
    expected = np.float32(first_alone(x))
    np.testing.assert_allclose(np.float32(first), expected, rtol=0.02, atol=0.02)
    for layer in (layers, -layers - 1):
        with pytest.raises(ValueError, match=f"no layer {layer}"):
            module.states(x, [layer])


@pytest.mark.parametrize("stream, sums", [("", 256), ("float32", 272)])
def test_small_branches_are_not_lost_in_a_float32_stream(stream, sums):
    """32 layers add 1/2 to one channel of 256, of which bfloat16 only knows even numbers."""
    spec = small_spec(block="resmlp", layers=32, dtype="bfloat16", residual_dtype=stream)
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)), std=0.0)
    module.blocks.mlp_scale.scale[...] = jnp.ones((32, 6))
    module.blocks.mlp.proj_out.bias[...] = jnp.zeros((32, 6)).at[:, 0].set(0.5)
    module.norm.scale[...] = jnp.ones(6)
    found = quick_jit(module)(jnp.full((1, 5, 6), 256, jnp.bfloat16))
    expected = np.full((1, 5, 6), 256)
    expected[..., 0] = sums
    np.testing.assert_array_equal(np.float32(found), expected)


def test_parameters_are_stacked_and_differ_by_layer():
    spec = small_spec(dtype="float32")

    @quick_jit
    def make():
        encoder = Encoder(spec, nnx.Rngs(0))
        return nnx.state(encoder, nnx.Param)

    params = jax.tree.map(np.asarray, nnx.to_pure_dict(make()))
    kernel = params["blocks"]["proj_in"]["kernel"]
    assert kernel.shape == (3, 6, 8)
    assert params["blocks"]["gate"]["spatial"]["taps"].shape == (3, 9)
    assert params["norm"]["scale"].shape == (6,)
    for first, second in itertools.combinations(kernel, 2):
        assert np.abs(first - second).max() > 0.1


# Layers of one program, of several in turn, and a transform that draws nothing.
REMATERIALISED = ("gmlp", "amlp", "transformer", "fnet_hybrid", "long_conv", "growing")


@pytest.mark.slow
@pytest.mark.parametrize("kind", marked_unless(REMATERIALISED, KINDS, pytest.mark.nightly))
@in_float64
def test_remat_changes_no_number(kind):
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

    plain = numbers(remat="none")
    others = [
        numbers(remat="matmuls"),
        numbers(remat="full"),
        numbers(remat="matmuls", scan_layers=False),
    ]
    for other in others:
        for found, expected in zip(other, plain, strict=True):
            largest = np.abs(expected).max()
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * largest)


@pytest.mark.slow
@pytest.mark.parametrize("kind, dots, of_matmuls, of_full", [
    ("gmlp", 4, 0, 3), ("depthwise", 3, 0, 2),
    # The scores of attention, tokens x tokens, are not kept; its other products are.
    ("amlp", 8, 1, 7), ("transformer", 6, 1, 5), ("mixer", 4, 0, 3), ("feed_forward", 4, 0, 3),
    # The scales of its branches want the branches' last products.
    ("resmlp", 3, 0, 3),
    # A post-norm block needs its last product too, for its norm. Two stacks of one layer count as
    # two layers.
    ("fnet", 6, 0, 6), ("fnet_hybrid", 12, 1, 12), ("random", 5, 0, 4),
    # Both kinds of logits again.
    ("dense+attention", 9, 2, 8), ("external", 6, 2, 5), ("lightweight", 5, 0, 4), ("dynamic", 6, 0, 5),
    ("growing", 10, 0, 8),
])  # fmt: skip
def test_what_backward_recomputes(kind, dots, of_matmuls, of_full):
    """Matrix products of one layer: each has one forward and two backward; the last of a block is
    never needed.

    The gradient of a Fourier transform by four products takes four, not eight."""
    saved = 4 if kind.startswith("fnet") else 0
    x = jnp.ones((2, 5, 6))
    for policy, recomputed in {"none": 0, "matmuls": of_matmuls, "full": of_full}.items():
        module = encoder(remat=policy, dtype="float32", **KINDS[kind])
        state, call = function_of(module)
        backward = 2 * dots - saved + recomputed
        assert count("dot_general", gradient_of(call), state, x) == dots + backward
        assert count("dot_general", call, state, x) == dots


@pytest.mark.parametrize("policy, channels", [("matmuls", [4, 4, 4, 6]), ("full", [6])])
def test_what_a_layer_keeps(policy, channels):
    """The block's input (6) and, of the products, those that backward needs: both halves of U's and
    W's (4)."""
    state, call = function_of(encoder(remat=policy, dtype="float32"))
    traced = program(gradient_of(call), state, jnp.ones((2, 5, 6)))
    forward, backward = equations_named("scan", traced)
    kept = [out.aval.shape for out in forward.outvars[1:]]
    assert sorted(kept) == [(3, 2, 5, width) for width in channels]
    assert forward.params["length"] == backward.params["length"] == 3


@pytest.mark.parametrize("fields, survival", [
    ({"survival_schedule": "constant"}, [0.6, 0.6, 0.6, 0.6]),
    ({"survival_schedule": "linear"}, [1.0, 13 / 15, 11 / 15, 0.6]),
    ({"survival_schedule": "linear", "kernel_widths": (3, 3, 5, 5)}, [1.0, 13 / 15, 11 / 15, 0.6]),
])  # fmt: skip
def test_layers_drop_their_branches_independently(fields, survival):
    """By a schedule that goes on through all stacks. The branch of layer l adds to channel l
    alone."""
    spec = small_spec(block="convolution", layers=4, survival=0.6, dtype="float32", **fields)
    samples = 4000
    module = randomized(lambda: Encoder(spec, nnx.Rngs(0)), std=0.0)
    biases = iter(np.split(1000 * jnp.eye(4, 6), len(module.stacks)))
    for stack in module.stacks:
        stack.convolution.out.bias[...] = next(biases)
    module.norm.scale[...] = jnp.ones(6)
    outputs = quick_jit(module)(jnp.zeros((samples, 5, 6)), keys(0, samples))
    y = np.asarray(outputs[:, 0])
    untouched = y[:, 4:5]
    survived = y[:, :4] > untouched + 1e-3
    deviation = np.sqrt(0.25 / samples)
    np.testing.assert_allclose(survived.mean(0), survival, atol=4 * deviation)
    can_drop = np.array(survival) < 1
    correlations = np.corrcoef(survived.T[can_drop])
    of_pairs = correlations - np.eye(len(correlations))
    assert np.abs(of_pairs).max() < 4.5 / np.sqrt(samples)


def test_equal_layers_lie_in_one_stack():
    """Under the names that all models have; others in numbered ones."""

    def names(**fields):
        return list(params_of(encoder(dtype="float32", **fields))["blocks"])

    assert names(block="convolution")[0] == "convolution"
    assert names(block="fnet_hybrid", attention_layers=0) == names(block="fnet")
    assert names(**KINDS["fnet_hybrid"]) == names(**KINDS["growing"]) == ["stack_0", "stack_1"]


def layers_by_path(module):
    return {path: found.layers for path, found in parameters.metadata(module).items()}


@in_float64
def test_parameters_say_which_layers_they_stack():
    """Each stack begins where the one before it ends; what is beside the stacks has no layers."""
    hybrid = encoder(**KINDS["fnet_hybrid"])
    layers = layers_by_path(hybrid)
    sizes = [spec.layers for spec in hybrid.stack_specs]
    total = sum(sizes)
    for path, found in layers.items():
        if path.startswith("blocks/stack_0/"):
            assert found == (0, total), path
        elif path.startswith("blocks/stack_1/"):
            assert found == (sizes[0], total), path
        else:
            assert found is None, path
            assert path.startswith("norm/"), path
    one_stack = layers_by_path(encoder(layers=3))
    stacked = {path for path, found in one_stack.items() if found == (0, 3)}
    assert one_stack.keys() - stacked == {"norm/scale", "norm/bias"}


@in_float64
def test_an_encoder_is_found_under_any_name():
    class Model(nnx.Module):
        def __init__(self, **attributes):
            for name, module in attributes.items():
                setattr(self, name, module)

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
    with pytest.raises(ValueError, match="Model has no Encoder"):
        find_encoder(Model(head=head))


@in_float64
def test_training_without_noise_is_evaluation():
    x = normal(0, 2, 5, 6)
    key = keys(0, 2)
    quiet = quick_jit(encoder())
    noisy = quick_jit(encoder(survival=0.5, dropout=0.3))
    np.testing.assert_array_equal(quiet(x, key), quiet(x))
    np.testing.assert_array_equal(noisy(x), quiet(x))
    np.testing.assert_array_equal(noisy(x, key), noisy(x, key))
    assert np.abs(noisy(x, key) - noisy(x, keys(1, 2))).max() > 0.01


def test_dropout_reaches_the_embeddings_and_every_branch():
    """One random draw for the embeddings and, scanned, one for each layer's branch."""
    state, call = function_of(encoder(dropout=0.1, dtype="float32"))
    trace = program(call, state, jnp.ones((2, 5, 6)), keys(0, 2))
    draws = [output.shape for output in outputs_of("random_bits", trace)]
    assert draws == [(2, 5, 6), (2, 5, 6)]
    assert count("random_bits", call, state, jnp.ones((2, 5, 6))) == 0


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("amlp", (2, 5, 5)),
        ("rel_only", (2, 2, 5, 5)),
        ("gmlp", None),
        ("fnet_hybrid", (2, 2, 5, 5)),
        ("random", (2, 3, 5, 5)),
        ("lightweight", (2, 1, 3, 7)),
        ("dynamic", (2, 5, 3, 7)),
    ],
)
def test_dropout_reaches_attentions_weights_and_nothing_else(kind, weights):
    """Once for all layers, which are scanned; also weights that all samples share are drawn for
    each."""
    state, call = function_of(encoder(attention_dropout=0.1, dtype="float32", **KINDS[kind]))
    trace = program(call, state, jnp.ones((2, 5, 6)), keys(0, 2))
    draws = [output.shape for output in outputs_of("random_bits", trace)]
    assert draws == ([] if weights is None else [weights])
    assert count("random_bits", call, state, jnp.ones((2, 5, 6))) == 0


def test_inputs_of_wrong_shape_are_refused():
    spec = BLOCKS["gmlp"].spec(length=5, layers=1, d_model=6, d_ffn=8)
    encoder = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    with pytest.raises(AssertionError):
        encoder(normal(0, 2, 5, 7))
    for shape in ((2, 4), (1, 5), (5,), (2, 5, 1)):
        with pytest.raises(ValueError, match="padding_mask has the shape"):
            encoder(normal(0, 2, 5, 6), padding_mask=jnp.ones(shape, bool))
