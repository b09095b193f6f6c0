"""The image classifier: patches, encoder, head."""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.layers import LearnedPositions, Linear
from gmlp_flax.models.parameters import OverPatches, parameter
from gmlp_flax.models.spec import BlockSpec

POOLS = ("mean", "cls")
STEMS = ("patches", "table")
GREYS = 256  # values of a pixel
# Mean and standard deviation of ImageNet's training images, with pixels from 0 to 1. Many published
# models normalize with them. gMLP and Mixer use 0.5 for both.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def patch_grid(image_size: tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches of an image (height, width). Raises ValueError if they do not
    tile the image."""
    height, width = image_size
    patch_height, patch_width = patch_size
    if height % patch_height or width % patch_width:
        raise ValueError(
            f"model.image_size is {image_size}: patches of {patch_size} do not tile it; "
            "choose others"
        )
    return height // patch_height, width // patch_width


def token_count(image_size: tuple[int, int], patch_size: tuple[int, int], pool: str) -> int:
    """Number of tokens of an image: its patches, and one more if a `cls` token is pooled. Raises
    like `patch_grid`."""
    rows, columns = patch_grid(image_size, patch_size)
    patches = rows * columns
    if pool == "cls":
        return patches + 1
    return patches


def cut_patches(images: Array, patch_size: tuple[int, int]) -> Array:
    """[batch, height, width, channels] to [batch, patches, patch height * patch width * channels],
    row-major. Raises like `patch_grid`."""
    batch, height, width, channels = images.shape
    patch_height, patch_width = patch_size
    image_size = (height, width)
    rows, columns = patch_grid(image_size, patch_size)
    cut_shape = (batch, rows, patch_height, columns, patch_width, channels)
    cut = images.reshape(cut_shape)
    patches = cut.swapaxes(2, 3)  # [batch, rows, columns, patch height, patch width, channels]
    tokens = rows * columns
    numbers = patch_height * patch_width * channels  # of a patch
    return patches.reshape(batch, tokens, numbers)


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raises ValueError for an unknown value of model.NAME."""
    if value not in choices:
        known = ", ".join(choices)
        raise ValueError(f"model.{name} is {value!r}: expected one of {known}")


class GreyTable(nnx.Module):
    """One vector per grey value, `table` [256, d_model], standard normal at the start: pixels as
    tokens of a text (Long Range Arena, arXiv 2011.04006)."""

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        init = nnx.initializers.normal(1.0)
        shape = (GREYS, spec.d_model)
        table = init(rngs.params(), shape, spec.param_dtype)
        self.table = parameter(table)
        self.dtype = spec.compute_dtype

    def __call__(self, images: Array) -> Array:
        """[batch, height, width, 1], 0 to 255, to [batch, height * width, d_model], row by row."""
        pixels = jax.lax.collapse(images, 1)
        greys = pixels.astype(jnp.int32)  # [batch, height * width]
        table = self.table[...]
        vectors = jnp.take(table, greys, axis=0, mode="clip")
        return vectors.astype(self.dtype)


