"""Attention's maps against a slow reference that runs the whole model, and the images of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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
    Tokenizer.train([" ".join(tiny.WORDS)] * 20, 340).save(path)
    return Tokenizer.load(path)


def untrained(tokenizer, tmp_path, task="masked_lm", **model) -> Model:
    """A run whose parameters are random numbers, large enough for attention to prefer some
    tokens."""
    config = gmlp_config.changed(tiny.text_config(tmp_path, **model), task)
    config.model.update(length=20, vocab_size=340, layers=3)
    made = tasks.find(task)(config, {TOKENIZER_FILE: tokenizer.model})
    params = tiny.random_params(made.shapes(), 0.5)
    return Model(made, params, Partition.make())


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def embedded(params, model, tokens, segments):
    """What the first layer reads."""
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
    """Those of gMLP's tiny attention."""
    normed = reference.layer_norm(p["norm"], x)
    q, k, _ = np.split(reference.linear(p["attention"]["qkv"], normed), 3, axis=1)
    return softmax(products(q, k))


def largest_weights(p, x, model):
    """Those of a Transformer's two heads of four channels: the larger ones."""
    attention_params = p["attention"]
    normed = reference.layer_norm(p["attention_norm"], x)
    projected = reference.linear(attention_params["proj_in"], normed)
    weights = []
    for head in range(2):
        scores = np.zeros((len(x), len(x)))
        first = 4 * head
        if model.positions.startswith("relative"):
            bias = reference.relative_bias(attention_params["relative"], len(x), model.length)
            scores += bias[head]
        if model.positions != "relative_only":
            q = projected[:, first : first + 4]
            k = projected[:, 8 + first : 12 + first]
            scores += products(q, k)
        weights.append(softmax(scores))
    return np.max(weights, axis=0)


def slow_maps(trained, tokens, segments):
    """Each layer's weights, query by query, of a model that numpy runs; of several heads the
    largest."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), trained.params)
    model = trained.config.model
    x = embedded(params, model, tokens, segments)
    maps = []
    for layer in range(model.layers):
        p = reference.layer_of(params["encoder"]["blocks"], layer)
        if model.block == "gmlp":
            maps.append(tiny_weights(p, x))
            x = reference.gmlp_block(p, x)
        else:
            maps.append(largest_weights(p, x, model))
            x = reference.transformer_block(p, x, heads=2, length=model.length)
    return np.array(maps)


@pytest.mark.parametrize("name", MODELS)
def test_maps_against_numpy(tokenizer, tmp_path, name):
    """The deeper layers' maps tell that the layers before were run as the model runs them."""
    trained = untrained(tokenizer, tmp_path, **MODELS[name])
    sentences = attention.encode(trained, *PAIR)
    found = attention.maps(trained, sentences).weights
    assert found.shape == (3, len(sentences.tokens), len(sentences.tokens))
    assert found.dtype == np.float32
    np.testing.assert_allclose(
        found, slow_maps(trained, sentences.tokens, sentences.segments), atol=2e-5
    )
    assert (found[0] > 2 / len(sentences.tokens)).any()
    if trained.config.model.block == "gmlp":
        np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("task", "mask"), [("text_classification", False), ("question_answering", True)]
)
def test_finetuned_models_read_padding_unless_it_is_masked(tokenizer, tmp_path, task, mask):
    trained = untrained(tokenizer, tmp_path, task, d_attn=4, mask_padding=mask)
    sentences = attention.encode(trained, *PAIR)
    count = len(sentences.labels)
    assert len(sentences.tokens) == 20 > count
    assert (sentences.tokens[count:] == tokenizer.pad_id).all()
    assert 0 < sentences.segments.sum() < count
    found = attention.maps(trained, sentences).weights
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    if mask:
        assert (found[:, :, count:] == 0).all()
    else:
        np.testing.assert_allclose(
            found, slow_maps(trained, sentences.tokens, sentences.segments), atol=2e-5
        )


def test_what_the_model_reads(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, d_attn=4)
    one = attention.encode(trained, "the time")
    got = [one.labels[0], *one.labels[-1:]]
    assert got == ["[CLS]", "[SEP]"]
    assert "the" in one.labels
    assert one.tokens.tolist() == [
        tokenizer.cls_id,
        *tokenizer.encode("the time"),
        tokenizer.sep_id,
    ]
    two = attention.encode(trained, *PAIR)
    first, second = (tokenizer.encode(text) for text in PAIR)
    assert two.tokens.tolist() == [
        tokenizer.cls_id,
        *first,
        tokenizer.sep_id,
        *second,
        tokenizer.sep_id,
    ]
    expected = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert two.segments.tolist() == expected
    # A model of fixed length reads padding, which has no label.
    padded = attention.encode(untrained(tokenizer, tmp_path, d_attn=4, spatial="dense"), *PAIR)
    assert len(padded.tokens) == 20
    assert padded.labels == two.labels


@pytest.mark.parametrize(
    ("piece", "label"),
    [(" the", "the"), ("ing", "##ing"), (" ", "␣"), ("[CLS]", "[CLS]")],
)
def test_labels(piece, label):
    assert attention.label(piece) == label


