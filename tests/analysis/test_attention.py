"""Attention maps against a slow reference that runs the whole model, and their images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.analysis import attention
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import RunError
from gmlp_flax.interop import exported
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.training.model import Model
from gmlp_flax.training.partition import Partition
from tests import preloaded
from tests.failures import raised
from tests.models import reference
from tests.models.reference import small_spec
from tests.training import tiny

MODELS = {
    "amlp": {"d_attn": 4},
    "transformer": {"block": "transformer", "heads": 2, "scale_embeddings": True},
    "relative_only": {"block": "transformer", "heads": 2, "positions": "relative_only"},
    "absolute": {"block": "transformer", "heads": 2, "positions": "absolute"},
}
PAIR = ("the time of", "by some")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("words") / "vocabulary"
    text = " ".join(tiny.WORDS)
    trained = Tokenizer.train([text] * 20, 340)
    trained.save(path)
    return Tokenizer.load(path)


def untrained(tokenizer, tmp_path, task="masked_lm", **model) -> Model:
    """A model with random parameters, large enough for attention to prefer some tokens."""
    config = tiny.text_config(tmp_path, **model)
    config = gmlp_config.changed(config, task)
    config.model.update(length=20, vocab_size=340, layers=3)
    tokenizer_files = {TOKENIZER_FILE: tokenizer.model}
    opened = tasks.find(task)(config, tokenizer_files)
    params = tiny.random_params(opened.shapes(), 0.5)
    return Model(opened, params, Partition.make())


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def embedded(params, model, tokens, segments):
    """The input of the first layer."""
    x = params["embedding"][tokens]
    if "positions" in params:
        x = x + params["positions"]["table"][: len(tokens)]
    if "segments" in params:
        x = x + params["segments"]["table"][segments]
    if model.scale_embeddings:
        x = x * model.d_model**0.5
    return x


def products(queries, keys):
    """The scaled dot products, query by query."""
    return np.array([reference.dot_products(query, keys) for query in queries])


def tiny_weights(p, x):
    """The weights of gMLP's tiny attention."""
    normed = reference.layer_norm(p["norm"], x)
    params = p["attention"]["qkv"]
    qkv = reference.linear(params, normed)
    q, k, _ = np.split(qkv, 3, axis=1)
    scores = products(q, k)
    return softmax(scores)


def largest_weights(p, x, model):
    """The larger weights of a Transformer's two heads of four channels."""
    attention_params = p["attention"]
    normed = reference.layer_norm(p["attention_norm"], x)
    projected = reference.linear(attention_params["proj_in"], normed)
    weights = []
    for head in range(2):
        tokens = len(x)
        scores = np.zeros((tokens, tokens))
        first = 4 * head
        if model.positions.startswith("relative"):
            relative = attention_params["relative"]
            bias = reference.relative_bias(relative, len(x), model.length)
            scores += bias[head]
        if model.positions != "relative_only":
            q = projected[:, first : first + 4]
            k = projected[:, 8 + first : 12 + first]
            scores += products(q, k)
        weights.append(softmax(scores))
    return np.max(weights, axis=0)


