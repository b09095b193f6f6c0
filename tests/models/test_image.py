from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from gmlp_flax.models.image import ImageClassifier, cut_patches, patch_grid, token_count
from tests.failures import raised
from tests.models import reference
from tests.models.reference import (
    function_of,
    in_float64,
    keys,
    linear,
    params_of,
    quick_jit,
    randomized,
    small_spec,
)

# Three rows and two columns of patches, 2 high and 4 wide.
IMAGE = (6, 8)
PATCH = (2, 4)
MEAN = (0.2, 0.5, 0.7)
STD = (0.3, 0.4, 0.5)
POOL = pytest.mark.parametrize("pool", ["mean", "cls"])


class Case(NamedTuple):
    """A block in an image classifier, by numpy."""

    fields: dict
    block: Callable  # (parameters, x) -> x
    final_norm: Callable = reference.layer_norm


def vit_block(p, x):
    return reference.transformer_block(p, x, heads=2, length=len(x))


VIT = {"block": "transformer", "heads": 2, "positions": "absolute"}
FEED_FORWARD = {"block": "feed_forward", "d_spatial": 9, "positions": "absolute"}
CASES = {
    "gmlp": Case({}, reference.gmlp_block),
    "vit": Case(VIT, vit_block),
    "mixer": Case({"block": "mixer", "d_spatial": 4}, reference.mixer_block),
    "resmlp": Case({"block": "resmlp"}, reference.resmlp_block, reference.affine),
    "feed_forward": Case(FEED_FORWARD, reference.feed_forward_block),
}


def classifier(pool="mean", classes=7, pre_logits=False, image=IMAGE, patch=PATCH, **fields):
    options = {"length": token_count(image, patch, pool)}
    if "block" not in fields:
        options["spatial"] = "dense"
    return ImageClassifier(
        small_spec(**options | fields),
        nnx.Rngs(0),
        image_size=image,
        patch_size=patch,
        classes=classes,
        mean=MEAN,
        std=STD,
        pool=pool,
        pre_logits=pre_logits,
    )


def random_images(batch=2, image=IMAGE, channels=3):
    random = np.random.default_rng(0)
    return random.integers(0, 256, (batch, *image, channels), dtype=np.uint8)


def patches_by_loops(image, patch):
    """The numbers of each patch, row by row of patches and, within one, row by row of pixels."""
    height, width, _ = image.shape
    patch_height, patch_width = patch
    patches = []
    for top in range(0, height, patch_height):
        for left in range(0, width, patch_width):
            numbers = []
            for i, j in np.ndindex(patch):
                pixel = image[top + i, left + j]
                numbers.extend(pixel)
            patches.append(numbers)
    return np.array(patches)


def logits_by_numpy(p, image, patch=PATCH, case=CASES["gmlp"]):
    """The logits of one image; the parameters tell how tokens are pooled."""
    if "table" in p["stem"]:
        table = p["stem"]["table"]
        x = table[image.ravel()]
    else:
        deviations = np.array(STD)
        centred = image / 255 - np.array(MEAN)
        normalized = centred / deviations
        patches = patches_by_loops(normalized, patch)
        x = linear(p["stem"], patches)
    if "cls" in p:
        cls_row = p["cls"][None]
        x = np.concatenate([cls_row, x])
    if "positions" in p:
        x = x + p["positions"]["table"]
    hidden = reference.encoder(p["encoder"], x, case.block, case.final_norm)
    pooled = hidden[0] if "cls" in p else hidden.mean(0)
    if "pre_logits" in p:
        [projected] = linear(p["pre_logits"], pooled[None])
        pooled = np.tanh(projected)
    [logits] = linear(p["head"], pooled[None])
    return logits


