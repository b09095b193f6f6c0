import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from gmlp_flax.models.text import MaskedLM, PairClassifier, SequenceClassifier, SpanPredictor
from tests.models import reference
from tests.models.reference import (
    function_of,
    gelu,
    in_float64,
    keys,
    largest_array,
    layer_norm,
    linear,
    params_of,
    program,
    quick_jit,
    randomized,
    small_spec,
)

VOCAB = 11
TOKENS = np.array([[1, 4, 4, 0, 10], [7, 2, 9, 3, 5]])
POSITIONS = np.array([[3, 0], [4, 4]])


AROUND = (
    "scale_embeddings",
    "embedding_norm",
    "embedding_projection",
    "token_types",
    "transform",
    "tie_embeddings",
)


def model(vocab=VOCAB, **fields):
    around = {name: fields.pop(name) for name in AROUND if name in fields}
    return MaskedLM(small_spec(**fields), vocab, nnx.Rngs(0), **around)


def abstract(**fields):
    """A model of shapes alone, quick to make."""
    return nnx.eval_shape(lambda: model(**fields))


def all_logits(p, tokens, scale):
    """Logits of one sequence at every position, by numpy. A norm on the embeddings takes the place
    of the factor."""
    x = scale * p["embedding"][tokens]
    hidden = reference.encoder(
        p["encoder"], layer_norm(p["embedding_norm"], x) if "embedding_norm" in p else x
    )
    if "transform" in p:
        hidden = layer_norm(p["transform_norm"], gelu(linear(p["transform"], hidden)))
    return np.stack(
        [p.get("output_embedding", p["embedding"]) @ state + p["bias"] for state in hidden]
    )


@pytest.mark.smoke
@pytest.mark.parametrize("scale_embeddings", [False, True])
@pytest.mark.parametrize(
    "others", [{}, {"transform": True}, {"embedding_norm": True}, {"tie_embeddings": False}]
)
@in_float64
def test_against_numpy(others, scale_embeddings):
    """Scaled embeddings enter the encoder, and plain ones score."""
    module = randomized(lambda: model(scale_embeddings=scale_embeddings, **others))
    scale = 6**0.5 if scale_embeddings and "embedding_norm" not in others else 1
    logits = quick_jit(module)(TOKENS, POSITIONS)
    expected = [
        all_logits(params_of(module), row, scale)[at]
        for row, at in zip(TOKENS, POSITIONS, strict=True)
    ]
    assert logits.shape == (2, 2, VOCAB)
    assert logits.dtype == jnp.float64
    np.testing.assert_allclose(logits, expected, atol=1e-10)


def test_logits_of_a_bfloat16_model_are_float32_and_not_rounded_before():
    reference.assert_last_product_alone_is_precise(abstract(dtype="bfloat16"), TOKENS, POSITIONS)


@in_float64
def test_the_embeddings_of_fnet_against_numpy():
    """Words, the first kind of text, positions; the norm; the projection."""
    fnet = {
        "embedding_norm": True,
        "embedding_projection": True,
        "token_types": 4,
        "positions": "absolute",
    }
    module = randomized(lambda: model(transform=True, block="fnet", activation="gelu_tanh", **fnet))
    p = params_of(module)
    assert p["segments"]["table"].shape == (4, 6)
    assert p["embedding_projection"]["kernel"].shape == (
        6,
        6,
    )
    x = p["embedding"][TOKENS[0]] + p["segments"]["table"][0] + p["positions"]["table"]
    x = reference.linear(
        p["embedding_projection"], reference.layer_norm(p["embedding_norm"], x, 1e-12)
    )

    @quick_jit
    def parts(x, tokens):
        states = module.hidden(tokens, segments=jnp.zeros_like(tokens))
        return (
            states[0],
            module.encoder(x)[0],
            module(tokens, POSITIONS)[0],
            module.logits(states[0, POSITIONS[0]]),
        )

    states, encoded, logits, scored = parts(x[None], TOKENS)
    np.testing.assert_allclose(states, encoded, atol=1e-10)
    np.testing.assert_allclose(logits, scored, atol=1e-10)


