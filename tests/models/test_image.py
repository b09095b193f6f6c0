import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

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
# Each block's fields, its slow version and its final norm.
BLOCKS = {
    "gmlp": ({}, reference.gmlp_block, reference.layer_norm),
    "vit": (
        {"block": "transformer", "heads": 2, "positions": "absolute"},
        lambda p, x: reference.transformer_block(p, x, 2, len(x)),
        reference.layer_norm,
    ),
    "mixer": ({"block": "mixer", "d_spatial": 4}, reference.mixer_block, reference.layer_norm),
    "resmlp": ({"block": "resmlp"}, reference.resmlp_block, reference.affine),
    "feed_forward": (
        {"block": "feed_forward", "d_spatial": 9, "positions": "absolute"},
        reference.feed_forward_block,
        reference.layer_norm,
    ),
}


def classifier(pool="mean", classes=7, pre_logits=False, image=IMAGE, patch=PATCH, **fields):
    dense = {} if "block" in fields else {"spatial": "dense"}
    spec = small_spec(**{"length": token_count(image, patch, pool)} | dense | fields)
    form = {"image_size": image, "patch_size": patch, "classes": classes, "mean": MEAN, "std": STD}
    return ImageClassifier(spec, nnx.Rngs(0), pool=pool, pre_logits=pre_logits, **form)


def random_images(batch=2, image=IMAGE):
    return np.random.default_rng(0).integers(0, 256, (batch, *image, 3), dtype=np.uint8)


def patches_by_loops(image, patch):
    """The numbers of each patch, row by row of patches and, within one, row by row of pixels."""
    (height, width, channels), found = image.shape, []
    for top in range(0, height, patch[0]):
        for left in range(0, width, patch[1]):
            pixels = [(top + i, left + j) for i in range(patch[0]) for j in range(patch[1])]
            found.append([image[i, j, channel] for i, j in pixels for channel in range(channels)])
    return np.array(found)


def logits_by_numpy(
    p, image, patch=PATCH, block=reference.gmlp_block, final_norm=reference.layer_norm
):
    """The logits of one image; the parameters tell how tokens are pooled."""
    if "table" in p["stem"]:
        x = np.stack([p["stem"]["table"][grey] for row in image for grey in row[:, 0]])
    else:
        x = linear(
            p["stem"], patches_by_loops((image / 255 - np.array(MEAN)) / np.array(STD), patch)
        )
    x = np.concatenate([p["cls"][None], x]) if "cls" in p else x
    x = x + p["positions"]["table"] if "positions" in p else x
    hidden = reference.encoder(p["encoder"], x, block, final_norm)
    pooled = hidden[0] if "cls" in p else hidden.mean(0)
    if "pre_logits" in p:
        pooled = np.tanh(pooled @ p["pre_logits"]["kernel"] + p["pre_logits"]["bias"])
    return pooled @ p["head"]["kernel"] + p["head"]["bias"]


@pytest.mark.smoke
@pytest.mark.parametrize("name", BLOCKS)
@POOL
@in_float64
def test_every_block_on_wide_images_in_wide_patches(name, pool):
    """64 x 96 in patches of 8 x 16: 8 rows and 6 columns. Positions are added after the cls token,
    which has one."""
    (fields, block, final_norm), image, patch = BLOCKS[name], (64, 96), (8, 16)
    pre_logits = name == "gmlp"
    module = randomized(lambda: classifier(pool, 7, pre_logits, image, patch, **fields), std=0.2)
    one_image = random_images(1, image)
    assert module.spec.length == 48 + (pool == "cls")
    assert module.stem.kernel.shape == (
        8 * 16 * 3,
        6,
    )
    expected = logits_by_numpy(params_of(module), one_image[0], patch, block, final_norm)
    np.testing.assert_allclose(quick_jit(module)(one_image)[0], expected, atol=1e-8)


@in_float64
def test_gradients_are_finite_and_reach_every_parameter():
    """Under stochastic depth and dropout, with the layers recomputed."""
    noise = {"survival": 0.8, "survival_schedule": "linear", "dropout": 0.1, "remat": "matmuls"}
    state, call = function_of(
        randomized(lambda: classifier("cls", pre_logits=True, **noise, **BLOCKS["vit"][0]))
    )
    gradient = quick_jit(
        jax.grad(lambda state: (call(state, random_images(16), keys(0, 16)) ** 2).sum())
    )
    reference.assert_gradient_reaches_every_parameter(nnx.to_pure_dict(gradient(state)), 1e-9)


@pytest.mark.parametrize("shape, patch", [((2, 6, 8, 3), (2, 4)), ((1, 3, 10, 2), (3, 1))])
def test_cut_patches(shape, patch):
    images = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    expected = np.stack([patches_by_loops(image, patch) for image in images])
    np.testing.assert_array_equal(cut_patches(jnp.asarray(images), patch), expected)


