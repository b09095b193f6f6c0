"""A loaded model in Python: predictions, logits, features, its parts, and copies of it."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import gmlp_flax as gf
from gmlp_flax import config as config_lib
from gmlp_flax.errors import DataError, RunError, UserError
from gmlp_flax.models import parameters
from gmlp_flax.training import model as model_lib
from tests.failures import raised

TINY = dict(layers=3, d_model=16, d_ffn=32)
MASKED = ["A [MASK] is a [MASK].", "The [MASK]."]


@pytest.fixture(scope="module")
def images():
    return gf.create("gmlp_s", classes=("cat", "dog"), image_size=32, patch_size=(8, 8), **TINY)


@pytest.fixture(scope="module")
def text(text_run):
    return gf.load(text_run)


def equal(one, other):
    return jax.tree.all(jax.tree.map(np.array_equal, one, other))


def test_predictions_of_text(text):
    (first, second), (single,) = text.predict(MASKED, top=3)
    assert [len(each) for each in (first, second, single)] == [3, 3, 3]
    assert first[0][1] >= first[1][1] >= first[2][1] > 0
    assert text.predict("A [MASK]") == text.predict(["A [MASK]"])  # one is a list of one
    assert text.tokenizer.vocab_size == 600
    assert text.transform is None
    assert text.classes == ()
    assert text.predict([]) == []


def test_logits_of_text_are_those_of_predictions(text):
    tokens = text.predictor.encode(["The [MASK]."])
    logits = text.logits("The [MASK].")
    assert logits.shape == (1, tokens.shape[1], 600)
    assert logits.dtype == jnp.float32
    np.testing.assert_array_equal(text.logits(tokens), logits)
    position = int(np.flatnonzero(tokens[0] == text.tokenizer.mask_id)[0])
    best = text.tokenizer.piece(int(logits[0, position].argmax()))
    assert text.predict("The [MASK].", top=1)[0][0][0][0] == best


def test_padding_is_left_out_of_the_mean(text):
    texts = ["The value of the call is a name.", "A name."]
    tokens = text.predictor.encode(texts)
    count = int((tokens[1] != text.tokenizer.pad_id).sum())
    assert count < tokens.shape[1]
    pooled = text.features(texts, pool="mean")
    states = text.features(tokens)
    np.testing.assert_allclose(pooled[1], states[1, :count].mean(0), rtol=1e-5, atol=1e-6)


def test_images_as_lists_or_of_a_tensor_that_numpy_cannot_read_are_refused(images):
    class Tensor:
        def __array__(self, *_, **__):
            raise TypeError("Got unsupported ScalarType BFloat16")

    # rows of one image are no grey images
    for given in (np.zeros((8, 8, 3), np.uint8).tolist(), Tensor()):
        with pytest.raises(DataError, match=r"^an image is a path, .*, not (list|Tensor) "):
            images.predict(given)


def test_a_longer_text_beside_it_does_not_change_what_a_text_gives(text):
    """Its padding is hidden, as in predictions: rows of one batch are those of each text alone."""
    texts = ["The value of the call is a name.", "A [MASK]."]
    alone = text.logits(texts[1])
    np.testing.assert_allclose(text.logits(texts)[1:, : alone.shape[1]], alone, atol=1e-5)
    np.testing.assert_allclose(
        text.features(texts, pool="mean")[1:], text.features(texts[1], pool="mean"), atol=1e-5
    )


def test_states_of_layers_are_those_of_a_shorter_stack(images):
    """The state after layer i, normalised, is what a model of the first i + 1 layers gives."""
    x = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    states = images.features(x, layers=(0, 2, -1))
    assert states.shape == (2, 16, 3 * 16)
    first, third, last = np.split(np.asarray(states), 3, axis=-1)
    np.testing.assert_array_equal(third, last)
    short = gf.create("gmlp_s", classes=2, image_size=32, patch_size=(8, 8), **TINY | {"layers": 1})
    params = jax.tree.map(lambda leaf: leaf, images.params)
    params["encoder"]["blocks"] = jax.tree.map(lambda leaf: leaf[:1], params["encoder"]["blocks"])
    np.testing.assert_allclose(short.task.features(params, x), first, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(images.features(x, pool="mean"), last.mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(images.features(x, (0,), pool="cls"), first[:, 0])
    np.testing.assert_array_equal(images.features(x, layers=0), first)


def test_images_of_any_usual_type_give_the_same(images, tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    alpha = np.concatenate([pixels, np.full((40, 40, 1), 255, np.uint8)], -1)
    floats = pixels / 255
    given = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(pixels),
        pixels,
        alpha,
        jnp.asarray(pixels, jnp.int32),
        floats,
    ]
    first, *others = images.predict(given)
    assert all(other == first for other in others)
    assert images.predict(pixels) == images.predict(Image.fromarray(pixels)) == [first]
    assert {name for name, _ in first[0]} == {"cat", "dog"} == {*images.classes}
    np.testing.assert_array_equal(images.transform(pixels), images.predictor.encode([pixels])[0])
    np.testing.assert_array_equal(
        images.logits([pixels]), images.logits(images.predictor.encode([pixels]))
    )
    for wrong in (np.zeros((3, 8, 8)), floats * 2, "none.png", np.array(["a"]), pixels[0, 0]):
        with pytest.raises(DataError):
            images.predict([wrong])


def test_a_batch_of_floats_gives_what_its_images_give(images):
    expected = images.logits(PIXELS)
    floats = PIXELS / 255
    for batch in (floats, jnp.asarray(floats, jnp.float32), PIXELS.astype(int), list(floats)):
        np.testing.assert_allclose(images.logits(batch), expected, atol=1e-6)
        np.testing.assert_allclose(images.features(batch), images.features(PIXELS), atol=1e-5)


def test_folders_and_patterns_are_answered_by_path(images, tmp_path, capsys):
    from PIL import Image

    for i in range(3):
        Image.fromarray(np.full((32, 32, 3), 80 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("no image")
    paths = [str(tmp_path / f"{i}.png") for i in range(3)]
    answers = images.predict(tmp_path, batch_size=2, progress=True)
    assert [*answers] == paths
    assert [*answers.values()] == images.predict(paths)
    assert "3/3" in capsys.readouterr().err
    assert [*images.predict(f"{tmp_path}/[01].png")] == paths[:2]
    assert images.predict(paths[0]) == [answers[paths[0]]]
    (tmp_path / "empty").mkdir()
    assert "no file of these" in raised(DataError, images.predict, tmp_path / "empty")


def test_grey_models_take_colours(image_run):
    model = gf.load(image_run, 12)
    assert model.step == 12
    grey = np.random.default_rng(0).integers(0, 256, (20, 20), np.uint8)
    [one], [other] = model.predict([grey, np.repeat(grey[..., None], 3, -1)], top=2)
    assert one == other
    assert len(one) == 2


def test_function_is_pure_and_transforms(images):
    forward = images.function()
    x = jnp.ones((2, 32, 32, 3))
    found = jax.jit(forward)(images.params, x)
    np.testing.assert_allclose(found, images.logits(x), rtol=1e-5, atol=1e-6)
    gradients = jax.jit(jax.grad(lambda params: forward(params, x).sum()))(images.params)
    assert float(jnp.abs(gradients["head"]["bias"]).sum()) > 0
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), images.params)
    assert jax.eval_shape(jax.vmap(forward, (0, None)), several, x).shape == (2, 2, 2)


def test_function_reads_pixels_as_logits_does(images):
    """Whole numbers from 0 to 255, floats from 0 to 1; and its slope by a pixel is that."""
    forward = images.function()
    params = jax.tree.map(lambda leaf: leaf + 0.1, images.params)
    pixels = np.random.default_rng(0).integers(1, 255, (2, 32, 32, 3), np.uint8)
    floats = jnp.asarray(pixels / 255, jnp.float32)
    logits = dataclasses.replace(images, params=params).logits(pixels)
    assert float(jnp.abs(logits).max()) > 0.1
    for x in (pixels, floats):
        np.testing.assert_allclose(jax.jit(forward)(params, x), logits, rtol=1e-4, atol=1e-4)
    slopes = jax.grad(lambda x: forward(params, x)[0, 0])(floats)
    step = jnp.zeros_like(floats).at[0, 4, 5, 1].set(0.01)
    rise = forward(params, floats + step)[0, 0] - forward(params, floats - step)[0, 0]
    assert float(slopes[0, 4, 5, 1]) == pytest.approx(float(rise) / 0.02, rel=0.05, abs=1e-4)


def test_module_has_parameters_of_its_own(images):
    module = images.module
    own = parameters.count(nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    assert own == parameters.count(images.params)
    module.head.bias[...] = module.head.bias[...] + 1
    assert not np.any(images.params["head"]["bias"])


def test_pickles_and_copies(images, text):
    for model, given in ((images, np.zeros((1, 32, 32, 3), np.uint8)), (text, MASKED)):
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert equal(other.params, model.params)
            assert repr(other) == repr(model)
            assert other.predict(given) == model.predict(given)
            assert other.classes == model.classes


PIXELS = np.zeros((8, 32, 32, 3), np.uint8)
IDS = np.zeros((2, 16), np.int32)
WHOLE = "expected a whole number"
WORDS_OF_IMAGES = [
    (lambda model: model.predict(PIXELS, top=0), f"top is 0: {WHOLE}"),
    (lambda model: model.predict(PIXELS, top=2.5), f"top is 2.5: {WHOLE}"),
    (lambda model: model.predict(PIXELS, batch_size="8"), f"batch_size is '8': {WHOLE}"),
    (lambda model: model.predict(None), "an image is a path"),
    (lambda model: model.predict(PIXELS[0].astype(complex)), "complex128"),
    (lambda model: model.predict(np.array(3)), "int64 [] (other axes)"),
    (lambda model: model.generate("It", tokens=5), "image_classification does not continue texts"),
    (lambda model: model.features(PIXELS, layers=(3,)), "layers is (3,): expected some of -3 to 2"),
    (lambda model: model.features(PIXELS, layers=()), "layers is (): expected"),
    (lambda model: model.features(PIXELS, pool="max"), "pool is 'max'"),
    (lambda model: model.features([]), "no inputs"),
    (lambda model: model.logits(PIXELS[:, :16]), "uint8 [8, 16, 32, 3]"),
    (lambda model: model.logits(PIXELS / 128.0 - 1), "floats 0 to 1"),
    (lambda model: model.logits(PIXELS + np.float32(2)), "float32"),
    (lambda model: model.logits(PIXELS[:0]), "no inputs in an array of [0, 32, 32, 3]"),
    (lambda model: model.logits(PIXELS.astype(complex)), "complex128"),
    (lambda model: model.logits({"image": PIXELS}), "a dict of image: expected an array"),
]
WORDS_OF_TEXT = [
    (lambda model: model.predict("A text.", top=3), "no [MASK] in 'A text.'"),
    (lambda model: model.predict([3]), "an input is int"),
    (lambda model: model.predict(None), "an input is NoneType"),
    (lambda model: model.predict(b"A [MASK]."), "an input is bytes"),
    (lambda model: model.predict({"text": "A [MASK]."}), "an input is dict"),
    (lambda model: model.generate("It", tokens=5), "masked_lm does not continue texts"),
    (lambda model: model.features("A text.", layers="last"), "layers is 'last'"),
    (lambda model: model.logits(PIXELS), "an input is ndarray"),
    (lambda model: model.logits(np.zeros((2, 0), int)), "no inputs in an array of [2, 0]"),
    (lambda model: model.logits(IDS + 600), "int32 [2, 16]: expected whole numbers from 0 to 599"),
    (lambda model: model.logits(IDS - 1), "expected whole numbers from 0"),
    (lambda model: model.logits(IDS * 1.0), "float64 [2, 16]"),
    (lambda model: model.logits(np.zeros((1, 999), int)), "int64 [1, 999]"),
    (
        lambda model: model.logits({"input_ids": IDS, "attention_mask": IDS}),
        "a dict of input_ids, attention_mask",
    ),
]


@pytest.mark.parametrize(("call", "words"), WORDS_OF_IMAGES)
def test_what_a_model_of_images_refuses(call, words, images):
    assert words in raised(UserError, call, images)


@pytest.mark.parametrize(("call", "words"), WORDS_OF_TEXT)
def test_what_a_model_of_text_refuses(call, words, text):
    assert words in raised(UserError, call, text)


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """A causal model of bytes."""
    config = config_lib.default(task="causal_lm")
    config.model.update(layers=1, d_model=8, d_ffn=16, length=16, causal=True)
    path = tmp_path_factory.mktemp("causal") / "config.json"
    path.write_text(config_lib.to_json(config))
    return gf.create(str(path), tokenizer="bytes")


def test_a_causal_model_continues_texts(causal):
    one = causal.generate("It", tokens=5, temperature=0.0)
    assert one == causal.generate(["It"], tokens=np.int64(5), temperature=0.0)
    assert len(causal.generate(["It", "was"], tokens=3, seed=1)) == 2


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ("It", {"token": 5}, "no option 'token'; did you mean 'tokens'"),
        ("It", {"tokens": 0}, "tokens is 0"),
        ("It", {"top_p": 1.5}, "top_p is 1.5"),
        (None, {}, "an input is NoneType"),
        ("a [MASK]", {}, "[MASK]"),
    ],
)
def test_what_a_causal_model_refuses(causal, given, options, words):
    assert words in raised(UserError, causal.generate, given, **options)


def test_a_model_without_a_tokenizer_reads_ids_alone():
    bare = gf.create("gmlp_base", length=16, vocab_size=50, **TINY)
    assert bare.logits(IDS).shape == (2, 16, 50)
    assert "created without a tokenizer" in raised(RunError, bare.predict, "A [MASK]")


@pytest.mark.parametrize("other", ["digits", None, 3])
def test_what_is_no_model(other):
    assert repr(other) in raised(RunError, model_lib.require_model, other)
    assert repr(other) in raised(RunError, model_lib.require_tokenizer, other)


def test_counts():
    model_lib.require_counts(top=1, batch_size=np.int32(3))
    assert "top is 0" in raised(RunError, model_lib.require_counts, batch_size=1, top=0)


def test_a_placed_model_has_the_parameters(images):
    model = model_lib.place(images.task, jax.device_get(images.params), step=7)
    assert model.step == 7
    assert equal(model.params, images.params)
    leaves = jax.tree.leaves(model.params)
    assert all(len(leaf.sharding.device_set) == jax.device_count() for leaf in leaves)
