"""What all blocks have in common, each compared with its numpy version."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from gmlp_flax.models.layers import EVALUATION, LayerRng
from tests.models.blocks.cases import CASES, block_of, reference_of
from tests.models.reference import (
    assert_gradient_reaches_every_parameter,
    count,
    function_of,
    in_float64,
    keys,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)
from tests.selection import marked_unless

# A softmax over tokens does not depend on what is added to all of them; fixed logits have no
# gradient.
WITHOUT_EFFECT = {
    "external_attention": ("mixing_norm/bias", "external/proj_in/bias"),
    "fixed_random": ("synthesizer/fixed_random/logits",),
    "factorized_dense+fixed_random+dense": ("synthesizer/fixed_random/logits",),
}
EVERY = pytest.mark.parametrize("name", CASES)
ONE_OF_EACH_BLOCK = [*{options["block"]: name for name, options in CASES.items()}.values()]
EVERY_BLOCK = pytest.mark.parametrize("name", ONE_OF_EACH_BLOCK)
MORE_IF_SLOW = pytest.mark.parametrize(
    "name", marked_unless(ONE_OF_EACH_BLOCK, CASES, pytest.mark.slow)
)


@pytest.mark.smoke
@EVERY
@in_float64
def test_against_numpy(name):
    """At n tokens and, if the block accepts another number, at 9 or 3."""
    module = randomized(lambda: block_of(name))
    expected = reference_of(name)
    if expected is None:
        pytest.skip(f"reference_of has no numpy version of {name}")
    for tokens in [n for n in (5, 9, 3) if small_spec(**CASES[name]).supports_length(n)][:2]:
        x = normal(0, 2, tokens, 6)
        np.testing.assert_allclose(
            quick_jit(module)(x), [expected(params_of(module), sample) for sample in x], atol=1e-10
        )


@EVERY
def test_other_numbers_of_tokens_are_refused(name):
    """By the block, or by the table of positions in front of it."""
    spec = small_spec(**CASES[name] | {"dtype": "float32"})
    refused = []
    state, call = function_of(nnx.eval_shape(lambda: spec.block(spec, nnx.Rngs(0))))
    for tokens in (1, 4, 6):
        if not spec.supports_length(tokens) and spec.positions != "absolute":
            with pytest.raises(ValueError, match=f"5 tokens and (was|were) given {tokens}"):
                jax.eval_shape(call, state, jnp.ones((1, tokens, 6)))
            refused.append(tokens)
    assert spec.supports_length(5)
    assert refused in ([], [6], [1, 4, 6])


@EVERY
@in_float64
def test_hidden_padding_changes_nothing(name):
    """If the block says so: then its own outputs, and else none."""
    spec = small_spec(**CASES[name]).hiding_padding()
    x = normal(0, 2, 5, 6)
    mask = np.arange(5)[None] < 3
    other = np.where(mask[..., None], x, 7.0)
    # its layers of attention hide padding, those of the transform do not
    if CASES[name]["block"] == "fnet_hybrid":
        assert spec is None
        spec = small_spec(**CASES[name])
    if spec is None:
        module = randomized(lambda: block_of(name))
        seen = [quick_jit(module)(given, padding_mask=mask)[:, :3] for given in (x, other)]
        assert np.abs(seen[0] - seen[1]).max() > 1e-3, "padding is hidden: set hides_padding"
        return
    module = randomized(lambda: spec.block(spec, nnx.Rngs(0)))

    @quick_jit
    def both(x):
        return module(x, padding_mask=mask)[:, :3], module(x[:, :3])

    padded, shorter = both(x)
    np.testing.assert_allclose(padded, shorter, atol=1e-12)
    np.testing.assert_allclose(both(other)[0], shorter, atol=1e-12)


DOCUMENTS = np.array([[1, 1, 2, 2, 0]])  # the last token is padding


@MORE_IF_SLOW
@in_float64
def test_documents_of_a_window_do_not_see_each_other(name):
    """If the block says so; else it would be refused."""
    spec = small_spec(**CASES[name])
    if not spec.block.masks_documents:
        pytest.skip(f"{spec.block.__name__} mixes all tokens")
    module = randomized(lambda: block_of(name))
    x = normal(0, 2, 5, 6)
    masked = quick_jit(lambda x: module(x, padding_mask=jnp.asarray(DOCUMENTS.repeat(2, 0))))
    unmasked = quick_jit(module)
    found = masked(x)
    for document in (1, 2):
        is_own = DOCUMENTS[0] == document
        other = np.where(is_own[:, None], x, 7.0)
        np.testing.assert_allclose(masked(other)[:, is_own], found[:, is_own], atol=1e-12)
        assert np.abs(unmasked(other) - unmasked(x))[:, is_own].max() > 1e-3
    # The first document alone: later tokens are padding to it.
    alone = quick_jit(lambda x: module(x, padding_mask=jnp.arange(5)[None] < 2))(x)
    np.testing.assert_allclose(found[:, :2], alone[:, :2], atol=1e-12)


@EVERY_BLOCK
def test_a_batch_may_be_sharded_over_explicit_axes(name):
    """As in a program of one's own on a mesh of `jax.make_mesh`. It is only traced."""
    mesh = AbstractMesh((2,), ("data",), (AxisType.Explicit,))
    over_batch = NamedSharding(mesh, PartitionSpec("data"))
    state, call = function_of(nnx.eval_shape(lambda: block_of(name, dtype="float32")))

    def loss(state, x):
        return (call(state, x) ** 2).sum()

    with jax.sharding.use_abstract_mesh(mesh):
        x = jax.ShapeDtypeStruct((4, 5, 6), jnp.float32, sharding=over_batch)
        of_state, of_x = jax.eval_shape(jax.grad(loss, argnums=(0, 1)), state, x)
    assert of_x.sharding.spec[0] == "data"
    assert jax.tree.map(jnp.shape, of_state) == jax.tree.map(jnp.shape, state)