def test_kinds_of_text_start_where_they_are_pretrained_with():
    """At 0 where finetuning adds them, random where pretraining learns them; then a classifier has
    the same rows."""
    assert abstract(dtype="float32").segments is None

    @quick_jit
    def tables():
        spec = small_spec(dtype="float32")
        made = model(dtype="float32", token_types=4)
        tuned = [
            SequenceClassifier(spec, VOCAB, 3, nnx.Rngs(0), token_types=types) for types in (0, 4)
        ]
        return [one.segments.table[...] for one in (made, *tuned)]

    pretrained, added, kept = tables()
    assert 0.01 < pretrained.std() < 0.03
    assert added.shape == (2, 6)
    assert not added.any()
    assert kept.shape == (4, 6)
    assert kept.any()


@in_float64
def test_both_ends_share_one_table():
    """The table's gradient is the sum of those of a model with two tables, neither of them zero."""
    module = randomized(lambda: model())
    definition, state = nnx.split(module)

    def loss(table_in, table_out):
        ends = []
        for table in (table_in, table_out):
            end = nnx.merge(definition, jax.tree.map(lambda leaf: leaf, state))
            end.embedding[...] = table
            ends.append(end)
        return (ends[1].logits(ends[0].hidden(TOKENS)) ** 2).sum()

    table = module.embedding[...]
    tied = quick_jit(jax.grad(lambda table: loss(table, table)))(table)
    ends = quick_jit(jax.grad(loss, argnums=(0, 1)))(table, table)
    assert min(np.abs(end).max() for end in ends) > 0.1
    np.testing.assert_allclose(tied, ends[0] + ends[1], rtol=1e-10)
    assert [leaf.shape for leaf in jax.tree.leaves(state)].count((VOCAB, 6)) == 1


def test_logits_are_computed_where_they_are_needed_alone():
    """No array of batch x tokens x vocabulary, forward or backward."""
    batch = 4
    tokens = 32
    predictions = 2
    vocab = 1000
    state, call = function_of(abstract(vocab=vocab, length=tokens, dtype="float32"))
    args = state, jnp.zeros((batch, tokens), jnp.int32), jnp.zeros((batch, predictions), jnp.int32)
    gradient = jax.grad(lambda *args: jax.nn.logsumexp(call(*args), -1).sum())
    for function in (call, gradient):
        assert max(vocab * 6, batch * predictions * vocab) >= largest_array(function, *args)
    shapes = {math.prod(out.aval.shape) for e in program(gradient, *args) for out in e.outvars}
    assert batch * predictions * vocab in shapes


@in_float64
def test_the_key_reaches_the_encoder():
    for make, inputs in (
        (lambda: model(dropout=0.5), (TOKENS, POSITIONS)),
        (lambda: classifier(dropout=0.5), (TOKENS, SEGMENTS, None)),
    ):
        call = quick_jit(randomized(make))
        first, second = (call(*inputs, keys(seed, len(TOKENS))) for seed in range(2))
        assert np.abs(first - second).max() > 1e-3


SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]])
MASK = np.array([[True] * 5, [True, True, False, False, False]])
AMLP = {"d_attn": 3}
BERT = {"block": "transformer", "heads": 2, "positions": "relative"}


def classifier(pool="cls", pooler=False, **fields):
    return SequenceClassifier(small_spec(**fields), VOCAB, 3, nnx.Rngs(0), pool=pool, pooler=pooler)


def spans(**fields):
    return SpanPredictor(small_spec(**fields), VOCAB, nnx.Rngs(0))


def states(p, tokens, segments):
    """The encoder's states of one pair, by numpy."""
    return reference.encoder(
        p["encoder"], p["embedding"][tokens] + p["segments"]["table"][segments]
    )


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("pool", ["cls", "mean"])
@in_float64
def test_a_classifier_reads_the_first_token_or_all_that_are_no_padding(pool, pooler):
    module = randomized(lambda: classifier(pool, pooler))
    p = params_of(module)
    pooled = [
        states(p, tokens, segments)[[0] if pool == "cls" else mask].mean(0)
        for tokens, segments, mask in zip(TOKENS, SEGMENTS, MASK, strict=True)
    ]
    if pooler:
        pooled = [np.tanh(state @ p["pooler"]["kernel"] + p["pooler"]["bias"]) for state in pooled]
    expected = [state @ p["head"]["kernel"] + p["head"]["bias"] for state in pooled]
    np.testing.assert_allclose(quick_jit(module)(TOKENS, SEGMENTS, MASK), expected, atol=1e-10)


def twins(pool="cls", interaction="nli", **fields):
    return PairClassifier(
        small_spec(**fields), VOCAB, 3, nnx.Rngs(0), pool=pool, interaction=interaction
    )