@pytest.mark.smoke
@pytest.mark.parametrize("name", CASES)
@POOL
@in_float64
def test_classifiers_of_wide_images_agree_with_numpy(name, pool):
    """64 x 96 in patches of 8 x 16: 8 rows and 6 columns. Positions are added after the cls token,
    which has one."""
    case = CASES[name]
    image = (64, 96)
    patch = (8, 16)
    pre_logits = name == "gmlp"
    module = randomized(
        lambda: classifier(pool, 7, pre_logits, image, patch, **case.fields), std=0.2
    )
    length = 49 if pool == "cls" else 48
    assert module.spec.length == length
    patch_values = 8 * 16 * 3
    assert module.stem.kernel.shape == (patch_values, 6)
    images = random_images(1, image)
    params = params_of(module)
    expected = logits_by_numpy(params, images[0], patch, case)
    [logits] = quick_jit(module)(images)
    assert_allclose(logits, expected, atol=1e-8)


@pytest.mark.slow
@in_float64
def test_gradients_are_finite_and_reach_every_parameter():
    """Under stochastic depth and dropout, with the layers recomputed."""
    noise = {"survival": 0.8, "survival_schedule": "linear", "dropout": 0.1, "remat": "matmuls"}
    module = randomized(lambda: classifier("cls", pre_logits=True, **noise, **VIT))
    state, call = function_of(module)

    def loss(state):
        dropout_keys = keys(0, 16)
        logits = call(state, random_images(16), dropout_keys)
        return (logits**2).sum()

    gradient = quick_jit(jax.grad(loss))(state)
    reference.assert_gradient_reaches_every_parameter(nnx.to_pure_dict(gradient), 1e-9)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((2, 6, 8, 3), (2, 4)),
        ((1, 3, 10, 2), (3, 1)),
    ],
)
def test_patches_agree_with_loops(shape, patch):
    count = np.prod(shape)
    images = np.arange(count, dtype=np.float32).reshape(shape)
    expected = [patches_by_loops(image, patch) for image in images]
    patches = cut_patches(jnp.asarray(images), patch)
    assert_array_equal(patches, expected)


def test_tokens_are_the_patches_and_the_cls_token():
    grid = patch_grid((224, 224), (16, 16))
    assert grid == (14, 14)
    assert patch_grid(IMAGE, PATCH) == (3, 2)
    assert token_count((224, 224), (16, 16), "mean") == 196
    assert token_count((224, 224), (16, 16), "cls") == 197


@pytest.mark.parametrize("image_size", [(224, 225), (225, 224), (8, 8)])
def test_patches_that_do_not_tile_the_image_are_refused(image_size):
    message = raised(ValueError, patch_grid, image_size, (16, 16))
    assert "do not tile it; choose others" in message


def test_unknown_pools_are_refused():
    message = raised(ValueError, classifier, "max")
    assert "model.pool is 'max': expected one of mean, cls" in message


def test_encoders_of_another_length_are_refused():
    message = raised(ValueError, classifier, "cls", length=6)
    assert "the encoder was made for 6 tokens, but the images give 7" in message


def test_unknown_stems_are_refused():
    message = raised(ValueError, table_classifier, stem="lookup")
    assert "model.stem is 'lookup': expected one of patches, table" in message


@pytest.mark.parametrize("form", [{"patch_size": (2, 2)}, {"channels": 3}])
def test_tables_of_anything_but_grey_pixels_are_refused(form):
    message = raised(ValueError, table_classifier, form=form)
    assert "reads grey pixels: set model.patch_size=(1, 1)" in message


GREY_IMAGE = (3, 4)


def table_classifier(pool="mean", stem="table", form=None, **fields):
    """A model of grey pixels as tokens; `form` changes its patches or channels."""
    grey_pixels = {"patch_size": (1, 1), "channels": 1}
    length = 13 if pool == "cls" else 12
    return ImageClassifier(
        small_spec(length=length, spatial="dense", **fields),
        nnx.Rngs(0),
        image_size=GREY_IMAGE,
        classes=5,
        pool=pool,
        stem=stem,
        **grey_pixels | (form or {}),
    )


@POOL
@in_float64
def test_grey_pixels_are_looked_up_row_by_row(pool):
    module = randomized(lambda: table_classifier(pool, positions="absolute"))
    p = params_of(module)
    table = p["stem"]["table"]
    assert table.shape == (256, module.spec.d_model)
    images = random_images(2, GREY_IMAGE, 1)
    images[0, 0, :2, 0] = 0, 255
    expected = [logits_by_numpy(p, image) for image in images]
    assert_allclose(quick_jit(module)(images), expected, atol=1e-10)