def slow_maps(trained, tokens, segments):
    """Each layer's weights, query by query, in a model that numpy runs. Of several heads, the
    largest weight counts."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), trained.params)
    model = trained.config.model
    x = embedded(params, model, tokens, segments)
    maps = []
    for layer in range(model.layers):
        blocks = params["encoder"]["blocks"]
        p = reference.layer_of(blocks, layer)
        if model.block == "gmlp":
            maps.append(tiny_weights(p, x))
            x = reference.gmlp_block(p, x)
        else:
            maps.append(largest_weights(p, x, model))
            x = reference.transformer_block(p, x, heads=2, length=model.length)
    return np.array(maps)


@pytest.mark.parametrize("name", MODELS)
def test_maps_against_numpy(tokenizer, tmp_path, name):
    """Maps of deeper layers show that the layers before them were run correctly."""
    options = MODELS[name]
    trained = untrained(tokenizer, tmp_path, **options)
    sentences = attention.encode(trained, *PAIR)
    weights = attention.maps(trained, sentences).weights
    count = len(sentences.tokens)
    assert weights.shape == (3, count, count)
    assert weights.dtype == np.float32
    expected = slow_maps(trained, sentences.tokens, sentences.segments)
    assert_allclose(weights, expected, atol=2e-5)
    assert (weights[0] > 2 / count).any()
    if trained.config.model.block == "gmlp":
        assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "mask"), [("text_classification", False), ("question_answering", True)]
)
def test_finetuned_models_read_padding_unless_it_is_masked(tokenizer, tmp_path, task, mask):
    trained = untrained(tokenizer, tmp_path, task, d_attn=4, mask_padding=mask)
    sentences = attention.encode(trained, *PAIR)
    count = len(sentences.labels)
    assert len(sentences.tokens) == 20 > count
    padding = sentences.tokens[count:]
    assert (padding == tokenizer.pad_id).all()
    assert 0 < sentences.segments.sum() < count
    weights = attention.maps(trained, sentences).weights
    assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    if mask:
        padding_weights = weights[:, :, count:]
        assert (padding_weights == 0).all()
    else:
        expected = slow_maps(trained, sentences.tokens, sentences.segments)
        assert_allclose(weights, expected, atol=2e-5)


def test_a_text_is_read_between_special_tokens(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, d_attn=4)
    sentence = attention.encode(trained, "the time")
    first, *words, last = sentence.labels
    assert first == "[CLS]"
    assert "the" in words
    assert last == "[SEP]"
    ids = tokenizer.encode("the time")
    assert sentence.tokens.tolist() == [tokenizer.cls_id, *ids, tokenizer.sep_id]


def test_a_pair_is_read_as_two_segments(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, d_attn=4)
    sentences = attention.encode(trained, *PAIR)
    first, second = (tokenizer.encode(text) for text in PAIR)
    first_segment = [tokenizer.cls_id, *first, tokenizer.sep_id]
    second_segment = [*second, tokenizer.sep_id]
    assert sentences.tokens.tolist() == first_segment + second_segment
    zeros = [0] * len(first_segment)
    ones = [1] * len(second_segment)
    assert sentences.segments.tolist() == zeros + ones


def test_models_of_fixed_length_read_padding_without_labels(tokenizer, tmp_path):
    fixed = untrained(tokenizer, tmp_path, d_attn=4, spatial="dense")
    padded = attention.encode(fixed, *PAIR)
    trained = untrained(tokenizer, tmp_path, d_attn=4)
    sentences = attention.encode(trained, *PAIR)
    assert len(padded.tokens) == 20
    assert padded.labels == sentences.labels


@pytest.mark.parametrize(
    ("piece", "label"),
    [(" the", "the"), ("ing", "##ing"), (" ", "␣"), ("[CLS]", "[CLS]")],
)
def test_labels_show_spaces_and_continued_words(piece, label):
    assert attention.label(piece) == label


@pytest.fixture
def measured(tokenizer, tmp_path):
    """Attention of a pair that is padded, without the padding."""
    trained = untrained(tokenizer, tmp_path, "text_classification", d_attn=4)
    return attention.of_text(trained, *PAIR)


def pixels_of(axis) -> np.ndarray:
    """The array of the image on an axis."""
    image = axis.images[0]
    return image.get_array()


def layer_of_title(axis) -> str:
    """The first part of an axis' title."""
    layer, _, _ = axis.get_title(loc="left").partition(",")
    return layer


def test_maps_of_texts_have_no_padding(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, "text_classification", d_attn=4)
    measured = attention.of_text(trained, *PAIR)
    count = len(measured.text.labels)
    padded = attention.maps(trained, measured.text).weights
    assert padded.shape == (3, 20, 20)
    text_weights = padded[:, :count, :count]
    assert_array_equal(measured.weights, text_weights)


def test_the_first_figure_shows_the_largest_weights_with_labels(measured):
    """Its first image is that of the first half of the layers, here of one."""
    sentences = measured.text
    figure = attention.figures(measured)["attention"]
    axis = figure.axes[0]
    assert_array_equal(pixels_of(axis), measured.weights[0])
    for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
        labels = [tick.get_text() for tick in ticks]
        assert labels == sentences.labels
    count = len(sentences.labels)
    segments = sentences.segments[:count]
    changes = np.diff(segments)
    [last_of_first_text] = np.flatnonzero(changes)
    boundary = axis.lines[0].get_ydata()
    assert boundary[0] == last_of_first_text + 0.5