def test_grids_and_tokens():
    assert patch_grid((224, 224), (16, 16)) == (14, 14)
    assert patch_grid(IMAGE, PATCH) == (3, 2)
    assert token_count((224, 224), (16, 16), "mean") == 196
    assert token_count((224, 224), (16, 16), "cls") == 197
    for image_size, patch_size in (
        ((224, 225), (16, 16)),
        ((225, 224), (16, 16)),
        ((8, 8), (16, 16)),
    ):
        assert "do not tile it; choose others" in raised(
            ValueError, patch_grid, image_size, patch_size
        )


def test_errors():
    assert "model.pool is 'max': expected one of mean, cls" in raised(ValueError, classifier, "max")
    assert "the encoder was made for 6 tokens, but the images give 7" in raised(
        ValueError, classifier, "cls", length=6
    )
    assert "model.stem is 'lookup': expected one of patches, table" in raised(
        ValueError, table, stem="lookup"
    )
    for wrong in ({"patch_size": (2, 2)}, {"channels": 3}):
        assert "reads grey pixels: set model.patch_size=(1, 1)" in raised(
            ValueError, table, **wrong
        )


def table(pool="mean", stem="table", **fields):
    """A model of grey pixels as tokens, on images of 3 x 4."""
    form = {"patch_size": (1, 1), "channels": 1} | {
        name: fields.pop(name) for name in ("patch_size", "channels") if name in fields
    }
    spec = small_spec(length=12 + (pool == "cls"), spatial="dense", **fields)
    return ImageClassifier(
        spec, nnx.Rngs(0), image_size=(3, 4), classes=5, pool=pool, stem=stem, **form
    )


@POOL
@in_float64
def test_grey_pixels_are_looked_up_row_by_row(pool):
    """And every gradient is finite; vectors of values that no pixel has get none."""
    module = randomized(lambda: table(pool, positions="absolute"))
    p = params_of(module)
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 1), dtype=np.uint8)
    images[0, 0, :2, 0] = 0, 255
    assert p["stem"]["table"].shape == (256, module.spec.d_model)
    np.testing.assert_allclose(
        quick_jit(module)(images), [logits_by_numpy(p, image) for image in images], atol=1e-10
    )
    state, call = function_of(module)
    gradient = quick_jit(jax.grad(lambda state: (call(state, images) ** 2).sum()))(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    moved = np.abs(nnx.to_pure_dict(gradient)["stem"]["table"]).max(1) > 0
    assert set(np.flatnonzero(moved)) == set(images.ravel().tolist())


def test_a_fresh_table_is_standard_normal():
    values = np.asarray(quick_jit(lambda: table(d_model=64, dtype="float32").stem.table[...])())
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03


@in_float64
def test_a_fresh_head_scores_nothing():
    fresh = quick_jit(lambda: nnx.state(classifier().head, nnx.Param))()
    module = randomized(classifier)
    nnx.update(module.head, fresh)
    np.testing.assert_array_equal(quick_jit(module)(random_images()), np.zeros((2, 7)))


@POOL
def test_logits_of_a_bfloat16_model_are_float32_and_not_rounded_before(pool):
    module = nnx.eval_shape(lambda: classifier(pool, pre_logits=pool == "cls", dtype="bfloat16"))
    reference.assert_last_product_alone_is_precise(module, random_images())


@in_float64
def test_the_gradient_of_the_stem_by_differences():
    """The stem recomputes its patches in the backward pass; its gradient is that of the plain
    formula."""
    module = randomized(classifier)
    images = random_images()
    step = 1e-6
    state, call = function_of(module)
    value_and_gradient = quick_jit(
        jax.value_and_grad(lambda state: (call(state, images) ** 2).sum())
    )
    gradient = nnx.to_pure_dict(value_and_gradient(state)[1])["stem"]["kernel"]
    kernel = np.asarray(module.stem.kernel[...])
    losses = []
    for sign in (1, -1):
        moved = kernel.copy()
        moved[5, 2] += sign * step
        module.stem.kernel[...] = jnp.asarray(moved)
        losses.append(value_and_gradient(nnx.split(module)[1])[0])
    np.testing.assert_allclose(gradient[5, 2], (losses[0] - losses[1]) / (2 * step), rtol=1e-6)


def test_backward_recomputes_the_patches():
    """The forward pass keeps the bytes of the images, not the patches as numbers of 4 bytes."""
    state, call = function_of(nnx.eval_shape(lambda: classifier(dtype="float32")))
    _, pullback = jax.eval_shape(
        lambda state, images: jax.vjp(lambda s: call(s, images), state), state, random_images()
    )
    kept = {(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(pullback)}
    assert ((2, *IMAGE, 3), "uint8") in kept
    assert not [shape for shape, _ in kept if shape == (2, 6, 24)]


@in_float64
def test_the_key_reaches_the_encoder():
    call = quick_jit(randomized(lambda: classifier(dropout=0.5)))
    images = random_images()
    assert (
        np.abs(call(images, keys(0, len(images))) - call(images, keys(1, len(images)))).max() > 0.01
    )
