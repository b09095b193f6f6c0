"""Hydra: its matrices within the mixer, causal models, caches, and contradictory options."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose

from gmlp_flax.models import parameters
from gmlp_flax.models.blocks.hydra import HydraBlock, HydraMixer
from gmlp_flax.models.text import CausalLM
from tests.models.continuation import assert_same_logits_in_parts
from tests.models.matrix_mixers.cases import EVERY, KINDS, mixer, spec_of
from tests.models.reference import (
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


def by_head(x):
    """[batch, tokens, 12] to [batch, heads, tokens, 4]."""
    return x.reshape(2, 5, 3, 4).swapaxes(1, 2)


@pytest.mark.slow
@EVERY
@in_float64
def test_outputs_are_products_with_the_materialised_matrix(kind, computed):
    """M v of each head, normalized over all heads, times the gate."""
    module = mixer(kind, computed)
    x = jnp.asarray(normal(0, 2, 5, 6))
    p = params_of(module)
    computed_matrices = module.matrices(x)
    matrices = np.broadcast_to(computed_matrices, (2, 3, 5, 5))
    values = x @ p["values"]["kernel"]
    convolved = module.convolution(values)
    v = jax.nn.silu(convolved)
    mixed = matrices @ by_head(v)
    joined = mixed.swapaxes(1, 2).reshape(2, 5, 12)
    mean_square = (joined**2).mean(-1, keepdims=True)
    root = np.sqrt(mean_square + 1e-5)
    normed = joined / root
    gate_logits = x @ p["gate"]["kernel"]
    gate = jax.nn.silu(gate_logits)
    gated = p["norm_scale"] * normed * gate
    expected = gated @ p["out"]["kernel"]
    assert_allclose(quick_jit(module)(x), expected, atol=1e-10)


def jacobian(module, x):
    """The largest entry of each block of the Jacobian: [output token, input token]."""

    def of_sample(x):
        [y] = module(x[None])
        return y

    entries = quick_jit(jax.jacrev(of_sample))(x)
    return np.abs(entries).max(axis=(1, 3))


FAST_KINDS = ("quasiseparable", "low_rank", "attention")
FORMS = [(kind, computed, "direct") for kind, computed in KINDS]
FORMS += [(kind, True, "fast") for kind in FAST_KINDS]


@pytest.mark.parametrize(("kind", "computed", "form"), FORMS)
@in_float64
def test_causal_mixers_read_no_later_token(kind, computed, form):
    """Exactly, in both forms."""
    module = mixer(kind, computed, causal=True, form=form, length=9, dtype="bfloat16")
    x = jnp.asarray(normal(0, 9, 6), "bfloat16")
    effect = jacobian(module, x)
    later = effect[np.triu_indices(9, 1)]
    earlier = effect[np.tril_indices(9)]
    assert (later == 0).all()
    assert (earlier > 0).all()


@pytest.mark.slow
@EVERY
@in_float64
def test_texts_are_continued_from_the_cache(kind, computed):
    spec = spec_of(kind, computed, causal=True, length=9)
    model = randomized(lambda: CausalLM(spec, 11, nnx.Rngs(0), scale_embeddings=True))
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 11, (2, 9))
    assert_same_logits_in_parts(model, tokens)


@pytest.mark.parametrize(
    ("kind", "tokens", "form"),
    [
        ("quasiseparable", 512, "direct"),
        ("quasiseparable", 513, "fast"),
        ("dense", 4096, "direct"),
        ("toeplitz", 512, "direct"),
        ("toeplitz", 513, "fast"),
        ("low_rank", 1, "fast"),
        ("attention", 1, "fast"),
    ],
)
def test_the_form_depends_on_the_number_of_tokens(kind, tokens, form):
    spec = spec_of(kind, kind != "dense", length=tokens)
    assert spec.applied_form(tokens) == form
    causal = dataclasses.replace(spec, causal=True)
    is_direct = kind in ("dense", "toeplitz", "low_rank")
    causal_form = "direct" if is_direct else form
    assert causal.applied_form(tokens) == causal_form


def test_only_kernels_are_decayed():
    spec = spec_of(dtype="float32")
    block = nnx.eval_shape(lambda: HydraBlock(spec, nnx.Rngs(0)))
    metadata = parameters.metadata(block)
    decayed = {path for path, found in metadata.items() if found.decayed}
    assert decayed == {
        "hydra/convolution/kernel",
        "hydra/gate/kernel",
        "hydra/matrix/features/convolution/kernel",
        "hydra/matrix/features/proj/kernel",
        "hydra/matrix/skip_proj/kernel",
        "hydra/matrix/steps/kernel",
        "hydra/out/kernel",
        "hydra/values/kernel",
        "mlp/proj_in/kernel",
        "mlp/proj_out/kernel",
    }


@pytest.mark.slow
@EVERY
@in_float64
def test_learned_matrices_can_be_plotted(kind, computed):
    """The mean over heads; only of matrices that do not depend on the input."""
    module = randomized(lambda: HydraBlock(spec_of(kind, computed), nnx.Rngs(0)))
    plotted = module.spatial_matrix()
    has_matrix = HydraBlock.has_spatial_matrix(module.hydra.spec)
    assert has_matrix == (not computed)
    if computed:
        assert plotted is None
    else:
        _, matrices = input_and_matrices(module)
        mean = matrices[0].mean(0)
        assert_allclose(plotted, mean, atol=1e-12)


@EVERY
@in_float64
def test_attention_scores_give_the_shares_of_the_matrix(kind, computed):
    """Their softmax is attention's matrix, or the shares of the absolute weights of another."""
    module = randomized(lambda: HydraBlock(spec_of(kind, computed), nnx.Rngs(0)))
    x, matrices = input_and_matrices(module)
    scores = module.attention_scores(x)
    softmax = jax.nn.softmax(scores)
    shares = np.broadcast_to(softmax, (2, 3, 5, 5))
    if kind == "attention":
        expected = matrices - np.eye(5)
    else:
        weights = np.abs(matrices)
        sums = weights.sum(-1, keepdims=True)
        expected = weights / sums
    assert_allclose(shares, expected, atol=1e-12)