@EVERY_BLOCK
@in_float64
def test_stochastic_depth_drops_each_branch_by_itself(name):
    """Equal examples then have as many different outputs as there are sets of branches."""
    module = randomized(lambda: block_of(name))
    x = jnp.broadcast_to(jnp.asarray(normal(0, 5, 6)), (64, 5, 6))
    trained = lambda x: module(x, LayerRng(keys(0, 64), 0.0, jnp.float32(0.5)))  # noqa: E731
    branches = count("random_bits", trained, x)  # each draws once
    noisy, quiet = (
        len(np.unique(np.asarray(quick_jit(call)(x)).round(9), axis=0))
        for call in (trained, module)
    )
    assert branches > 0
    assert (noisy, quiet) == (2**branches, 1)


def outputs_and_gradients(name, *dtypes):
    """Of the block in each of these types, on the same numbers, by one program."""
    x = jnp.asarray(normal(0, 2, 5, 6), jnp.bfloat16)
    made = [
        function_of(randomized(lambda dtype=dtype: block_of(name, dtype=dtype), std=0.3))
        for dtype in dtypes
    ]

    def loss(states):
        outputs = [
            call(state, x.astype(dtype))
            for (_, call), state, dtype in zip(made, states, dtypes, strict=True)
        ]
        return sum(jnp.square(y.astype("float32")).sum() for y in outputs), outputs

    gradients, outputs = quick_jit(jax.grad(loss, has_aux=True))([state for state, _ in made])
    return outputs, [nnx.to_pure_dict(gradient) for gradient in gradients]


@MORE_IF_SLOW
def test_gradients_are_finite_and_reach_every_parameter(name):
    _, [gradient] = outputs_and_gradients(name, "float32")
    assert_gradient_reaches_every_parameter(gradient, 1e-4, WITHOUT_EFFECT.get(name, ()))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONE_OF_EACH_BLOCK, "depthwise", "hydra"])
def test_forward_mode_over_reverse_mode(name):
    """Traced only, also for a batch of no examples."""
    state, call = function_of(nnx.eval_shape(lambda: block_of(name, dtype="float32")))

    def loss(scale, state, x):
        scaled = scale * x
        return jnp.sin(call(state, scaled)).sum()

    for batch in (0, 2):
        x = jax.ShapeDtypeStruct((batch, 5, 6), jnp.float32)
        second = jax.eval_shape(jax.hessian(loss), 1.0, state, x)
        assert second.shape == ()
        gradient = jax.eval_shape(jax.grad(loss, argnums=1), 1.0, state, x)
        assert jax.tree.structure(gradient) == jax.tree.structure(state)