@POOL
@in_float64
def test_only_grey_values_of_pixels_have_gradients(pool):
    """Which are finite."""
    module = randomized(lambda: table_classifier(pool, positions="absolute"))
    images = random_images(2, GREY_IMAGE, 1)
    images[0, 0, :2, 0] = 0, 255
    state, call = function_of(module)

    def loss(state):
        return (call(state, images) ** 2).sum()

    state_gradient = quick_jit(jax.grad(loss))(state)
    gradient = nnx.to_pure_dict(state_gradient)
    for leaf in jax.tree.leaves(gradient):
        assert np.isfinite(leaf).all()
    table = gradient["stem"]["table"]
    largest = np.abs(table).max(1)
    values = np.flatnonzero(largest)
    assert_array_equal(values, np.unique(images))


def test_fresh_tables_are_standard_normal():
    @quick_jit
    def fresh_table():
        module = table_classifier(d_model=64, dtype="float32")
        return module.stem.table[...]

    values = np.asarray(fresh_table())
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03


@in_float64
def test_fresh_heads_give_logits_of_0():
    fresh_head = quick_jit(lambda: nnx.state(classifier().head, nnx.Param))()
    module = randomized(classifier)
    nnx.update(module.head, fresh_head)
    logits = quick_jit(module)(random_images())
    assert_array_equal(logits, np.zeros((2, 7)))


@pytest.mark.parametrize(("pool", "pre_logits"), [("mean", False), ("cls", True)])
def test_bfloat16_models_have_precise_float32_logits(pool, pre_logits):
    module = nnx.eval_shape(lambda: classifier(pool, pre_logits=pre_logits, dtype="bfloat16"))
    reference.assert_last_product_alone_is_precise(module, random_images())


@in_float64
def test_the_gradient_of_the_stem_agrees_with_differences():
    """The stem recomputes its patches in the backward pass; its gradient is that of the plain
    formula."""
    module = randomized(classifier)
    state, call = function_of(module)
    kernel_array = module.stem.kernel[...]
    kernel = np.asarray(kernel_array)
    images = random_images()
    step = 1e-6

    @quick_jit
    @jax.value_and_grad
    def loss_and_gradient(state):
        logits = call(state, images)
        return (logits**2).sum()

    def loss_with(entry):
        changed = kernel.copy()
        changed[5, 2] = entry
        changed_kernel = jnp.asarray(changed)
        module.stem.kernel[...] = changed_kernel
        state = nnx.state(module)
        loss, _ = loss_and_gradient(state)
        return loss

    _, gradient = loss_and_gradient(state)
    stem = nnx.to_pure_dict(gradient)["stem"]
    found = stem["kernel"][5, 2]
    entry = kernel[5, 2]
    larger_loss = loss_with(entry + step)
    smaller_loss = loss_with(entry - step)
    slope = (larger_loss - smaller_loss) / (2 * step)
    assert_allclose(found, slope, rtol=1e-6)


def test_backward_passes_recompute_the_patches():
    """The forward pass stores the bytes of the images, not the patches as numbers of 4 bytes."""
    module = nnx.eval_shape(lambda: classifier(dtype="float32"))
    state, call = function_of(module)
    images = random_images()

    def pullback(state):
        _, pullback = jax.vjp(lambda state: call(state, images), state)
        return pullback

    residuals = jax.eval_shape(pullback, state)
    stored = jax.tree.leaves(residuals)
    types_by_shape = {leaf.shape: leaf.dtype for leaf in stored}
    assert types_by_shape[images.shape] == jnp.uint8
    assert (2, 6, 24) not in types_by_shape


@in_float64
def test_dropout_keys_reach_the_encoder():
    call = quick_jit(randomized(lambda: classifier(dropout=0.5)))
    images = random_images()
    examples = len(images)
    first = call(images, keys(0, examples))
    second = call(images, keys(1, examples))
    difference = np.abs(first - second)
    assert difference.max() > 0.01
