"""What all blocks have in common, each compared with its numpy version."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from numpy.testing import assert_allclose

from gmlp_flax.models.layers import EVALUATION, LayerRng
from tests.models.blocks.cases import CASES, block_of, reference_of, spec_of_case
from tests.models.reference import (
    assert_gradient_reaches_every_parameter,
    by_example,
    count,
    function_of,
    in_float64,
    keys,
    normal,
    params_of,
    quick_jit,
    randomized,
)
from tests.selection import marked_unless

# A softmax over tokens does not depend on what is added to all of them; fixed logits have no
# gradient.
WITHOUT_EFFECT = {
    "external_attention": ("mixing_norm/bias", "external/proj_in/bias"),
    "fixed_random": ("synthesizer/fixed_random/logits",),
    "factorized_dense+fixed_random+dense": ("synthesizer/fixed_random/logits",),
}
EVERY_CASE = pytest.mark.parametrize("name", CASES)
CASE_OF_BLOCK = {options["block"]: name for name, options in CASES.items()}
ONE_OF_EACH_BLOCK = list(CASE_OF_BLOCK.values())
EVERY_BLOCK = pytest.mark.parametrize("name", ONE_OF_EACH_BLOCK)
EVERY_CASE_IF_SLOW = pytest.mark.parametrize(
    "name", marked_unless(ONE_OF_EACH_BLOCK, CASES, pytest.mark.slow)
)


def function_of_case(name, **fields):
    """The state of a block without numbers, and its function, to trace."""
    module = nnx.eval_shape(lambda: block_of(name, **fields))
    return function_of(module)


@pytest.mark.smoke
@EVERY_CASE
@in_float64
def test_blocks_agree_with_numpy(name):
    """At n tokens and, if the block accepts another number, at 9 or 3."""
    reference = reference_of(name)
    if reference is None:
        pytest.skip(f"reference_of has no numpy version of {name}")
    module = randomized(lambda: block_of(name))
    call = quick_jit(module)
    spec = spec_of_case(name)
    lengths = []
    for tokens in (5, 9, 3):
        if spec.supports_length(tokens):
            lengths.append(tokens)
    for tokens in lengths[:2]:
        x = normal(0, 2, tokens, 6)
        expected = by_example(reference, params_of(module), x)
        assert_allclose(call(x), expected, atol=1e-10)


@EVERY_CASE
def test_unsupported_numbers_of_tokens_are_refused(name):
    """By the block, or by the table of positions in front of it."""
    spec = spec_of_case(name, dtype="float32")
    state, call = function_of_case(name, dtype="float32")
    assert spec.supports_length(5)
    refused = []
    for tokens in (1, 4, 6):
        is_supported = spec.supports_length(tokens)
        if is_supported or spec.positions == "absolute":
            continue
        x = jnp.ones((1, tokens, 6))
        with pytest.raises(ValueError, match=f"5 tokens and (was|were) given {tokens}"):
            jax.eval_shape(call, state, x)
        refused.append(tokens)
    assert refused in ([], [6], [1, 4, 6])


@EVERY_CASE
@in_float64
def test_padding_is_read_only_by_blocks_that_say_so(name):
    """The outputs of a block that hides padding are those without the padding."""
    spec = spec_of_case(name).hiding_padding()
    x = normal(0, 2, 5, 6)
    mask = np.arange(5)[None] < 3
    is_visible = mask[..., None]
    other_padding = np.where(is_visible, x, 7.0)
    # its layers of attention hide padding, those of the transform do not
    if CASES[name]["block"] == "fnet_hybrid":
        assert spec is None
        spec = spec_of_case(name)
    if spec is None:
        call = quick_jit(randomized(lambda: block_of(name)))
        y = call(x, padding_mask=mask)
        other = call(other_padding, padding_mask=mask)
        differences = np.abs(y - other)
        difference = differences[:, :3].max()
        assert difference > 1e-3, "padding is hidden: set hides_padding"
        return
    module = randomized(lambda: spec.block(spec, nnx.Rngs(0)))

    @quick_jit
    def padded_and_shorter(x):
        padded = module(x, padding_mask=mask)
        padded_text = padded[:, :3]
        text = x[:, :3]
        return padded_text, module(text)

    padded, shorter = padded_and_shorter(x)
    other, _ = padded_and_shorter(other_padding)
    assert_allclose(padded, shorter, atol=1e-12)
    assert_allclose(other, shorter, atol=1e-12)


DOCUMENTS = np.array([[1, 1, 2, 2, 0]])  # the last token is padding


@EVERY_CASE_IF_SLOW
@in_float64
def test_packed_documents_do_not_read_each_other(name):
    """Blocks that do not mask documents refuse them."""
    spec = spec_of_case(name)
    if not spec.block.masks_documents:
        pytest.skip(f"{spec.block.__name__} mixes all tokens")
    module = randomized(lambda: block_of(name))
    x = normal(0, 2, 5, 6)
    documents = jnp.asarray(DOCUMENTS.repeat(2, 0))
    masked = quick_jit(lambda x: module(x, padding_mask=documents))
    unmasked = quick_jit(module)
    y = masked(x)
    for document in (1, 2):
        in_document = DOCUMENTS[0] == document
        is_visible = in_document[:, None]
        others_changed = np.where(is_visible, x, 7.0)
        same = masked(others_changed)[:, in_document]
        expected = y[:, in_document]
        assert_allclose(same, expected, atol=1e-12)
        change = unmasked(others_changed) - unmasked(x)
        document_changes = np.abs(change)[:, in_document]
        assert document_changes.max() > 1e-3
    # The first document alone: later tokens are padding to it.
    first_mask = jnp.arange(5)[None] < 2
    alone = quick_jit(lambda x: module(x, padding_mask=first_mask))(x)
    of_first = y[:, :2]
    alone_of_first = alone[:, :2]
    assert_allclose(of_first, alone_of_first, atol=1e-12)


@EVERY_BLOCK
def test_batches_may_be_sharded_over_explicit_axes(name):
    """As in a user's program on a mesh of `jax.make_mesh`. It is only traced."""
    mesh = AbstractMesh((2,), ("data",), (AxisType.Explicit,))
    over_batch = NamedSharding(mesh, PartitionSpec("data"))
    state, call = function_of_case(name, dtype="float32")

    def loss(state, x):
        y = call(state, x)
        return (y**2).sum()

    gradient = jax.grad(loss, argnums=(0, 1))
    with jax.sharding.use_abstract_mesh(mesh):
        x = jax.ShapeDtypeStruct((4, 5, 6), jnp.float32, sharding=over_batch)
        gradients = jax.eval_shape(gradient, state, x)
        gradient_of_state, gradient_of_x = gradients
    assert gradient_of_x.sharding.spec[0] == "data"
    shapes = jax.tree.map(jnp.shape, gradient_of_state)
    state_shapes = jax.tree.map(jnp.shape, state)
    assert shapes == state_shapes