class ImageClassifier(nnx.Module):
    """Patch stem, encoder, pooling, classifier; no position embedding (paper, section 3) unless the
    spec has one.

    Args:
        image_size: height and width in pixels.
        patch_size: height and width of a patch; patches tile the image.
        classes: number of classes.
        channels: number of channels of the images.
        pool: `mean` averages the tokens, as timm does, whose gMLP-S reaches the paper's accuracy.
            `cls` adds a token and reads only its state, as ViTs do.
        pre_logits: a linear layer and tanh before the head, as in the first ViTs. With it and a cls
            token, a gMLP has the paper's parameter counts.
        mean: of the pixels of each channel, in 0 to 1; the stem subtracts it.
        std: their standard deviation, by which the stem divides.
        stem: `patches` is a linear layer on patches; `table` looks up a vector for each grey pixel.

    Raises:
        ValueError: an unknown pool or stem; a table stem for other patches than single grey pixels;
            `spec.length` is not the number of tokens.
    """

    def __init__(
        self,
        spec: BlockSpec,
        rngs: nnx.Rngs,
        *,
        image_size: tuple[int, int],
        patch_size: tuple[int, int],
        classes: int,
        channels: int = 3,
        pool: str = "mean",
        pre_logits: bool = False,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
        stem: str = "patches",
    ):
        _check_choice("pool", pool, POOLS)
        _check_choice("stem", stem, STEMS)
        patch_height, patch_width = patch_size
        pixels = patch_height * patch_width * channels
        if stem == "table" and pixels > 1:
            raise ValueError(
                "model.stem is 'table', which reads grey pixels: set model.patch_size=(1, 1), "
                "model.channels=1"
            )
        tokens = token_count(image_size, patch_size, pool)
        if spec.length != tokens:
            raise ValueError(
                f"the encoder was made for {spec.length} tokens, but the images give {tokens}"
            )
        d_model = spec.d_model
        if stem == "table":
            self.stem = GreyTable(spec, rngs)
        else:
            self.stem = Linear(spec, pixels, d_model, rngs)
        if pool == "cls":
            cls = jnp.zeros((d_model,), spec.param_dtype)
            self.cls = parameter(cls, decayed=False)
        else:
            self.cls = None
        if spec.positions == "absolute":
            self.positions = LearnedPositions(spec, rngs, OverPatches(outputs=-2))
        else:
            self.positions = None
        self.encoder = Encoder(spec, rngs)
        self.pre_logits = Linear(spec, d_model, d_model, rngs) if pre_logits else None
        self.head = Linear(spec, d_model, classes, rngs, init=nnx.initializers.zeros)
        self.spec = spec
        self.patch_size = patch_size
        self.mean = tuple(mean[:channels])
        self.std = tuple(std[:channels])

    def __call__(self, images: Array, key: Array | None = None) -> Array:
        """Images [batch, height, width, channels], uint8 or float, 0 to 255, to float32 logits
        [batch, classes]. `key` has a random key per example, [batch]; None for evaluation."""
        embedded = self.embed(images)
        states = self.encoder(embedded, key)
        pooled = self._pool(states)
        if self.pre_logits is not None:
            projected = self.pre_logits(pooled)
            pooled = jnp.tanh(projected)
        precise = pooled.astype(self.spec.precise_dtype)
        return self.head(precise)

    def _pool(self, states: Array) -> Array:
        """The mean of the tokens or the state of the cls token, [batch, d_model]."""
        if self.cls is not None:
            return states[:, 0]
        return states.mean(axis=1, dtype=self.spec.precise_dtype)

    def states(self, images: Array, layers: Sequence[int]) -> list[Array]:
        """The states after some layers, each [batch, tokens, d_model]: see `Encoder.states`."""
        embedded = self.embed(images)
        return self.encoder.states(embedded, layers)

    def embed(self, images: Array) -> Array:
        """The input of the encoder, [batch, tokens, d_model]; a cls token is the first."""
        chex.assert_shape(images, (None, None, None, len(self.mean)))
        x = self._patches(images)
        if self.cls is not None:
            batch, _, d_model = x.shape
            token = self.cls[...]
            token = token.astype(x.dtype)
            shape = (batch, 1, d_model)
            tokens = jnp.broadcast_to(token, shape)
            x = jnp.concatenate([tokens, x], axis=1)
        if self.positions is not None:
            x = self.positions(x)
        return x

    def _patches(self, images: Array) -> Array:
        """The stem's output, [batch, patches, d_model]."""
        if isinstance(self.stem, GreyTable):
            return self.stem(images)
        definition, params = nnx.split(self.stem)

        # backward recomputes the patches: saved, they would be the largest array outside the
        # encoder
        @jax.checkpoint
        def stem(params: nnx.State, images: Array) -> Array:
            """The embedded patches of images, [batch, tokens, d_model]."""
            precise = self.spec.precise_dtype
            mean = jnp.array(self.mean, precise)
            std = jnp.array(self.std, precise)
            precise_images = images.astype(precise)
            shares = precise_images / 255  # of white
            normalized = (shares - mean) / std
            pixels = normalized.astype(self.spec.compute_dtype)
            patches = cut_patches(pixels, self.patch_size)
            linear = nnx.merge(definition, params)
            return linear(patches)

        return stem(params, images)
