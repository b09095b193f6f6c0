"""Hydra: its matrices within the mixer, causal models, caches, and options that contradict each
other."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models import parameters
from gmlp_flax.models.blocks.hydra import HydraBlock, HydraMixer
from gmlp_flax.models.text import CausalLM
from tests.models.matrix_mixers.cases import EVERY, KINDS, mixer, spec_of
from tests.models.reference import (
    function_of,
    in_float64,
    normal,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)


@pytest.mark.slow
@EVERY
@in_float64
def test_the_output_is_made_of_the_materialised_matrix(kind, computed):
    """M v of each head, normalised over all heads, times the gate."""
    module = mixer(kind, computed)
    x = jnp.asarray(normal(0, 2, 5, 6))
    p = params_of(module)
    matrices = np.broadcast_to(module.matrices(x), (2, 3, 5, 5))
    v = jax.nn.silu(module.convolution(x @ p["values"]["kernel"]))
    by_head = v.reshape(2, 5, 3, 4).swapaxes(1, 2)
    mixed = (matrices @ by_head).swapaxes(1, 2).reshape(2, 5, 12)
    normed = mixed / np.sqrt((mixed**2).mean(-1, keepdims=True) + 1e-5)
    gated = p["norm_scale"] * normed * jax.nn.silu(x @ p["gate"]["kernel"])
    np.testing.assert_allclose(quick_jit(module)(x), gated @ p["out"]["kernel"], atol=1e-10)


def jacobian(module, x):
    """The largest entry of each block of the Jacobian: [output token, input token]."""
    entries = quick_jit(jax.jacrev(lambda x: module(x[None])[0]))(x)
    return np.abs(entries).max(axis=(1, 3))


FORMS = [
    *((kind, computed, "direct") for kind, computed in KINDS),
    *((kind, True, "fast") for kind in ("quasiseparable", "low_rank", "attention")),
]


@pytest.mark.parametrize(("kind", "computed", "form"), FORMS)
@in_float64
def test_nothing_comes_from_the_future(kind, computed, form, dtype="bfloat16"):
    """Exactly, in both forms."""
    module = mixer(kind, computed, causal=True, form=form, length=9, dtype=dtype)
    found = jacobian(module, jnp.asarray(normal(0, 9, 6), dtype))
    assert (found[np.triu_indices(9, 1)] == 0).all()
    assert (found[np.tril_indices(9)] > 0).all()


@pytest.mark.slow
@EVERY
@in_float64
def test_a_text_is_continued_from_the_cache(kind, computed):
    """After a beginning of 4 tokens, padded to 6: token by token, then two at once."""
    n = 9
    spec = spec_of(kind, computed, causal=True, length=n)
    model = randomized(lambda: CausalLM(spec, 11, nnx.Rngs(0), scale_embeddings=True))
    tokens = np.random.default_rng(0).integers(0, 11, (2, n))
    state, extend = function_of(model, "extend")
    extend = quick_jit(extend)
    expected = quick_jit(model)(tokens)
    padded = np.concatenate([tokens[:, :4], np.full((2, 2), 10)], axis=1)
    logits, cache = extend(state, padded, None, 0, 3)
    np.testing.assert_allclose(logits, expected[:, 3], atol=1e-10)
    for place in range(4, n - 2):
        logits, cache = extend(state, tokens[:, place : place + 1], cache, place, 0)
        np.testing.assert_allclose(logits, expected[:, place], atol=1e-10)
    logits, _ = extend(state, tokens[:, n - 2 :], cache, n - 2, 1)
    np.testing.assert_allclose(logits, expected[:, n - 1], atol=1e-10)


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
def test_the_form_by_the_number_of_tokens(kind, tokens, form):
    spec = spec_of(kind, kind != "dense", length=tokens)
    assert spec.applied_form(tokens) == form
    causal = dataclasses.replace(spec, causal=True)
    expected = "direct" if kind in ("dense", "toeplitz", "low_rank") else form
    assert causal.applied_form(tokens) == expected


def test_what_weight_decay_leaves_alone():
    spec = spec_of(dtype="float32")
    made = nnx.eval_shape(lambda: HydraBlock(spec, nnx.Rngs(0)))
    metadata = parameters.metadata(made)
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


@EVERY
@in_float64
def test_what_is_drawn(kind, computed):
    """The mean of learned matrices; for every matrix, shares that are those of its absolute
    weights, or the logits of attention."""
    module = randomized(lambda: HydraBlock(spec_of(kind, computed), nnx.Rngs(0)))
    x = jnp.asarray(normal(0, 2, 5, 6))
    normed = module.mixing_norm(x)
    matrices = np.broadcast_to(module.hydra.matrices(normed), (2, 3, 5, 5))
    matrix = module.spatial_matrix()
    assert (
        HydraBlock.has_spatial_matrix(module.hydra.spec) == (matrix is not None) == (not computed)
    )
    if matrix is not None:
        np.testing.assert_allclose(matrix, matrices[0].mean(0), atol=1e-12)
    shares = np.broadcast_to(jax.nn.softmax(module.attention_scores(x)), (2, 3, 5, 5))
    if kind == "attention":
        expected = matrices - np.eye(5)
    else:
        expected = np.abs(matrices) / np.abs(matrices).sum(-1, keepdims=True)
    np.testing.assert_allclose(shares, expected, atol=1e-12)


def test_parameters_by_hand():
    """d = 6, 12 channels in 3 heads, 3 groups of B and C of size 4 in two directions, filters of
    4."""
    spec = spec_of(groups=3, dtype="float32")
    made = nnx.eval_shape(lambda: HydraMixer(spec, nnx.Rngs(0)))
    values_and_gate = 2 * 6 * 12
    states = 2 * 2 * 3 * 4
    steps = 6 * 2 * 3
    filters = (4 + 1) * (12 + states)
    of_heads = 3 + 3 + 3 + 12 * 3
    out = 12 * 6
    expected = values_and_gate + 6 * states + steps + filters + of_heads + 12 + out
    assert parameters.count(nnx.state(made, nnx.Param)) == expected


@pytest.mark.parametrize(("options", "message"), [
    ({"matrix": "vandermonde"}, "model.matrix is 'vandermonde'"),
    ({"matrix": "dense"}, "model.input_dependent is True"),
    ({"groups": 2}, "model.heads is 3: model.groups, 2"),
    ({"matrix": "dense", "input_dependent": False, "form": "fast"}, "model.form is 'fast': a dense"),
    ({"matrix": "toeplitz", "causal": True, "form": "fast"}, "model.form is 'fast', whose rounding"),
    ({"heads": 4}, "model.heads, 4"), ({"expand": 0}, "model.expand is 0"), ({"d_state": 0}, "model.d_state is 0"),
    ({"kernel_width": 0}, "model.kernel_width is 0"), ({"form": "scan"}, "model.form is 'scan'"),
])  # fmt: skip
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        small_spec(block="hydra", **options)