@EVERY_BLOCK
@in_float64
def test_stochastic_depth_drops_each_branch_independently(name):
    """Equal examples then have as many different outputs as there are sets of branches."""
    module = randomized(lambda: block_of(name))
    example = jnp.asarray(normal(0, 5, 6))
    x = jnp.broadcast_to(example, (64, 5, 6))

    def with_stochastic_depth(x):
        survival = jnp.float32(0.5)
        rng = LayerRng(keys(0, 64), 0.0, survival)
        return module(x, rng)

    branches = count("random_bits", with_stochastic_depth, x)  # each draws once
    assert branches > 0
    assert different_examples(with_stochastic_depth, x) == 2**branches
    assert different_examples(module, x) == 1


def different_examples(function, x):
    """How many examples of the output differ by more than rounding."""
    y = np.asarray(quick_jit(function)(x))
    return len(np.unique(y.round(9), axis=0))


def outputs_and_gradients(name, *dtypes):
    """The outputs and the gradients of the block in each of these types, on the same numbers, by
    one program."""
    numbers = normal(0, 2, 5, 6)
    x = jnp.asarray(numbers, jnp.bfloat16)
    states = []
    calls = []
    for dtype in dtypes:
        module = randomized(lambda dtype=dtype: block_of(name, dtype=dtype), std=0.3)
        state, call = function_of(module)
        states.append(state)
        calls.append(call)

    def loss(states):
        outputs = []
        total = 0.0
        for call, state, dtype in zip(calls, states, dtypes, strict=True):
            y = call(state, x.astype(dtype))
            outputs.append(y)
            squares = jnp.square(y.astype("float32"))
            total += squares.sum()
        return total, outputs

    gradient = jax.grad(loss, has_aux=True)
    gradients, outputs = quick_jit(gradient)(states)
    return outputs, [nnx.to_pure_dict(of_state) for of_state in gradients]