def test_the_second_figure_shows_each_layer(measured):
    figure = attention.figures(measured)["attention_layers"]
    *axes, colour_bar = figure.axes
    assert colour_bar.get_ylabel() == "weight"
    scales = set()
    for axis in axes:
        scales.add(axis.images[0].get_clim())
    assert len(scales) == 1
    titles = [layer_of_title(axis) for axis in axes]
    assert titles == ["layer 1", "layer 2", "layer 3"]
    for axis, weights in zip(axes, measured.weights, strict=True):
        assert_array_equal(pixels_of(axis), weights)


def test_layers_keep_their_numbers(tokenizer, tmp_path):
    """Only the last two layers of a hybrid have attention. Its residual stream has another type."""
    dtypes = {"dtype": "bfloat16", "residual_dtype": "float32"}
    trained = untrained(tokenizer, tmp_path, block="fnet_hybrid", attention_layers=2, **dtypes)
    measured = attention.of_text(trained, *PAIR)
    assert len(measured.weights) == 2
    assert measured.numbers == [2, 3]
    assert measured.depth == 3
    drawn = attention.figures(measured)
    second_map = drawn["attention"].axes[1]
    assert second_map.get_ylabel() == "largest weight in layer 2"
    axes = drawn["attention_layers"].axes
    first, second, *_ = axes
    assert layer_of_title(first) == "layer 2"
    assert layer_of_title(second) == "layer 3"


@pytest.mark.parametrize(
    ("model", "texts", "message"),
    [
        ({"d_attn": 4}, ("the " * 19,), "the text has 21 tokens .* at most 20"),
        ({"block": "mixer"}, ("the",), r"no attention \(block mixer\)"),
    ],
)
def test_long_texts_and_blocks_without_attention_are_refused(
    tokenizer, tmp_path, model, texts, message
):
    trained = untrained(tokenizer, tmp_path, **model)
    with pytest.raises(RunError, match=message):
        attention.of_text(trained, *texts)


def test_pairs_are_refused_if_their_texts_are_read_separately(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, "text_classification", d_attn=4)
    trained.config.model.pairs = "apart"
    with pytest.raises(RunError, match="--second: the run reads the texts of a pair apart"):
        attention.of_text(trained, "the", "the")


def test_models_of_images_are_refused():
    task = ImageClassification(tiny.image_config())
    model = Model(task, {}, Partition.make())
    assert "image_classification" in raised(RunError, attention.of_text, model, "the")


@pytest.mark.slow
def test_the_command_writes_two_figures(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, d_attn=4)
    run = tmp_path / "run"
    files = trained.task.files
    exported.write(trained.params, trained.config, files, str(run))
    done = preloaded.gmlp("draw", "attention", str(run), "--text=the time $", "--second=of $")
    assert done.returncode == 0, done.stderr
    figures = run / "figures"
    paths = [figures / "attention.png", figures / "attention_layers.png"]
    expected = [str(path) for path in paths]
    assert done.stdout.splitlines() == expected
    for path in paths:
        assert path.exists()


def stacks(**fields):
    """The stacks of layers of an encoder."""
    spec = small_spec(dtype="float32", **fields)
    encoder = Encoder(spec, nnx.Rngs(0))
    return encoder.stacks


def first_layer(stack):
    """The first layer of a stack."""
    definition, params = nnx.split(stack)
    return nnx.merge(definition, reference.layer_of(params, 0))


X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 6)), jnp.float32)


@pytest.mark.slow
def test_maps_of_a_model_with_several_kinds_of_layers():
    """Layers with attention have maps, whose inputs are the outputs of the layers before them."""
    hybrid = stacks(block="fnet_hybrid", attention_layers=2)
    none, weights = attention.stack_weights(hybrid, X, None)
    assert none is None
    assert weights.shape == (2, 2, 5, 5)
    transformed = first_layer(hybrid[0])(X)
    scores = first_layer(hybrid[1]).attention_scores(transformed)
    expected = jax.nn.softmax(scores).max(1)
    assert_allclose(weights[0], expected, atol=1e-5)


def test_a_model_without_attention_has_no_maps():
    assert attention.stack_weights(stacks(block="fnet"), X, None) == [None]


def test_maps_of_a_synthesizer_are_the_same_for_all_inputs():
    [weights] = attention.stack_weights(stacks(block="synthesizer"), X, None)
    assert weights.shape == (3, 2, 5, 5)
    assert_array_equal(weights[:, 0], weights[:, 1])