def test_figures_show_the_largest_weight_and_each_layer(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, "text_classification", d_attn=4)
    sentences, found, *_ = measured = attention.of_text(trained, *PAIR)
    count = len(sentences.labels)
    np.testing.assert_array_equal(
        found, attention.maps(trained, sentences).weights[:, :count, :count]
    )
    drawn = attention.figures(measured)
    axis = drawn["attention"].axes[0]
    # The first half of three layers is one.
    np.testing.assert_array_equal(axis.images[0].get_array(), found[0])
    for ticks in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert [tick.get_text() for tick in ticks] == sentences.labels
    (boundary,) = np.flatnonzero(np.diff(sentences.segments[:count]))
    got = [line.get_ydata()[0] for line in axis.lines[:1]]
    assert got == [boundary + 0.5]
    *layers, colours = drawn["attention_layers"].axes
    assert colours.get_ylabel() == "weight"
    assert len({axis.images[0].get_clim() for axis in layers}) == 1
    assert [axis.get_title(loc="left").partition(",")[0] for axis in layers] == [
        "layer 1",
        "layer 2",
        "layer 3",
    ]
    for axis, weights in zip(layers, found, strict=True):
        np.testing.assert_array_equal(axis.images[0].get_array(), weights)


def test_layers_keep_their_numbers(tokenizer, tmp_path):
    """Of a hybrid the last two alone have attention, also with a residual stream of another
    type."""
    mixed = {"dtype": "bfloat16", "residual_dtype": "float32"}
    trained = untrained(tokenizer, tmp_path, block="fnet_hybrid", attention_layers=2, **mixed)
    found = attention.of_text(trained, *PAIR)
    assert len(found.weights) == 2
    assert found.numbers == [2, 3]
    assert found.depth == 3
    drawn = attention.figures(found)
    assert drawn["attention_layers"].axes[0].get_title(loc="left").startswith("layer 2,")
    assert drawn["attention"].axes[1].get_ylabel() == "largest weight in layer 2"
    titles = [
        axis.get_title(loc="left").partition(",")[0] for axis in drawn["attention_layers"].axes[:2]
    ]
    assert titles == ["layer 2", "layer 3"]


@pytest.mark.parametrize(
    ("model", "texts", "message"),
    [
        ({"d_attn": 4}, ("the " * 19,), "the text has 21 tokens .* at most 20"),
        ({"block": "mixer"}, ("the",), r"no attention \(block mixer\)"),
    ],
)
def test_mistakes(tokenizer, tmp_path, model, texts, message):
    with pytest.raises(RunError, match=message):
        attention.of_text(untrained(tokenizer, tmp_path, **model), *texts)


def test_a_pair_that_is_read_apart_and_images(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, "text_classification", d_attn=4)
    trained.config.model.pairs = "apart"
    with pytest.raises(RunError, match="--second: the run reads the texts of a pair apart"):
        attention.of_text(trained, "the", "the")
    config = tiny.image_config()
    images = Model(ImageClassification(config), {}, Partition.make())
    assert "image_classification" in raised(RunError, attention.of_text, images, "the")


def test_command(tokenizer, tmp_path):
    trained = untrained(tokenizer, tmp_path, d_attn=4)
    run = tmp_path / "run"
    exported.write(trained.params, trained.config, trained.task.files, str(run))
    done = preloaded.gmlp("draw", "attention", str(run), "--text=the time $", "--second=of $")
    assert done.returncode == 0, done.stderr
    paths = [run / "figures" / "attention.png", run / "figures" / "attention_layers.png"]
    assert done.stdout.splitlines() == [str(path) for path in paths]
    for path in paths:
        assert path.exists()


def stacks(**fields):
    """The stacks of layers of an encoder."""
    return Encoder(small_spec(dtype="float32", **fields), nnx.Rngs(0)).stacks


def first_layer(stack):
    """The first layer of a stack."""
    definition, params = nnx.split(stack)
    return nnx.merge(definition, reference.layer_of(params, 0))


X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 6)), jnp.float32)


def test_maps_of_a_model_with_several_kinds_of_layers():
    """Those of the layers with attention, at what the layers before them gave."""
    hybrid = stacks(block="fnet_hybrid", attention_layers=2)
    none, weights = attention.stack_weights(hybrid, X, None)
    assert none is None
    assert weights.shape == (2, 2, 5, 5)
    transformed = first_layer(hybrid[0])(X)
    scores = first_layer(hybrid[1]).attention_scores(transformed)
    expected = jax.nn.softmax(scores).max(1)
    np.testing.assert_allclose(weights[0], expected, atol=1e-5)


def test_a_model_without_attention_has_no_maps():
    assert attention.stack_weights(stacks(block="fnet"), X, None) == [None]


def test_maps_of_a_synthesizer_are_the_same_for_all_inputs():
    [weights] = attention.stack_weights(stacks(block="synthesizer"), X, None)
    assert weights.shape == (3, 2, 5, 5)
    np.testing.assert_array_equal(weights[:, 0], weights[:, 1])