PAIR = np.stack([TOKENS, TOKENS[::-1, ::-1]], axis=1)  # [batch, 2, tokens]
NO_SEGMENTS = np.zeros_like(PAIR)


@pytest.mark.parametrize(
    ("pool", "interaction"), [("cls", "nli"), ("mean", "nli"), ("cls", "concat")]
)
@in_float64
def test_texts_that_are_read_apart(pool, interaction):
    """Each by the same encoder, then [u, v, u v, u - v], or the first two, and two layers with a
    ReLU."""
    module = randomized(lambda: twins(pool, interaction))
    p = params_of(module)
    mask = np.stack([MASK, np.ones_like(MASK)], axis=1)
    parts = {"nli": 4, "concat": 2}[interaction]
    assert [p["head"][name]["kernel"].shape for name in ("first", "second")] == [
        (6 * parts, 24),
        (24, 12),
    ]
    expected = []
    for texts, visible in zip(PAIR, mask, strict=True):
        u, v = (
            reference.encoder(p["encoder"], p["embedding"][tokens])[
                [0] if pool == "cls" else shown
            ].mean(0)
            for tokens, shown in zip(texts, visible, strict=True)
        )
        x = np.concatenate([u, v, u * v, u - v][:parts])
        for name in ("first", "second"):
            x = np.maximum(linear(p["head"][name], x[None])[0], 0)
        expected.append(linear(p["head"]["last"], x[None])[0])
    np.testing.assert_allclose(quick_jit(module)(PAIR, NO_SEGMENTS, mask), expected, atol=1e-10)


@in_float64
def test_the_two_texts_of_a_pair_draw_dropout_of_their_own():
    module = randomized(lambda: twins(dropout=0.5))
    (state, call), same = function_of(module), np.stack([TOKENS, TOKENS], axis=1)

    @quick_jit
    def outputs_and_gradient(state):
        def loss(state):
            noisy = call(state, same, NO_SEGMENTS, None, keys(0, 2))
            return (noisy**2).sum(), noisy

        gradient, noisy = jax.grad(loss, has_aux=True)(state)
        alone = call(state, same[:1], NO_SEGMENTS[:1], None, keys(0, 2)[:1])
        return noisy, call(state, same, NO_SEGMENTS), alone, gradient

    noisy, quiet, alone, gradient = outputs_and_gradient(state)
    assert np.abs(noisy - quiet).max() > 1e-3
    np.testing.assert_allclose(noisy[:1], alone, atol=1e-12)
    reference.assert_gradient_reaches_every_parameter(nnx.to_pure_dict(gradient))


@pytest.mark.parametrize("make", [classifier, spans])
@in_float64
def test_transformers_ignore_hidden_padding(make):
    module = randomized(lambda: make(**BERT))
    other = np.where(MASK, TOKENS, 6)
    call = quick_jit(module)
    found, again = (call(tokens, SEGMENTS, MASK) for tokens in (TOKENS, other))
    places = MASK if found.ndim == 3 else slice(None)
    np.testing.assert_allclose(found[places], again[places], atol=1e-12)


@in_float64
def test_spatial_projections_see_padding_and_tiny_attention_need_not():
    """The paper masks nothing in gMLP's blocks: what a hidden token is still matters there, to all
    the same extent."""
    other = np.where(MASK, TOKENS, 6)
    gmlp = quick_jit(randomized(classifier))
    np.testing.assert_array_equal(gmlp(TOKENS, SEGMENTS, MASK), gmlp(TOKENS, SEGMENTS))
    assert np.abs(gmlp(TOKENS, SEGMENTS) - gmlp(other, SEGMENTS))[1].max() > 1e-3
    amlp = quick_jit(randomized(lambda: classifier(**AMLP)))
    hidden = amlp(TOKENS, SEGMENTS, MASK)
    open_ = amlp(TOKENS, SEGMENTS)
    np.testing.assert_allclose(hidden[0], open_[0], atol=1e-12)
    assert np.abs(hidden[1] - open_[1]).max() > 1e-3


@in_float64
def test_spans_have_two_scores_a_token():
    module = randomized(spans)
    p = params_of(module)
    expected = [
        states(p, *pair) @ p["spans"]["kernel"] + p["spans"]["bias"]
        for pair in zip(TOKENS, SEGMENTS, strict=True)
    ]
    np.testing.assert_allclose(quick_jit(module)(TOKENS, SEGMENTS), expected, atol=1e-10)