@pytest.mark.parametrize("name", [*ONE_OF_EACH_BLOCK, "depthwise", "hydra"])
def test_float32_needs_no_promotion_of_types(name):
    """Traced only: forward and backward, with a mask of padding."""
    spec = small_spec(**CASES[name] | {"dtype": "float32"})
    spec = spec.hiding_padding() or spec
    state, call = function_of(nnx.eval_shape(lambda: spec.block(spec, nnx.Rngs(0))))

    def loss(state, x, mask):
        return call(state, x, EVALUATION, mask).sum()

    x = jax.ShapeDtypeStruct((2, 5, 6), jnp.float32)
    mask = jax.ShapeDtypeStruct((2, 5), jnp.bool_)
    with jax.numpy_dtype_promotion("strict"):
        gradient = jax.eval_shape(jax.grad(loss), state, x, mask)
    assert jax.tree.structure(gradient) == jax.tree.structure(state)


# The others differ in nothing that is rounded elsewhere.
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({
    *EVERY_BLOCK.args[1], "hydra", "hydra, low_rank", "split gate", "depthwise", "long_conv", "transformer", "relative", "dynamic", "random+attention", "factorized_dense",
    "dense+factorized_random",
}))  # fmt: skip
def test_bfloat16_is_near_float32(name):
    """Outputs, and the gradients of all parameters together."""
    outputs, gradients = outputs_and_gradients(name, "bfloat16", "float32")
    assert outputs[0].dtype == jnp.bfloat16
    atol = 0.06 if not name.endswith("fnet, post-norm") else 0.2
    np.testing.assert_allclose(outputs[0].astype(jnp.float32), outputs[1], atol=atol)
    rounded, exact = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in gradients
    )
    assert np.linalg.norm(rounded - exact) < 0.05 * np.linalg.norm(exact)


def linear(path, d_in, d_out):
    return {f"{path}/kernel": (d_in, d_out), f"{path}/bias": (d_out,)}


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
TRANSFORMER = (
    MLP
    | norm("attention_norm")
    | linear("attention/proj_in", 6, 18)
    | linear("attention/out", 6, 6)
)
FNET = MLP | norm("mixing_norm")
SYNTHESIZER = FNET | linear("synthesizer/values", 6, 6) | linear("synthesizer/out", 6, 6)
HYDRA = FNET | {
    "hydra/gate/kernel": (6, 12),
    "hydra/values/kernel": (6, 12),
    "hydra/out/kernel": (12, 6),
    "hydra/norm_scale": (12,),
    "hydra/convolution/kernel": (3, 12),
    "hydra/convolution/bias": (12,),
}
CONVOLUTION = FNET | linear("convolution/proj_in", 6, 12) | linear("convolution/out", 6, 6)


def state_space(path, spaces, modes):
    return (
        linear(f"{path}/proj_in", 6, 6)
        | linear(f"{path}/proj_out", 6, 6)
        | {f"{path}/ssm/{name}": (spaces, modes) for name in ("a_real", "a_imag")}
        | {f"{path}/ssm/{name}": (spaces,) for name in ("d", "log_step")}
        | {f"{path}/ssm/c": (spaces, modes, 2)}
    )


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
    | {"convolution/short/taps": (3, 18), "convolution/short/bias": (18,), "convolution/skip": (6,)}
)


def implicit_filter(path, features):
    """The MLP of a filter of width 4."""
    shapes = {f"{path}/last/weight": (4, 6), f"{path}/frequencies": (4,)}
    for name, d_in in (("first", features), ("second", 4), ("third", 4)):
        shapes |= {f"{path}/{name}/weight": (d_in, 4), f"{path}/{name}/bias": (4,)}
    return shapes


