"""Mixup and CutMix on the device, inside the training step: images of a batch are mixed in pairs.

Example i of B is paired with example i + B/2 (mod B). Microbatches, which take every m-th example,
then hold the same pairs as the whole batch, devices exchange whole shares of it, and copies of one
image, which lie closer together (`augment.repeats`), never meet. timm pairs i with B - 1 - i, which
is the same up to the order of the batch.
"""

import jax
import jax.numpy as jnp


def partners(x: jax.Array) -> jax.Array:
    """The other example of each pair: [batch, ...], half a batch on. The batch is even, so it works
    both ways."""
    return jnp.roll(x, len(x) // 2, axis=0)


def blend_pixels(pixels: jax.Array, own: jax.Array) -> jax.Array:
    """own * pixels + (1 - own) * partners(pixels), rounded to whole levels as in timm's loader.

    As float32, which backward would keep, they would take four times the memory.

    Args:
        pixels: uint8 [batch, height, width, channels], as the result.
        own: [batch or 1, height, width], 0 to 1.
    """
    own = own[..., None]
    mixed = own * pixels + (1 - own) * partners(pixels)
    return jnp.round(mixed).astype(pixels.dtype)


def pair_keys(keys: jax.Array) -> jax.Array:
    """[batch] random keys, the same for both examples of a pair: its first one's."""
    first_half = keys[: len(keys) // 2]
    return jnp.tile(first_half, 2)


def own_weights(
    keys: jax.Array, size: tuple[int, ...], *, mixup: float, cutmix: float, switch: float
) -> tuple[jax.Array, jax.Array]:
    """How much of each pixel an example keeps.

    Mixup (Zhang et al. 2017) keeps the same share of every pixel, drawn from Beta(mixup, mixup).
    CutMix (Yun et al. 2019) takes one box from the partner: of 1 - Beta(cutmix, cutmix) of the
    area, its centre anywhere, cut off at the borders; so what is left of the area, not what was
    drawn, is the share that its label deserves.

    Args:
        keys: random keys [draws]: one for all examples, or one per example.
        size: height and width.
        mixup, cutmix: the alphas; 0 for the one that is not used, not for both.
        switch: probability of CutMix if both are used.

    Returns:
        The weights of pixels, float32 [draws, height, width], and their means, the weights of
        labels, [draws]; 0 to 1.
    """
    if not (mixup and cutmix):
        switch = 1.0 if cutmix else 0.0
    # An alpha of 0 has no distribution; what is drawn in its place is not used.
    mixup_alpha = mixup or 1.0
    cutmix_alpha = cutmix or 1.0

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights [height, width] of one draw, and their mean."""
        mixup_key, cutmix_key, centre_key, switch_key = jax.random.split(key, 4)
        share = jax.random.beta(mixup_key, mixup_alpha, mixup_alpha)
        centre = jax.random.randint(centre_key, (2,), 0, jnp.array(size))
        box_share = jax.random.beta(cutmix_key, cutmix_alpha, cutmix_alpha)
        outside = outside_box(size, box_share, centre)
        is_cutmix = jax.random.uniform(switch_key) < switch
        weights = jnp.where(is_cutmix, outside, share)
        # The mean of a box's weights is exact; of equal fractions it would not be.
        mean = jnp.where(is_cutmix, outside.mean(), share)
        return weights, mean

    return jax.vmap(draw)(keys)


def outside_box(size: tuple[int, ...], share: jax.Array, centre: jax.Array) -> jax.Array:
    """1 outside and 0 inside of CutMix's box of 1 - share of the area, cut off at the borders:
    float32 [height, width].

    `size` is the image's height and width, `centre` the box's row and column, int [2].
    """
    sides = jnp.floor(jnp.array(size) * jnp.sqrt(1 - share)).astype(jnp.int32)
    first = centre - sides // 2
    stop = centre + (sides + 1) // 2
    rows = jnp.arange(size[0])
    columns = jnp.arange(size[1])
    is_in_rows = (rows >= first[0]) & (rows < stop[0])
    is_in_columns = (columns >= first[1]) & (columns < stop[1])
    is_inside = is_in_rows[:, None] & is_in_columns
    return 1.0 - is_inside