@EVERY_CASE_IF_SLOW
def test_gradients_are_finite_and_reach_every_parameter(name):
    _, [gradient] = outputs_and_gradients(name, "float32")
    without_effect = WITHOUT_EFFECT.get(name, ())
    assert_gradient_reaches_every_parameter(gradient, 1e-4, without_effect)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONE_OF_EACH_BLOCK, "depthwise", "hydra"])
def test_hessians_can_be_traced(name):
    """Forward over reverse mode, also for a batch of no examples."""
    state, call = function_of_case(name, dtype="float32")

    def loss(scale, state, x):
        y = call(state, scale * x)
        return jnp.sin(y).sum()

    for batch in (0, 2):
        x = jax.ShapeDtypeStruct((batch, 5, 6), jnp.float32)
        second = jax.eval_shape(jax.hessian(loss), 1.0, state, x)
        assert second.shape == ()
        gradient = jax.eval_shape(jax.grad(loss, argnums=1), 1.0, state, x)
        structure = jax.tree.structure(state)
        assert jax.tree.structure(gradient) == structure


@pytest.mark.parametrize("name", [*ONE_OF_EACH_BLOCK, "depthwise", "hydra"])
def test_float32_blocks_promote_no_types(name):
    """Traced only: forward and backward, with a mask of padding."""
    spec = spec_of_case(name, dtype="float32")
    spec = spec.hiding_padding() or spec
    module = nnx.eval_shape(lambda: spec.block(spec, nnx.Rngs(0)))
    state, call = function_of(module)

    def loss(state, x, mask):
        y = call(state, x, EVALUATION, mask)
        return y.sum()

    x = jax.ShapeDtypeStruct((2, 5, 6), jnp.float32)
    mask = jax.ShapeDtypeStruct((2, 5), jnp.bool_)
    with jax.numpy_dtype_promotion("strict"):
        gradient = jax.eval_shape(jax.grad(loss), state, x, mask)
    structure = jax.tree.structure(state)
    assert jax.tree.structure(gradient) == structure


# Every other case rounds the same numbers as one of these.
ROUNDED_DIFFERENTLY = {
    *ONE_OF_EACH_BLOCK,
    "hydra",
    "hydra, low_rank",
    "split gate",
    "depthwise",
    "long_conv",
    "transformer",
    "relative",
    "dynamic",
    "random+attention",
    "factorized_dense",
    "dense+factorized_random",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ROUNDED_DIFFERENTLY))
def test_bfloat16_is_near_float32(name):
    """Outputs, and the gradients of all parameters together."""
    outputs, gradients = outputs_and_gradients(name, "bfloat16", "float32")
    rounded, exact = outputs
    assert rounded.dtype == jnp.bfloat16
    atol = 0.2 if name.endswith("fnet, post-norm") else 0.06
    rounded_in_float32 = rounded.astype(jnp.float32)
    assert_allclose(rounded_in_float32, exact, atol=atol)
    rounded_gradient, exact_gradient = [flattened(gradient) for gradient in gradients]
    error = np.linalg.norm(rounded_gradient - exact_gradient)
    assert error < 0.05 * np.linalg.norm(exact_gradient)


def flattened(tree):
    """All numbers of a tree."""
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


def linear(path, d_in, d_out):
    return {f"{path}/kernel": (d_in, d_out), f"{path}/bias": (d_out,)}


def spatial_linear(path, tokens_in, tokens_out):
    return {f"{path}/weight": (tokens_out, tokens_in), f"{path}/bias": (tokens_out,)}


