"""A loaded model in Python: predictions, logits, features, its parts, and copies of it."""

import copy
import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

import gmlp_flax as gf
from gmlp_flax.errors import DataError, RunError, UserError
from gmlp_flax.models import parameters
from gmlp_flax.training import model as model_lib
from tests.failures import raised
from tests.tasks import by_hand

TINY = {"layers": 3, "d_model": 16, "d_ffn": 32}
MASKED = ["A [MASK] is a [MASK].", "The [MASK]."]


def create_images(**model):
    """A classifier of cats and dogs."""
    return gf.create(
        "gmlp_s",
        classes=("cat", "dog"),
        image_size=32,
        patch_size=(8, 8),
        **(TINY | model),
    )


@pytest.fixture(scope="module")
def images():
    return create_images()


@pytest.fixture(scope="module")
def text(text_run):
    return gf.load(text_run)


def are_equal(first, second) -> bool:
    """Whether the arrays of two trees are equal."""
    return jax.tree.all(jax.tree.map(np.array_equal, first, second))


def test_predictions_of_text(text):
    of_two_masks, of_one_mask = text.predict(MASKED, top=3)
    first, second = of_two_masks
    [single] = of_one_mask
    for candidates in (first, second, single):
        assert len(candidates) == 3
    best, middle, worst = by_hand.shares_of(first)
    assert best >= middle >= worst > 0
    of_list = text.predict(["A [MASK]"])
    assert text.predict("A [MASK]") == of_list  # a string is a list of one
    assert text.predict([]) == []


def test_text_model_has_a_tokenizer_and_no_classes(text):
    assert text.tokenizer.vocab_size == 600
    assert text.transform is None
    assert text.classes == ()


def test_text_logits_agree_with_predictions(text):
    tokens = text.predictor.encode(["The [MASK]."])
    logits = text.logits("The [MASK].")
    count = tokens.shape[1]
    assert logits.shape == (1, count, 600)
    assert logits.dtype == jnp.float32
    assert_array_equal(text.logits(tokens), logits)
    is_mask = tokens[0] == text.tokenizer.mask_id
    [position] = np.flatnonzero(is_mask)
    mask_logits = logits[0, position]
    best = int(mask_logits.argmax())
    [predictions] = text.predict("The [MASK].", top=1)
    [[(piece, _)]] = predictions
    assert piece == text.tokenizer.piece(best)


def test_mean_leaves_out_padding(text):
    texts = ["The value of the call is a name.", "A name."]
    tokens = text.predictor.encode(texts)
    is_token = tokens[1] != text.tokenizer.pad_id
    assert not is_token.all()
    pooled = text.features(texts, pool="mean")
    states = text.features(tokens)
    expected = states[1, is_token].mean(0)
    assert_allclose(pooled[1], expected, rtol=1e-5, atol=1e-6)


def test_mean_of_only_padding_is_0(text):
    tokens = text.predictor.encode(["A name.", "The value."])
    tokens[1] = text.tokenizer.pad_id
    pooled = text.features(tokens, pool="mean")
    assert not np.asarray(pooled[1]).any()
    alone = text.features(tokens[:1], pool="mean")
    assert_allclose(pooled[0], alone[0], atol=1e-5)


def test_images_as_lists_or_unreadable_tensors_are_refused(images):
    class Tensor:
        def __array__(self, *_, **__):
            raise TypeError("Got unsupported ScalarType BFloat16")

    rows = np.zeros((8, 8, 3), np.uint8).tolist()  # not three grey images
    for wrong in (rows, Tensor()):
        with pytest.raises(DataError, match=r"^an image is a path, .*, not (list|Tensor) "):
            images.predict(wrong)


def test_longer_text_in_the_batch_does_not_change_logits(text):
    """Its padding is hidden, as in predictions: a row of a batch equals that of the text alone."""
    texts = ["The value of the call is a name.", "A [MASK]."]
    [alone] = text.logits(texts[1])
    _, second = text.logits(texts)
    assert_allclose(second[: len(alone)], alone, atol=1e-5)


def test_longer_text_in_the_batch_does_not_change_features(text):
    texts = ["The value of the call is a name.", "A [MASK]."]
    [alone] = text.features(texts[1], pool="mean")
    _, second = text.features(texts, pool="mean")
    assert_allclose(second, alone, atol=1e-5)


def random_pixels(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, shape, np.uint8)