def input_and_matrices(module):
    """Two inputs of a block, and the matrices of their heads."""
    x = jnp.asarray(normal(0, 2, 5, 6))
    normed = module.mixing_norm(x)
    matrices = module.hydra.matrices(normed)
    broadcast = np.broadcast_to(matrices, (2, 3, 5, 5))
    return x, broadcast


def test_parameters_are_those_counted_by_hand():
    """d = 6, 12 channels in 3 heads, 3 groups of B and C of size 4 in two directions, filters of
    4."""
    spec = spec_of(groups=3, dtype="float32")
    module = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    values_and_gate = 2 * 6 * 12
    states = 2 * 2 * 3 * 4
    state_projection = 6 * states
    steps = 6 * 2 * 3
    filters = (4 + 1) * (12 + states)
    per_head = 3 + 3 + 3 + 12 * 3
    norm = 12
    out = 12 * 6
    projections = values_and_gate + state_projection + steps + out
    expected = projections + filters + per_head + norm
    count = parameters.count(nnx.state(module, nnx.Param))
    assert count == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"matrix": "vandermonde"}, "model.matrix is 'vandermonde'"),
        ({"matrix": "dense"}, "model.input_dependent is True"),
        ({"groups": 2}, "model.heads is 3: model.groups, 2"),
        (
            {"matrix": "dense", "input_dependent": False, "form": "fast"},
            "model.form is 'fast': a dense",
        ),
        (
            {"matrix": "toeplitz", "causal": True, "form": "fast"},
            "model.form is 'fast', whose rounding",
        ),
        ({"heads": 4}, "model.heads, 4"),
        ({"expand": 0}, "model.expand is 0"),
        ({"d_state": 0}, "model.d_state is 0"),
        ({"kernel_width": 0}, "model.kernel_width is 0"),
        ({"form": "scan"}, "model.form is 'scan'"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="hydra", **options)