def norm(path, channels=6):
    return {f"{path}/scale": (channels,), f"{path}/bias": (channels,)}


GMLP = (
    norm("norm")
    | linear("proj_in", 6, 8)
    | norm("gate/norm", 4)
    | {"gate/spatial/bias": (5,)}
    | linear("proj_out", 4, 6)
)
MLP = norm("mlp_norm") | linear("mlp/proj_in", 6, 8) | linear("mlp/proj_out", 8, 6)
FNET = MLP | norm("mixing_norm")
ATTENTION = linear("attention/proj_in", 6, 18) | linear("attention/out", 6, 6)
SYNTHESIZER = FNET | linear("synthesizer/values", 6, 6) | linear("synthesizer/out", 6, 6)
HYDRA = FNET | {
    "hydra/gate/kernel": (6, 12),
    "hydra/values/kernel": (6, 12),
    "hydra/out/kernel": (12, 6),
    "hydra/norm_scale": (12,),
    "hydra/convolution/kernel": (3, 12),
    "hydra/convolution/bias": (12,),
}
HYDRA_STATES = {
    "hydra/matrix/step_bias": (3,),
    "hydra/matrix/log_rates": (3,),
    "hydra/matrix/skip": (3,),
}
CONVOLUTION = FNET | linear("convolution/proj_in", 6, 12) | linear("convolution/out", 6, 6)


def state_space(path, spaces, modes):
    shapes = linear(f"{path}/proj_in", 6, 6) | linear(f"{path}/proj_out", 6, 6)
    ssm = {
        "a_real": (spaces, modes),
        "a_imag": (spaces, modes),
        "c": (spaces, modes, 2),
        "d": (spaces,),
        "log_step": (spaces,),
    }
    for name, shape in ssm.items():
        shapes[f"{path}/ssm/{name}"] = shape
    return shapes


def delta_direction(path, heads, channels):
    return {
        f"{path}/convolution/kernel": (4, channels),
        f"{path}/gates/kernel": (6, 2 * heads),
        f"{path}/a_log": (heads,),
        f"{path}/dt_bias": (heads,),
    }


LONG_CONV = (
    FNET
    | linear("convolution/proj_in", 6, 18)
    | linear("convolution/out", 6, 6)
    | {
        "convolution/short/taps": (3, 18),
        "convolution/short/bias": (18,),
        "convolution/skip": (6,),
    }
)


def implicit_filter(path, features):
    """The MLP of a filter of width 4."""
    shapes = {
        f"{path}/last/weight": (4, 6),
        f"{path}/frequencies": (4,),
    }
    inputs = {"first": features, "second": 4, "third": 4}
    for name, d_in in inputs.items():
        shapes[f"{path}/{name}/weight"] = (d_in, 4)
        shapes[f"{path}/{name}/bias"] = (4,)
    return shapes


TRANSFORMER = MLP | norm("attention_norm") | ATTENTION