@pytest.mark.slow
def test_states_of_layers_equal_those_of_a_shorter_stack(images):
    """The state after layer i, normalized, is the output of a model of the first i + 1 layers."""
    pixels = random_pixels(2, 32, 32, 3)
    first = images.features(pixels, layers=0)
    short = create_images(layers=1)
    encoder = dict(images.params["encoder"])
    encoder["blocks"] = jax.tree.map(lambda leaf: leaf[:1], encoder["blocks"])
    params = images.params | {"encoder": encoder}
    expected = short.task.features(params, pixels)
    assert_allclose(expected, first, rtol=1e-4, atol=1e-5)


def test_states_of_layers_are_concatenated(images):
    pixels = random_pixels(2, 32, 32, 3)
    states = images.features(pixels, layers=(0, 2, -1))
    assert states.shape == (2, 16, 3 * 16)
    values = np.asarray(states)
    first, third, last = np.split(values, 3, axis=-1)
    assert_array_equal(third, last)
    expected = images.features(pixels, layers=0)
    assert_array_equal(first, expected)


def test_states_of_layers_are_pooled(images):
    pixels = random_pixels(2, 32, 32, 3)
    first = images.features(pixels, layers=0)
    pooled = images.features(pixels, (0,), pool="cls")
    assert_array_equal(pooled, first[:, 0])
    mean = images.features(pixels).mean(1)
    pooled = images.features(pixels, pool="mean")
    assert_allclose(pooled, mean, rtol=1e-5, atol=1e-6)


def test_common_image_types_give_the_same_logits(images, tmp_path):
    pixels = random_pixels(40, 40, 3)
    image = Image.fromarray(pixels)
    path = tmp_path / "a.png"
    image.save(path)
    opaque = np.full((40, 40, 1), 255, np.uint8)
    channels = [pixels, opaque]
    with_alpha = np.concatenate(channels, -1)
    whole_numbers = jnp.asarray(pixels, jnp.int32)
    floats = pixels / 255
    inputs = [path, str(path), image, pixels, with_alpha, whole_numbers, floats]
    first, *others = images.predict(inputs)
    for other in others:
        assert other == first
    assert images.predict(pixels) == [first]
    assert images.predict(image) == [first]
    [candidates] = first
    assert set(by_hand.names_of(candidates)) == {"cat", "dog"}
    assert set(images.classes) == {"cat", "dog"}


def test_float_batch_agrees_with_its_images(images):
    expected = images.logits(PIXELS)
    expected_features = images.features(PIXELS)
    floats = PIXELS / 255
    floats_on_device = jnp.asarray(floats, jnp.float32)
    whole_numbers = PIXELS.astype(int)
    batches = (floats, floats_on_device, whole_numbers, list(floats))
    for batch in batches:
        assert_allclose(images.logits(batch), expected, atol=1e-6)
        assert_allclose(images.features(batch), expected_features, atol=1e-5)


def test_images_are_transformed_as_for_predictions(images):
    pixels = random_pixels(40, 40, 3)
    encoded = images.predictor.encode([pixels])
    [example] = encoded
    transformed = images.transform(pixels)
    assert_array_equal(transformed, example)
    of_pixels = images.logits([pixels])
    of_encoded = images.logits(encoded)
    assert_array_equal(of_pixels, of_encoded)


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((3, 8, 8)),
        np.full((8, 8, 3), 1.5),
        "none.png",
        np.array(["a"]),
        np.zeros(3, np.uint8),
    ],
    ids=["channels first", "beyond 1", "no file", "text", "one pixel"],
)
def test_inputs_that_are_not_images_are_refused(images, wrong):
    with pytest.raises(DataError):
        images.predict([wrong])


