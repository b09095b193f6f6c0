"""Mixup and CutMix on the device, inside the training step: images of a batch are mixed in pairs.

Example i of B is paired with example i + B/2 (mod B). Microbatches take every m-th example, so they
hold the same pairs as the whole batch. Devices exchange their whole shares of the batch. Copies of
one image (`augment.repeats`) lie closer together, so they are never paired. timm pairs i with
B - 1 - i, which is the same except for the order of the batch.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp


def partners(x: jax.Array) -> jax.Array:
    """The other example of each pair: [batch, ...], shifted by half a batch. The batch is even, so
    this works both ways."""
    half = len(x) // 2
    return jnp.roll(x, half, axis=0)


def blend_pixels(pixels: jax.Array, weights: jax.Array) -> jax.Array:
    """weights * pixels + (1 - weights) * partners(pixels), rounded to whole levels as in timm's loader.

    The backward pass would keep float32 pixels, which take four times the memory.

    Args:
        pixels: uint8 [batch, height, width, channels], as the result.
        weights: [batch or 1, height, width], 0 to 1.
    """
    of_channels = weights[..., None]
    own_part = of_channels * pixels
    partner_part = (1 - of_channels) * partners(pixels)
    mixed = own_part + partner_part
    return jnp.round(mixed).astype(pixels.dtype)


def mixed_targets(
    batch: Mapping[str, jax.Array], targets: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The targets of mixed images, float32 [batch, classes], and the labels with the larger share.

    Args:
        batch: the "label" [batch] of each image, its partner's, "other", and its own "share".
        targets: of the images before they were mixed, float32 [batch, classes].
    """
    share = batch["share"]
    other_labels = batch["other"]
    classes = targets.shape[-1]
    other_targets = jax.nn.one_hot(other_labels, classes)
    weights = share[:, None]
    own_part = weights * targets
    other_part = (1 - weights) * other_targets
    is_other = share < 0.5
    labels = jnp.where(is_other, other_labels, batch["label"])
    mixed = own_part + other_part
    return mixed, labels


def pair_keys(keys: jax.Array) -> jax.Array:
    """[batch] random keys. Both examples of a pair get the key of the pair's first example."""
    pairs = len(keys) // 2
    return jnp.tile(keys[:pairs], 2)


def keep_weights(
    keys: jax.Array, size: tuple[int, ...], *, mixup: float, cutmix: float, switch: float
) -> tuple[jax.Array, jax.Array]:
    """How much of each pixel an example keeps.

    Mixup (Zhang et al. 2017) keeps the same share of every pixel, drawn from Beta(mixup, mixup).
    CutMix (Yun et al. 2019) takes one box from the partner. The box covers 1 - Beta(cutmix, cutmix)
    of the area, its centre is anywhere, and the borders cut it off. The label therefore gets the
    share of the area that is left, not the share that was drawn.

    Args:
        keys: random keys [draws]: one for all examples, or one per example.
        size: height and width.
        mixup, cutmix: the alphas; 0 for the one that is not used, not for both.
        switch: probability of CutMix if both are used.

    Returns:
        The weights of pixels, float32 [draws, height, width], and their means, the weights of
        labels, [draws]; 0 to 1.
    """
    if not cutmix:
        switch = 0.0
    elif not mixup:
        switch = 1.0
    # An alpha of 0 has no distribution. What is drawn in its place is not used.
    mixup_alpha = mixup or 1.0
    cutmix_alpha = cutmix or 1.0

    def draw(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The weights [height, width] of one draw, and their mean."""
        mixup_key, cutmix_key, centre_key, switch_key = jax.random.split(key, 4)
        share = jax.random.beta(mixup_key, mixup_alpha, mixup_alpha)
        outside = _draw_box(cutmix_key, centre_key, size, cutmix_alpha)
        number = jax.random.uniform(switch_key)
        is_cutmix = number < switch
        weights = jnp.where(is_cutmix, outside, share)
        # The mean of a box's weights is exact. The mean of equal fractions would not be.
        mean_outside = outside.mean()
        mean = jnp.where(is_cutmix, mean_outside, share)
        return weights, mean

    return jax.vmap(draw)(keys)


def _draw_box(
    share_key: jax.Array, centre_key: jax.Array, size: tuple[int, ...], alpha: float
) -> jax.Array:
    """The weights of one draw of CutMix: see `outside_box`."""
    share = jax.random.beta(share_key, alpha, alpha)
    limits = jnp.array(size)
    centre = jax.random.randint(centre_key, (2,), 0, limits)
    return outside_box(size, share, centre)


def outside_box(size: tuple[int, ...], share: jax.Array, centre: jax.Array) -> jax.Array:
    """1 outside and 0 inside of CutMix's box of 1 - share of the area, cut off at the borders:
    float32 [height, width].

    `size` is the image's height and width, `centre` the box's row and column, int [2].
    """
    height, width = size
    row, column = centre
    side_share = jnp.sqrt(1 - share)
    sides = jnp.array(size) * side_share
    whole_sides = jnp.floor(sides)
    box_height, box_width = whole_sides.astype(jnp.int32)
    in_rows = _is_within(height, row, box_height)
    in_columns = _is_within(width, column, box_width)
    is_inside = in_rows[:, None] & in_columns
    return 1.0 - is_inside


def _is_within(size: int, centre: jax.Array, length: jax.Array) -> jax.Array:
    """Which positions of 0 to size - 1 lie in an interval of some length around a centre, bool
    [size]."""
    positions = jnp.arange(size)
    first = centre - length // 2
    stop = centre + (length + 1) // 2
    is_after_first = positions >= first
    is_before_stop = positions < stop
    return is_after_first & is_before_stop