PARAMETERS = {
    "split gate": GMLP | {"gate/spatial/taps": (9,)},
    "gmlp, dense": GMLP | {"gate/spatial/weight": (5, 5)},
    "depthwise": GMLP | {"gate/spatial/taps": (4, 4), "gate/spatial/bias": (4,)},
    "amlp": GMLP
    | {"gate/spatial/taps": (9,)}
    | linear("attention/qkv", 6, 9)
    | linear("attention/out", 3, 4),
    "mixer": MLP
    | norm("token_norm")
    | spatial_linear("token_mlp/proj_in", 5, 4)
    | spatial_linear("token_mlp/proj_out", 4, 5),
    "feed_forward": MLP
    | norm("token_norm", 5)
    | spatial_linear("token_mlp/proj_in", 5, 20)
    | spatial_linear("token_mlp/proj_out", 20, 5),
    "resmlp": linear("mlp/proj_in", 6, 8)
    | linear("mlp/proj_out", 8, 6)
    | norm("token_affine")
    | norm("mlp_affine")
    | spatial_linear("token_linear", 5, 5)
    | {"token_scale/scale": (6,), "mlp_scale/scale": (6,)},
    "transformer": TRANSFORMER,
    "relative": TRANSFORMER | {"attention/relative/bias": (3, 9)},
    "relative, 4 buckets": TRANSFORMER | {"attention/relative/bias": (3, 4)},
    "relative_only": TRANSFORMER
    | linear("attention/proj_in", 6, 6)
    | {"attention/relative/bias": (3, 9)},
    "fnet, post-norm": FNET,
    "fnet_hybrid, post-norm": FNET | ATTENTION,
    "random": SYNTHESIZER | {"synthesizer/random/logits": (3, 5, 5)},
    "dense+factorized_random": SYNTHESIZER
    | linear("synthesizer/dense/proj_in", 6, 6)
    | {
        "synthesizer/dense/proj_out/weight": (3, 2, 5),
        "synthesizer/dense/proj_out/bias": (3, 5),
        "synthesizer/factorized_random/rows": (3, 5, 8),
        "synthesizer/factorized_random/columns": (3, 5, 8),
        "synthesizer/weights": (2,),
    },
    "factorized_dense": SYNTHESIZER
    | linear("synthesizer/factorized_dense/proj_in", 6, 6)
    | {
        "synthesizer/factorized_dense/first/weight": (3, 2, 1),
        "synthesizer/factorized_dense/first/bias": (3, 1),
        "synthesizer/factorized_dense/second/weight": (3, 2, 5),
        "synthesizer/factorized_dense/second/bias": (3, 5),
    },
    "attention": SYNTHESIZER | linear("synthesizer/attention/proj_in", 6, 12),
    "external_attention": FNET
    | linear("external/proj_in", 6, 6)
    | linear("external/out", 6, 6)
    | {"external/keys": (4, 2), "external/values": (4, 2)},
    "long_conv": LONG_CONV
    | implicit_filter("convolution/past", 5)
    | implicit_filter("convolution/future", 5),
    "long_conv, causal": LONG_CONV | implicit_filter("convolution/past", 7),
    "lightweight": CONVOLUTION | {"convolution/kernel/logits": (3, 7)},
    "dynamic": CONVOLUTION | linear("convolution/kernel/proj", 6, 12),
    "bigs, 3 state spaces": norm("norm")
    | linear("value", 6, 8)
    | linear("mixed", 6, 8)
    | linear("proj_out", 8, 6)
    | state_space("forward", 3, 3)
    | state_space("backward", 3, 3),
    "delta": FNET
    | delta_direction("delta/forward", 3, 21)
    | delta_direction("delta/backward", 3, 21)
    | {
        "delta/proj_in/kernel": (6, 21),
        "delta/gate/kernel": (6, 9),
        "delta/out/kernel": (9, 6),
        "delta/norm_scale": (3,),
    },
    "hydra": HYDRA
    | HYDRA_STATES
    | {
        "hydra/matrix/features/proj/kernel": (6, 16),
        "hydra/matrix/features/convolution/kernel": (3, 16),
        "hydra/matrix/features/convolution/bias": (16,),
        "hydra/matrix/steps/kernel": (6, 6),
        "hydra/matrix/skip_proj/kernel": (12, 3),
    },
    "hydra, learned": HYDRA
    | HYDRA_STATES
    | {"hydra/matrix/b": (2, 1, 5, 4), "hydra/matrix/c": (2, 1, 5, 4)},
    "hydra, dense": HYDRA | {"hydra/matrix/weight": (3, 5, 5)},
    "hydra, learned toeplitz": HYDRA | {"hydra/matrix/taps": (3, 9)},
    "hydra, learned low_rank": HYDRA
    | {
        "hydra/matrix/queries": (3, 5, 4),
        "hydra/matrix/keys": (3, 5, 4),
    },
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_keep_their_names_and_shapes(name):
    """Checkpoints depend on them."""
    module = nnx.eval_shape(lambda: block_of(name, dtype="float32"))
    shapes = {}
    state = nnx.state(module, nnx.Param)
    for path, leaf in nnx.to_flat_state(state):
        joined = "/".join(map(str, path))
        shapes[joined] = leaf.shape
    assert shapes == PARAMETERS[name]