@pytest.fixture
def folder_of_images(tmp_path):
    """A folder with 0.png, 1.png and 2.png, and a text file."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for number in range(3):
        pixels = np.full((32, 32, 3), 80 * number, np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def test_folders_are_answered_by_path(images, folder_of_images, capsys):
    paths = []
    for number in range(3):
        paths.append(str(folder_of_images / f"{number}.png"))
    answers = images.predict(folder_of_images, batch_size=2, progress=True)
    assert list(answers) == paths
    expected = images.predict(paths)
    assert list(answers.values()) == expected
    assert "3/3" in capsys.readouterr().err
    first = paths[0]
    again = images.predict(first)
    assert again == [answers[first]]


def test_patterns_are_answered_by_path(images, folder_of_images):
    answers = images.predict(f"{folder_of_images}/[01].png")
    assert list(answers) == [f"{folder_of_images}/0.png", f"{folder_of_images}/1.png"]


def test_empty_folder_is_refused(images, tmp_path):
    assert "no file of these" in raised(DataError, images.predict, tmp_path)


def test_grey_models_accept_color_images(image_run):
    model = gf.load(image_run, 12)
    assert model.step == 12
    grey = random_pixels(20, 20)
    channel = grey[..., None]
    color = np.repeat(channel, 3, -1)
    [first], [second] = model.predict([grey, color], top=2)
    assert first == second
    assert len(first) == 2


def test_function_is_pure(images):
    forward = jax.jit(images.function())
    x = jnp.ones((2, 32, 32, 3))
    logits = forward(images.params, x)
    assert_allclose(logits, images.logits(x), rtol=1e-5, atol=1e-6)


def test_function_has_gradients(images):
    forward = images.function()
    x = jnp.ones((2, 32, 32, 3))

    def total(params):
        return forward(params, x).sum()

    gradient = jax.jit(jax.grad(total))(images.params)
    bias = gradient["head"]["bias"]
    assert float(jnp.abs(bias).sum()) > 0


def test_function_can_be_mapped_over_parameters(images):
    two_copies = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), images.params)
    pixels = jnp.ones((2, 32, 32, 3))
    forward = images.function()
    mapped = jax.vmap(forward, in_axes=(0, None))
    logits = jax.eval_shape(mapped, two_copies, pixels)
    assert logits.shape == (2, 2, 2)


PIXELS_TO_255 = np.random.default_rng(0).integers(1, 255, (2, 32, 32, 3), np.uint8)
FLOATS_TO_1 = jnp.asarray(PIXELS_TO_255 / 255, jnp.float32)


@pytest.fixture(scope="module")
def moved_params(images):
    """Parameters whose head is not zero."""
    return jax.tree.map(lambda leaf: leaf + 0.1, images.params)


@pytest.mark.parametrize("pixels", [PIXELS_TO_255, FLOATS_TO_1], ids=["bytes", "floats"])
def test_function_reads_pixels_as_logits_does(images, moved_params, pixels):
    """Whole numbers from 0 to 255, floats from 0 to 1."""
    model = dataclasses.replace(images, params=moved_params)
    expected = model.logits(PIXELS_TO_255)
    largest = float(jnp.abs(expected).max())
    assert largest > 0.1
    function = jax.jit(images.function())
    logits = function(moved_params, pixels)
    assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_gradient_of_function_for_a_pixel(images, moved_params):
    """A pixel from 0 to 1, against a small change of it."""
    forward = images.function()

    def first_logit(pixels):
        return forward(moved_params, pixels)[0, 0]

    slopes = jax.grad(first_logit)(FLOATS_TO_1)
    pixel = (0, 4, 5, 1)
    no_change = jnp.zeros_like(FLOATS_TO_1)
    step = no_change.at[pixel].set(0.01)
    above = first_logit(FLOATS_TO_1 + step)
    below = first_logit(FLOATS_TO_1 - step)
    expected = float(above - below) / 0.02
    slope = float(slopes[pixel])
    assert slope == pytest.approx(expected, rel=0.05, abs=1e-4)


def test_module_copies_the_parameters(images):
    module = images.module
    module_state = nnx.state(module, nnx.Param)
    state = nnx.to_pure_dict(module_state)
    count = parameters.count(images.params)
    assert parameters.count(state) == count
    bias = module.head.bias
    bias[...] = bias[...] + 1
    assert not np.any(images.params["head"]["bias"])


def pickled(model):
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        pytest.param("images", np.zeros((1, 32, 32, 3), np.uint8), id="images"),
        pytest.param("text", MASKED, id="text"),
    ],
)
def test_pickles_and_copies(request, name, inputs, copied):
    model = request.getfixturevalue(name)
    other = copied(model)
    assert are_equal(other.params, model.params)
    assert repr(other) == repr(model)
    expected = model.predict(inputs)
    assert other.predict(inputs) == expected
    assert other.classes == model.classes


PIXELS = np.zeros((8, 32, 32, 3), np.uint8)
IDS = np.zeros((2, 16), np.int32)
WHOLE = "expected a whole number"


def case(message: str, method: str, *arguments, **options):
    """A call of a method of a model, and words of its error."""
    return pytest.param(method, arguments, options, message, id=f"{method}: {message}")


IMAGE_ERRORS = [
    case(f"top is 0: {WHOLE}", "predict", PIXELS, top=0),
    case(f"top is 2.5: {WHOLE}", "predict", PIXELS, top=2.5),
    case(f"batch_size is '8': {WHOLE}", "predict", PIXELS, batch_size="8"),
    case("an image is a path", "predict", None),
    case("complex128", "predict", PIXELS[0].astype(complex)),
    case("int64 [] (other axes)", "predict", np.array(3)),
    case("image_classification does not continue texts", "generate", "It", tokens=5),
    case("layers is (3,): expected some of -3 to 2", "features", PIXELS, layers=(3,)),
    case("layers is (): expected", "features", PIXELS, layers=()),
    case("pool is 'max'", "features", PIXELS, pool="max"),
    case("no inputs", "features", []),
    case("uint8 [8, 16, 32, 3]", "logits", PIXELS[:, :16]),
    case("floats 0 to 1", "logits", PIXELS / 128.0 - 1),
    case("float32", "logits", PIXELS + np.float32(2)),
    case("no inputs in an array of [0, 32, 32, 3]", "logits", PIXELS[:0]),
    case("complex128", "logits", PIXELS.astype(complex)),
    case("a dict of image: expected an array", "logits", {"image": PIXELS}),
]
TEXT_ERRORS = [
    case("no [MASK] in 'A text.'", "predict", "A text.", top=3),
    case("an input is int", "predict", [3]),
    case("an input is NoneType", "predict", None),
    case("an input is bytes", "predict", b"A [MASK]."),
    case("an input is dict", "predict", {"text": "A [MASK]."}),
    case("masked_lm does not continue texts", "generate", "It", tokens=5),
    case("layers is 'last'", "features", "A text.", layers="last"),
    case("an input is ndarray", "logits", PIXELS),
    case("no inputs in an array of [2, 0]", "logits", np.zeros((2, 0), int)),
    case("int32 [2, 16]: expected whole numbers from 0 to 599", "logits", IDS + 600),
    case("expected whole numbers from 0", "logits", IDS - 1),
    case("float64 [2, 16]", "logits", IDS * 1.0),
    case("int64 [1, 999]", "logits", np.zeros((1, 999), int)),
    case(
        "a dict of input_ids, attention_mask",
        "logits",
        {"input_ids": IDS, "attention_mask": IDS},
    ),
]


@pytest.mark.parametrize(("method", "arguments", "options", "message"), IMAGE_ERRORS)
def test_image_model_refuses_invalid_calls(images, method, arguments, options, message):
    call = getattr(images, method)
    error_message = raised(UserError, call, *arguments, **options)
    assert message in error_message


@pytest.mark.parametrize(("method", "arguments", "options", "message"), TEXT_ERRORS)
def test_text_model_refuses_invalid_calls(text, method, arguments, options, message):
    call = getattr(text, method)
    error_message = raised(UserError, call, *arguments, **options)
    assert message in error_message


def test_causal_model_continues_texts(causal_model):
    continued = causal_model.generate("It", tokens=5, temperature=0.0)
    again = causal_model.generate(["It"], tokens=np.int64(5), temperature=0.0)
    assert continued == again
    several = causal_model.generate(["It", "was"], tokens=3, seed=1)
    assert len(several) == 2


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("It", {"token": 5}, "no option 'token'; did you mean 'tokens'"),
        ("It", {"tokens": 0}, "tokens is 0"),
        ("It", {"top_p": 1.5}, "top_p is 1.5"),
        (None, {}, "an input is NoneType"),
        ("a [MASK]", {}, "[MASK]"),
    ],
)
def test_causal_model_refuses_invalid_calls(causal_model, prompt, options, message):
    error_message = raised(UserError, causal_model.generate, prompt, **options)
    assert message in error_message


def test_model_without_a_tokenizer_reads_only_ids():
    bare = gf.create("gmlp_base", length=16, vocab_size=50, **TINY)
    assert bare.logits(IDS).shape == (2, 16, 50)
    assert "created without a tokenizer" in raised(RunError, bare.predict, "A [MASK]")


@pytest.mark.parametrize("other", ["digits", None, 3])
def test_objects_that_are_not_models_are_refused(other):
    for require in (model_lib.require_model, model_lib.require_tokenizer):
        message = raised(RunError, require, other)
        assert repr(other) in message


def test_counts_must_be_positive():
    model_lib.require_counts(top=1, batch_size=np.int32(3))
    message = raised(RunError, model_lib.require_counts, batch_size=1, top=0)
    assert "top is 0" in message


def test_model_on_a_mesh_has_the_same_parameters(images):
    params = jax.device_get(images.params)
    model = model_lib.place(images.task, params, step=7)
    assert model.step == 7
    assert are_equal(model.params, images.params)
    for leaf in jax.tree.leaves(model.params):
        devices = leaf.sharding.device_set
        assert len(devices) == jax.device_count()
