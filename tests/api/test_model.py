"""A loaded model in Python: predictions, logits, features, its parts, and copies of it."""

import copy
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gmlp_flax as gf
from gmlp_flax.errors import DataError, RunError, UserError
from gmlp_flax.models import parameters
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
    assert text.tokenizer.vocab_size == 600 and text.transform is None and text.classes == ()
    assert text.predict([]) == []
    assert "top is 0: expected a whole number from 1" in raised(
        RunError, text.predict, ["A [MASK]"], top=0
    )
    assert "train with config.task=causal_lm" in raised(RunError, text.generate, "It was")


def test_logits_of_text_are_those_of_predictions(text):
    tokens = text.task.encode(["The [MASK]."])
    logits = text.logits("The [MASK].")
    assert logits.shape == (1, tokens.shape[1], 600) and logits.dtype == jnp.float32
    np.testing.assert_array_equal(text.logits(tokens), logits)
    position = int(np.flatnonzero(tokens[0] == text.tokenizer.mask_id)[0])
    best = text.tokenizer.piece(int(logits[0, position].argmax()))
    assert text.predict("The [MASK].", top=1)[0][0][0][0] == best


def test_padding_is_left_out_of_the_mean(text):
    long, short = text.task.encode(["The value of the call is a name.", "A name."])
    short = short[short != text.tokenizer.pad_id][None]
    assert short.shape[1] < len(long)
    pooled = text.features(["The value of the call is a name.", "A name."], pool="mean")
    states = text.features(np.stack([long, np.pad(short[0], (0, len(long) - short.shape[1]))]))
    np.testing.assert_allclose(pooled[1], states[1, : short.shape[1]].mean(0), rtol=1e-5, atol=1e-6)


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
    whole, floats = jnp.asarray(pixels, jnp.int32), pixels / 255
    given = [
        tmp_path / "a.png",
        str(tmp_path / "a.png"),
        Image.fromarray(pixels),
        pixels,
        alpha,
        whole,
        floats,
    ]
    first, *others = images.predict(given)
    assert all(other == first for other in others)
    assert images.predict(pixels) == images.predict(Image.fromarray(pixels)) == [first]
    assert {name for name, _ in first[0]} == {"cat", "dog"} == {*images.classes}
    np.testing.assert_array_equal(images.transform(pixels), images.task.encode([pixels])[0])
    np.testing.assert_array_equal(
        images.logits([pixels]), images.logits(images.task.encode([pixels]))
    )
    for wrong in (np.zeros((3, 8, 8)), floats * 2, "none.png", np.array(["a"]), pixels[0, 0]):
        with pytest.raises(DataError):
            images.predict([wrong])


def test_a_batch_of_floats_gives_what_its_images_give(images):
    expected = images.logits(PIXELS)
    for batch in (
        PIXELS / 255,
        jnp.asarray(PIXELS / 255, jnp.float32),
        PIXELS.astype(int),
        [*(PIXELS / 255)],
    ):
        np.testing.assert_allclose(images.logits(batch), expected, atol=1e-6)
        np.testing.assert_allclose(images.features(batch), images.features(PIXELS), atol=1e-5)


def test_folders_and_patterns_are_answered_by_path(images, tmp_path, capsys):
    from PIL import Image

    for i in range(3):
        Image.fromarray(np.full((32, 32, 3), 80 * i, np.uint8)).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("no image")
    paths = [str(tmp_path / f"{i}.png") for i in range(3)]
    answers = images.predict(tmp_path, batch_size=2, progress=True)
    assert [*answers] == paths and [*answers.values()] == images.predict(paths)
    assert "3/3" in capsys.readouterr().err
    assert [*images.predict(f"{tmp_path}/[01].png")] == paths[:2]
    assert images.predict(paths[0]) == [answers[paths[0]]]
    (tmp_path / "empty").mkdir()
    assert "no file of these" in raised(DataError, images.predict, tmp_path / "empty")


def test_grey_models_take_colours(image_run):
    model = gf.load(image_run, 12)
    assert model.step == 12
    grey = np.random.default_rng(0).integers(0, 256, (20, 20), np.uint8)
    (one,), (other,) = model.predict([grey, np.repeat(grey[..., None], 3, -1)], top=2)
    assert one == other and len(one) == 2


