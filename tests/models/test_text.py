import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

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
    quick_jit,
    randomized,
    small_spec,
)

VOCAB = 11
TOKENS = np.array([[1, 4, 4, 0, 10], [7, 2, 9, 3, 5]])
POSITIONS = np.array([[3, 0], [4, 4]])


OPTIONS_OF_MODEL = (
    "scale_embeddings",
    "embedding_norm",
    "embedding_projection",
    "token_types",
    "transform",
    "tie_embeddings",
)


def model(vocab=VOCAB, **fields):
    """A masked language model; fields are options of the model or of its encoder."""
    options = {}
    for name in OPTIONS_OF_MODEL:
        if name in fields:
            options[name] = fields.pop(name)
    return MaskedLM(small_spec(**fields), vocab, nnx.Rngs(0), **options)


def abstract(**fields):
    """A model without numbers, quick to make."""
    return nnx.eval_shape(lambda: model(**fields))


def all_logits(p, tokens, scale):
    """Logits of one sequence at every position, by numpy. A norm on the embeddings takes the place
    of the factor."""
    x = scale * p["embedding"][tokens]
    if "embedding_norm" in p:
        x = layer_norm(p["embedding_norm"], x)
    hidden = reference.encoder(p["encoder"], x)
    if "transform" in p:
        transformed = gelu(linear(p["transform"], hidden))
        hidden = layer_norm(p["transform_norm"], transformed)
    output_embedding = p.get("output_embedding", p["embedding"])
    logits = [output_embedding @ state + p["bias"] for state in hidden]
    return np.stack(logits)


@pytest.mark.smoke
@pytest.mark.parametrize("scale_embeddings", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transform": True},
        {"embedding_norm": True},
        {"tie_embeddings": False},
    ],
)
@in_float64
def test_logits_agree_with_numpy(options, scale_embeddings):
    """Scaled embeddings enter the encoder, and plain ones score."""
    module = randomized(lambda: model(scale_embeddings=scale_embeddings, **options))
    p = params_of(module)
    is_scaled = scale_embeddings and "embedding_norm" not in options
    scale = 6**0.5 if is_scaled else 1
    logits = quick_jit(module)(TOKENS, POSITIONS)
    expected = []
    for tokens, positions in zip(TOKENS, POSITIONS, strict=True):
        of_all = all_logits(p, tokens, scale)
        expected.append(of_all[positions])
    assert logits.shape == (2, 2, VOCAB)
    assert logits.dtype == jnp.float64
    assert_allclose(logits, expected, atol=1e-10)


def test_bfloat16_models_have_precise_float32_logits():
    module = abstract(dtype="bfloat16")
    reference.assert_last_product_alone_is_precise(module, TOKENS, POSITIONS)


def fnet():
    return model(
        block="fnet",
        activation="gelu_tanh",
        transform=True,
        embedding_norm=True,
        embedding_projection=True,
        token_types=4,
        positions="absolute",
    )


@in_float64
def test_embeddings_of_fnet_agree_with_numpy():
    """Words, the first kind of text, positions; the norm; the projection."""
    module = randomized(fnet)
    p = params_of(module)
    segments = p["segments"]["table"]
    assert segments.shape == (4, 6)
    projection = p["embedding_projection"]
    assert projection["kernel"].shape == (6, 6)
    positions = p["positions"]["table"]
    projected = []
    for tokens in TOKENS:
        words = p["embedding"][tokens]
        embedded = words + segments[0] + positions
        normed = layer_norm(p["embedding_norm"], embedded, 1e-12)
        projected.append(linear(p["embedding_projection"], normed))
    first_segment = jnp.zeros_like(TOKENS)
    states = quick_jit(module.hidden)(TOKENS, segments=first_segment)
    inputs = jnp.asarray(projected)
    expected = quick_jit(module.encoder)(inputs)
    assert_allclose(states, expected, atol=1e-10)


@in_float64
def test_logits_are_those_of_the_states_at_the_positions():
    module = randomized(fnet)
    states = quick_jit(module.hidden)(TOKENS)
    indices = POSITIONS[..., None]
    at_positions = jnp.take_along_axis(states, indices, axis=1)
    logits = quick_jit(module)(TOKENS, POSITIONS)
    expected = quick_jit(module.logits)(at_positions)
    assert_allclose(logits, expected, atol=1e-10)


def test_segments_are_pretrained_only_with_token_types():
    module = abstract(dtype="float32")
    assert module.segments is None


def fresh_segments(module):
    """The initial table of segments of a model."""
    return quick_jit(lambda: module().segments.table[...])()


def test_pretrained_segments_start_random():
    table = fresh_segments(lambda: model(dtype="float32", token_types=4))
    assert 0.01 < table.std() < 0.03


@pytest.mark.parametrize(
    ("token_types", "rows", "is_random"),
    [
        pytest.param(0, 2, False, id="added by finetuning"),
        pytest.param(4, 4, True, id="pretrained"),
    ],
)
def test_segments_of_classifiers_start_at_0_unless_pretrained(token_types, rows, is_random):
    spec = small_spec(dtype="float32")
    table = fresh_segments(
        lambda: SequenceClassifier(spec, VOCAB, 3, nnx.Rngs(0), token_types=token_types)
    )
    assert table.shape == (rows, 6)
    assert table.any() == is_random