# Checkpoints depend on these names and shapes.
@pytest.mark.parametrize(("name", "shapes"), {
    "split gate": GMLP | {"gate/spatial/taps": (9,)},
    "gmlp, dense": GMLP | {"gate/spatial/weight": (5, 5)},
    "depthwise": GMLP | {"gate/spatial/taps": (4, 4), "gate/spatial/bias": (4,)},
    "amlp": GMLP | {"gate/spatial/taps": (9,)} | linear("attention/qkv", 6, 9) | linear("attention/out", 3, 4),
    "mixer": MLP | norm("token_norm") | {
        "token_mlp/proj_in/weight": (4, 5), "token_mlp/proj_in/bias": (4,), "token_mlp/proj_out/weight": (5, 4),
        "token_mlp/proj_out/bias": (5,),
    },
    "feed_forward": MLP | norm("token_norm", 5) | {
        "token_mlp/proj_in/weight": (20, 5), "token_mlp/proj_in/bias": (20,), "token_mlp/proj_out/weight": (5, 20),
        "token_mlp/proj_out/bias": (5,),
    },
    "resmlp": linear("mlp/proj_in", 6, 8) | linear("mlp/proj_out", 8, 6) | norm("token_affine") | norm("mlp_affine") | {
        "token_scale/scale": (6,), "mlp_scale/scale": (6,), "token_linear/weight": (5, 5), "token_linear/bias": (5,),
    },
    "transformer": TRANSFORMER,
    "relative": TRANSFORMER | {"attention/relative/bias": (3, 9)},
    "relative, 4 buckets": TRANSFORMER | {"attention/relative/bias": (3, 4)},
    "relative_only": TRANSFORMER | linear("attention/proj_in", 6, 6) | {"attention/relative/bias": (3, 9)},
    "fnet, post-norm": FNET,
    "fnet_hybrid, post-norm": FNET | linear("attention/proj_in", 6, 18) | linear("attention/out", 6, 6),
    "random": SYNTHESIZER | {"synthesizer/random/logits": (3, 5, 5)},

    "dense+factorized_random": SYNTHESIZER | linear("synthesizer/dense/proj_in", 6, 6) | {
        "synthesizer/dense/proj_out/weight": (3, 2, 5), "synthesizer/dense/proj_out/bias": (3, 5),
        "synthesizer/factorized_random/rows": (3, 5, 8), "synthesizer/factorized_random/columns": (3, 5, 8),
        "synthesizer/weights": (2,),
    },
    "factorized_dense": SYNTHESIZER | linear("synthesizer/factorized_dense/proj_in", 6, 6) | {
        "synthesizer/factorized_dense/first/weight": (3, 2, 1), "synthesizer/factorized_dense/first/bias": (3, 1),
        "synthesizer/factorized_dense/second/weight": (3, 2, 5), "synthesizer/factorized_dense/second/bias": (3, 5),
    },
    "attention": SYNTHESIZER | linear("synthesizer/attention/proj_in", 6, 12),
    "external_attention": FNET | linear("external/proj_in", 6, 6) | linear("external/out", 6, 6) | {
        "external/keys": (4, 2), "external/values": (4, 2),
    },
    "long_conv": LONG_CONV | implicit_filter("convolution/past", 5) | implicit_filter("convolution/future", 5),
    "long_conv, causal": LONG_CONV | implicit_filter("convolution/past", 7),
    "lightweight": CONVOLUTION | {"convolution/kernel/logits": (3, 7)},
    "dynamic": CONVOLUTION | linear("convolution/kernel/proj", 6, 12),
    "bigs, 3 state spaces": norm("norm") | linear("value", 6, 8) | linear("mixed", 6, 8) | linear("proj_out", 8, 6)
    | state_space("forward", 3, 3) | state_space("backward", 3, 3),
    "delta": FNET | delta_direction("delta/forward", 3, 21) | delta_direction("delta/backward", 3, 21) | {
        "delta/proj_in/kernel": (6, 21), "delta/gate/kernel": (6, 9), "delta/out/kernel": (9, 6),
        "delta/norm_scale": (3,),
    },
    "hydra": HYDRA | {
        "hydra/matrix/features/proj/kernel": (6, 16), "hydra/matrix/features/convolution/kernel": (3, 16),
        "hydra/matrix/features/convolution/bias": (16,), "hydra/matrix/steps/kernel": (6, 6),
        "hydra/matrix/step_bias": (3,), "hydra/matrix/log_rates": (3,), "hydra/matrix/skip": (3,),
        "hydra/matrix/skip_proj/kernel": (12, 3),
    },
    "hydra, learned": HYDRA | {
        "hydra/matrix/b": (2, 1, 5, 4), "hydra/matrix/c": (2, 1, 5, 4), "hydra/matrix/step_bias": (3,),
        "hydra/matrix/log_rates": (3,), "hydra/matrix/skip": (3,),
    },
    "hydra, dense": HYDRA | {"hydra/matrix/weight": (3, 5, 5)},
    "hydra, learned toeplitz": HYDRA | {"hydra/matrix/taps": (3, 9)},
    "hydra, learned low_rank": HYDRA | {"hydra/matrix/queries": (3, 5, 4), "hydra/matrix/keys": (3, 5, 4)},
}.items())  # fmt: skip
def test_names_and_shapes_of_parameters(name, shapes):
    state = nnx.state(nnx.eval_shape(lambda: block_of(name, dtype="float32")), nnx.Param)
    assert {
        "/".join(map(str, path)): leaf.shape for path, leaf in nnx.to_flat_state(state)
    } == shapes