def test_function_is_pure_and_transforms(images):
    forward, x = images.function(), jnp.ones((2, 32, 32, 3))
    np.testing.assert_allclose(
        jax.jit(forward)(images.params, x), images.logits(x), rtol=1e-5, atol=1e-6
    )
    gradients = jax.jit(jax.grad(lambda params: forward(params, x).sum()))(images.params)
    assert float(jnp.abs(gradients["head"]["bias"]).sum()) > 0
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), images.params)
    assert jax.eval_shape(jax.vmap(forward, (0, None)), several, x).shape == (2, 2, 2)


def test_module_has_parameters_of_its_own(images):
    module = images.module
    assert parameters.count(images.params) == parameters.count(
        jax.tree.map(jnp.asarray, images.params)
    )
    module.head.bias[...] = module.head.bias[...] + 1
    assert not np.any(images.params["head"]["bias"])


def test_pickles_and_copies(images, text):
    for model, given in ((images, np.zeros((1, 32, 32, 3), np.uint8)), (text, MASKED)):
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            assert equal(other.params, model.params) and repr(other) == repr(model)
            assert other.predict(given) == model.predict(given) and other.classes == model.classes


PIXELS, IDS = np.zeros((8, 32, 32, 3), np.uint8), np.zeros((2, 16), np.int32)
LABELLED = PIXELS, [0, 1] * 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: m.predict(PIXELS, top=0), "top is 0: expected a whole number"),
        (lambda m, t: m.predict(PIXELS, top=2.5), "top is 2.5: expected a whole number"),
        (
            lambda m, t: m.predict(PIXELS, batch_size="8"),
            "batch_size is '8': expected a whole number",
        ),
        (lambda m, t: t.predict("A text.", top=3), r"no \[MASK\] in 'A text.'"),
        (lambda m, t: t.predict([3]), "an input is int: expected text"),
        (lambda m, t: t.predict(None), "an input is NoneType: expected text"),
        (lambda m, t: m.predict(None), "an image is a path"),
        (lambda m, t: m.generate("It", tokens=5), "image_classification does not continue texts"),
        (lambda m, t: t.generate("It", token=5), "no option 'token'; did you mean 'tokens'"),
        (
            lambda m, t: m.features(PIXELS, layers=(3,)),
            r"layers is \(3,\): expected some of -3 to 2, negative from",
        ),
        (lambda m, t: m.features(PIXELS, layers=()), r"layers is \(\): expected"),
        (lambda m, t: t.features("A text.", layers="last"), "layers is 'last': expected"),
        (
            lambda m, t: m.features(PIXELS, pool="max"),
            "pool is 'max': expected 'mean', 'cls' or None",
        ),
        (lambda m, t: m.features([]), "no inputs: give one or more"),
        (
            lambda m, t: m.logits(PIXELS[:, :16]),
            r"uint8 \[8, 16, 32, 3\]: expected \['batch', 32, 32, 3\]",
        ),
        (
            lambda m, t: m.logits(PIXELS / 128.0 - 1),
            "expected .* whole numbers 0 to 255 or floats 0 to 1",
        ),
        (
            lambda m, t: m.logits(PIXELS + np.float32(2)),
            "float32 .* whole numbers 0 to 255 or floats 0 to 1",
        ),
        (lambda m, t: m.logits(PIXELS[:0]), r"no inputs in an array of \[0, 32, 32, 3\]"),
        (lambda m, t: m.logits(PIXELS.astype(complex)), "complex128"),
        (lambda m, t: m.predict(PIXELS[0].astype(complex)), "complex128"),
        (lambda m, t: m.predict(np.array(3)), r"int64 \[\] \(other axes\)"),
        (lambda m, t: m.logits({"image": PIXELS}), "a dict of image: expected an array"),
        (
            lambda m, t: t.logits({"input_ids": IDS, "attention_mask": IDS}),
            "a dict of input_ids, attention_mask",
        ),
        (lambda m, t: t.logits(np.zeros((2, 0), int)), r"no inputs in an array of \[2, 0\]"),
        (lambda m, t: t.predict(b"A [MASK]."), "an input is bytes: expected text"),
        (lambda m, t: t.predict({"text": "A [MASK]."}), "an input is dict: expected text"),
        (lambda m, t: t.generate(None), "an input is NoneType: expected text"),
        (
            lambda m, t: gf.export("digits", "out"),
            "the model is 'digits': expected what gmlp_flax.load",
        ),
        (lambda m, t: gf.push(None, "me/it"), "the model is None: expected what gmlp_flax.load"),
        (lambda m, t: gf.create("gmlp_s16_224", pretrained=True), "load takes trained weights"),
        (lambda m, t: gf.load("digits", mesh="fsdp"), "mesh is 'fsdp': expected sizes of axes"),
        (lambda m, t: gf.evaluate(m, (PIXELS, [0])), "8 and 1 rows"),
        (lambda m, t: gf.evaluate(m, 3), "the data are 3: expected examples"),
        (lambda m, t: gf.probe(m, (PIXELS, ["cat"] * 8)), "one class, 'cat': give examples of two"),
        (lambda m, t: t.logits(PIXELS), "an input is ndarray: expected text"),
        (
            lambda m, t: t.logits(IDS + 600),
            "int32 .2, 16.: expected whole numbers from 0 to 599, of 32 tokens or fewer",
        ),
        (lambda m, t: t.logits(IDS - 1), "expected whole numbers from 0"),
        (lambda m, t: t.logits(IDS * 1.0), r"float64 \[2, 16\]: expected whole numbers"),
        (
            lambda m, t: t.logits(np.zeros((1, 999), int)),
            r"int64 \[1, 999\]: expected .* tokens or fewer",
        ),
        (
            lambda m, t: gf.evaluate(m, LABELLED, batch_size=0),
            "batch_size is 0: expected a whole number",
        ),
        (
            lambda m, t: gf.evaluate("digits", LABELLED),
            "the model is 'digits': expected what gmlp_flax.load",
        ),
        (lambda m, t: gf.evaluate(m, (PIXELS, [7] * 8)), "label 7: expected cat, dog"),
        (lambda m, t: gf.evaluate(t, LABELLED), "an example of text is ndarray: expected str"),
        (
            lambda m, t: gf.probe(m, LABELLED, kind="svm"),
            "kind is 'svm': expected one of knn, linear, fewshot",
        ),
        (lambda m, t: gf.probe(m, LABELLED, pool=None), "pool is None: expected one of mean, cls"),
        (lambda m, t: gf.probe(m, LABELLED, layers=(9,)), r"layers is \(9,\): expected"),
        (lambda m, t: gf.probe(m, LABELLED, batch_size=0), "batch_size is 0: expected"),
        (
            lambda m, t: gf.probe(m, [*PIXELS]),
            r"label None: expected \(input, label\), or a dict with one of label",
        ),
        (
            lambda m, t: gf.train("cifar10:gmlp", "run", init="digits"),
            "the model is 'digits': expected",
        ),
        (
            lambda m, t: gf.train("cifar10:gmlp", "run", optimizer="sgd"),
            "optimizer is 'sgd': expected optax's",
        ),
        (
            lambda m, t: gf.load("books_gmlp", image_size=32),
            "masked_lm with gmlp has no model.image_size",
        ),
        (lambda m, t: gf.load("digits", classes=2.5), "classes is 2.5: expected"),
        (lambda m, t: gf.create("digits"), r"'digits' is a trained model: load\('digits'\)"),
    ],
)
def test_options_that_make_no_sense_are_told_in_a_line(call, message, images, text):
    assert re.search(message, raised(UserError, call, images, text))


def test_a_model_without_a_tokenizer_reads_ids_alone():
    bare = gf.create("gmlp_base", length=16, vocab_size=50, **TINY)
    assert bare.logits(IDS).shape == (2, 16, 50)
    for call in (
        lambda: bare.predict("A [MASK]"),
        lambda: gf.evaluate(bare, ["A"]),
        lambda: gf.probe(bare, [("A", 1)]),
    ):
        assert "created without a tokenizer" in raised(RunError, call)