@in_float64
def test_both_ends_share_one_table():
    """The table's gradient is the sum of those of a model with two tables, neither of them zero."""
    module = randomized(model)
    definition, state = nnx.split(module)

    def with_table(table):
        copy = nnx.merge(definition, jax.tree.map(lambda leaf: leaf, state))
        copy.embedding[...] = table
        return copy

    def loss(table_in, table_out):
        hidden = with_table(table_in).hidden(TOKENS)
        logits = with_table(table_out).logits(hidden)
        return (logits**2).sum()

    def loss_of_one(table):
        return loss(table, table)

    table = module.embedding[...]
    gradient = quick_jit(jax.grad(loss_of_one))(table)
    gradients_of_two = quick_jit(jax.grad(loss, argnums=(0, 1)))
    gradient_in, gradient_out = gradients_of_two(table, table)
    assert np.abs(gradient_in).max() > 0.1
    assert np.abs(gradient_out).max() > 0.1
    assert_allclose(gradient, gradient_in + gradient_out, rtol=1e-10)
    leaves = jax.tree.leaves(state)
    shapes = [leaf.shape for leaf in leaves]
    assert shapes.count((VOCAB, 6)) == 1


def test_logits_are_computed_only_where_they_are_needed():
    """No array of batch x tokens x vocabulary, forward or backward."""
    batch = 4
    length = 32
    predictions = 2
    vocab = 1000
    module = abstract(vocab=vocab, length=length, dtype="float32")
    state, call = function_of(module)
    tokens = jnp.zeros((batch, length), jnp.int32)
    positions = jnp.zeros((batch, predictions), jnp.int32)

    def loss(state):
        logits = call(state, tokens, positions)
        return jax.nn.logsumexp(logits, -1).sum()

    table_size = vocab * 6
    logits_size = batch * predictions * vocab
    most = max(table_size, logits_size)
    gradient = jax.grad(loss)
    assert largest_array(call, state, tokens, positions) <= most
    assert largest_array(gradient, state) == most
    assert most == logits_size


@pytest.mark.parametrize("kind", ["language model", "classifier"])
@in_float64
def test_dropout_keys_reach_the_encoder(kind):
    if kind == "classifier":
        module = randomized(lambda: classifier(dropout=0.5))
        inputs = (TOKENS, SEGMENTS, None)
    else:
        module = randomized(lambda: model(dropout=0.5))
        inputs = (TOKENS, POSITIONS)
    call = quick_jit(module)
    examples = len(TOKENS)
    first = call(*inputs, keys(0, examples))
    second = call(*inputs, keys(1, examples))
    difference = np.abs(first - second)
    assert difference.max() > 1e-3


SEGMENTS = np.array([[0, 0, 1, 1, 1], [0, 1, 0, 0, 0]])
MASK = np.array([[True] * 5, [True, True, False, False, False]])
AMLP = {"d_attn": 3}
BERT = {"block": "transformer", "heads": 2, "positions": "relative"}


def classifier(pool="cls", pooler=False, **fields):
    spec = small_spec(**fields)
    return SequenceClassifier(spec, VOCAB, 3, nnx.Rngs(0), pool=pool, pooler=pooler)


def spans(**fields):
    return SpanPredictor(small_spec(**fields), VOCAB, nnx.Rngs(0))


def states(p, tokens, segments):
    """The encoder's states of one pair, by numpy."""
    words = p["embedding"][tokens]
    segment_table = p["segments"]["table"]
    embedded = words + segment_table[segments]
    return reference.encoder(p["encoder"], embedded)


def pooled_state(states, pool, mask):
    """The first state, or the mean of those that are no padding, by numpy."""
    if pool == "cls":
        return states[0]
    return states[mask].mean(0)


def linear_of_one(p, x):
    """A linear layer on one vector."""
    [y] = linear(p, x[None])
    return y


@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("pool", ["cls", "mean"])
@in_float64
def test_classifiers_read_the_first_token_or_all_but_padding(pool, pooler):
    module = randomized(lambda: classifier(pool, pooler))
    p = params_of(module)
    expected = []
    for tokens, segments, mask in zip(TOKENS, SEGMENTS, MASK, strict=True):
        hidden = states(p, tokens, segments)
        pooled = pooled_state(hidden, pool, mask)
        if pooler:
            pooled = np.tanh(linear_of_one(p["pooler"], pooled))
        logits = linear_of_one(p["head"], pooled)
        expected.append(logits)
    found = quick_jit(module)(TOKENS, SEGMENTS, MASK)
    assert_allclose(found, expected, atol=1e-10)


def pair_classifier(pool="cls", interaction="nli", **fields):
    spec = small_spec(**fields)
    return PairClassifier(spec, VOCAB, 3, nnx.Rngs(0), pool=pool, interaction=interaction)


PAIR = np.stack([TOKENS, TOKENS[::-1, ::-1]], axis=1)  # [batch, 2, tokens]
NO_SEGMENTS = np.zeros_like(PAIR)


@pytest.mark.parametrize(
    ("pool", "interaction", "parts"),
    [
        ("cls", "nli", 4),
        ("mean", "nli", 4),
        ("cls", "concat", 2),
    ],
)
@in_float64
def test_classifiers_of_pairs_agree_with_numpy(pool, interaction, parts):
    """Each text by the same encoder, then [u, v, u v, u - v], or the first two, and two layers with
    a ReLU."""
    module = randomized(lambda: pair_classifier(pool, interaction))
    p = params_of(module)
    head = p["head"]
    first_layer = head["first"]
    assert first_layer["kernel"].shape == (6 * parts, 24)
    second_layer = head["second"]
    assert second_layer["kernel"].shape == (24, 12)
    masks = np.stack([MASK, np.ones_like(MASK)], axis=1)
    expected = []
    for texts, masks_of_texts in zip(PAIR, masks, strict=True):
        text_states = []
        for tokens, mask in zip(texts, masks_of_texts, strict=True):
            embedded = p["embedding"][tokens]
            hidden = reference.encoder(p["encoder"], embedded)
            text_states.append(pooled_state(hidden, pool, mask))
        u, v = text_states
        features = [u, v, u * v, u - v]
        x = np.concatenate(features[:parts])
        hidden = linear_of_one(first_layer, x)
        x = np.maximum(hidden, 0)
        hidden = linear_of_one(second_layer, x)
        x = np.maximum(hidden, 0)
        expected.append(linear_of_one(head["last"], x))
    found = quick_jit(module)(PAIR, NO_SEGMENTS, masks)
    assert_allclose(found, expected, atol=1e-10)


@pytest.mark.slow
@in_float64
def test_the_two_texts_of_a_pair_are_dropped_independently():
    """And every parameter has a gradient, which it would not if both equal texts gave one state."""
    module = randomized(lambda: pair_classifier(dropout=0.5))
    state, call = function_of(module)
    same = np.stack([TOKENS, TOKENS], axis=1)

    def loss(state):
        dropout_keys = keys(0, 2)
        noisy = call(state, same, NO_SEGMENTS, None, dropout_keys)
        return (noisy**2).sum(), noisy

    compiled = quick_jit(call)
    differentiated = quick_jit(jax.grad(loss, has_aux=True))
    gradient, noisy = differentiated(state)
    quiet = compiled(state, same, NO_SEGMENTS)
    first_key = keys(0, 2)[:1]
    first_tokens = same[:1]
    first_segments = NO_SEGMENTS[:1]
    alone = compiled(state, first_tokens, first_segments, None, first_key)
    difference = np.abs(noisy - quiet)
    assert difference.max() > 1e-3
    assert_allclose(noisy[:1], alone, atol=1e-12)
    reference.assert_gradient_reaches_every_parameter(nnx.to_pure_dict(gradient))


OTHER_PADDING = np.where(MASK, TOKENS, 6)


@in_float64
def test_transformer_classifiers_do_not_read_padding():
    call = quick_jit(randomized(lambda: classifier(**BERT)))
    logits = call(TOKENS, SEGMENTS, MASK)
    other = call(OTHER_PADDING, SEGMENTS, MASK)
    assert_allclose(logits, other, atol=1e-12)


@in_float64
def test_transformer_spans_do_not_read_padding():
    call = quick_jit(randomized(lambda: spans(**BERT)))
    scores = call(TOKENS, SEGMENTS, MASK)
    other = call(OTHER_PADDING, SEGMENTS, MASK)
    assert_allclose(scores[MASK], other[MASK], atol=1e-12)


@in_float64
def test_spatial_projections_read_padding():
    """The paper masks nothing in gMLP's blocks."""
    call = quick_jit(randomized(classifier))
    logits = call(TOKENS, SEGMENTS)
    assert_array_equal(call(TOKENS, SEGMENTS, MASK), logits)
    difference = call(OTHER_PADDING, SEGMENTS) - logits
    row_difference = np.abs(difference)[1]
    assert row_difference.max() > 1e-3


@in_float64
def test_tiny_attention_does_not_read_padding():
    """Its examples without padding stay the same."""
    call = quick_jit(randomized(lambda: classifier(**AMLP)))
    masked = call(TOKENS, SEGMENTS, MASK)
    unmasked = call(TOKENS, SEGMENTS)
    assert_allclose(masked[0], unmasked[0], atol=1e-12)
    row_difference = np.abs(masked[1] - unmasked[1])
    assert row_difference.max() > 1e-3


@in_float64
def test_spans_have_two_scores_per_token():
    module = randomized(spans)
    p = params_of(module)
    expected = []
    for tokens, segments in zip(TOKENS, SEGMENTS, strict=True):
        scores = linear(p["spans"], states(p, tokens, segments))
        expected.append(scores)
    assert_allclose(quick_jit(module)(TOKENS, SEGMENTS), expected, atol=1e-10)
