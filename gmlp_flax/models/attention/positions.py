"""What attention knows about positions: a bias for each offset or for each of T5's buckets of
offsets, and rotary positions."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from gmlp_flax.models import toeplitz
from gmlp_flax.models.attention.dot_product import hide_out_of_reach
from gmlp_flax.models.attention.spec import AttentionSpec
from gmlp_flax.models.parameters import OFFSETS, PAST_OFFSETS, parameter

MAX_DISTANCE = 128  # T5: offsets from this on share the last bucket of their direction


def buckets(offsets: np.ndarray, count: int, causal: bool = False) -> np.ndarray:
    """T5's buckets, integers below `count`, of offsets key - query of any shape (arXiv 1910.10683,
    section 2.1).

    Half of the buckets serve offsets above 0. If attention is causal, all serve offsets up to 0,
    and those above 0 get the bucket of 0. In each direction, the first half holds one distance per
    bucket, and the rest grow logarithmically up to MAX_DISTANCE.
    """
    if causal:
        distance = np.maximum(-offsets, 0)
        return _buckets_of_direction(distance, count)
    per_direction = count // 2
    distance = np.abs(offsets)
    is_later = offsets > 0
    first = np.where(is_later, per_direction, 0)
    return first + _buckets_of_direction(distance, per_direction)


def _buckets_of_direction(distance: np.ndarray, count: int) -> np.ndarray:
    """The bucket of each distance, at least 0, among the `count` buckets of one direction."""
    exact = count // 2  # buckets of one distance each
    logarithmic = count - exact
    # With 256 causal buckets, MAX_DISTANCE is `exact`: the logarithm must not be 0.
    ratio_of_all = max(MAX_DISTANCE / exact, 1 + 1e-9)
    doublings_of_all = np.log2(ratio_of_all)
    far_distance = np.maximum(distance, exact)
    ratio = far_distance / exact
    doublings = np.log2(ratio)
    growth = doublings * logarithmic / doublings_of_all  # buckets beyond the exact ones
    small_growth = np.minimum(growth, count)  # so that it fits into an integer
    last = count - 1
    far = exact + small_growth.astype(int)
    far = np.minimum(far, last)
    is_near = distance < exact
    return np.where(is_near, distance, far)


class RelativeBias(nnx.Module):
    """The bias that each head of each layer adds to its logits, by the offset of a key from its
    query (as in T5).

    Parameter: `bias` [heads, 2n - 1], one per offset in the order of Toeplitz taps ([heads, n] if
    causal, for offsets up to 0), or [heads, relative_buckets]. The default is one per offset, which
    gives the Transformer without content terms the 96M parameters of Table 3. 32 buckets give it
    95M.
    """

    def __init__(self, spec: AttentionSpec, rngs: nnx.Rngs):
        if spec.relative_buckets:
            entries = spec.relative_buckets
            resize = None
        elif spec.causal:
            entries = spec.length
            resize = PAST_OFFSETS
        else:
            entries = 2 * spec.length - 1
            resize = OFFSETS
        init = nnx.initializers.normal(0.02)
        bias = init(rngs.params(), (spec.heads, entries), spec.param_dtype)
        self.bias = parameter(bias, decayed=False, resize=resize)
        self.spec = spec

    def __call__(self, first: Array | int, count: int, keys: int) -> Array:
        """The bias of the queries [first, first + count) for the first keys: [heads, count, keys],
        -inf for keys out of reach. Raises ValueError for more keys than n, if each offset has a
        bias of its own."""

        def rows_of_head(taps: Array) -> Array:
            return toeplitz.rows(taps, first, count)

        rows_of_heads = jax.vmap(rows_of_head)
        taps = self._taps(keys)
        rows = rows_of_heads(taps)  # [heads, count, keys]
        return hide_out_of_reach(rows, self.spec, first)

    def _taps(self, keys: int) -> Array:
        """The bias of each offset between so many tokens, [heads, 2 keys - 1]."""
        spec = self.spec
        bias = self.bias[...]
        if spec.relative_buckets:
            offsets = np.arange(1 - keys, keys)
            bucket_of_offset = buckets(offsets, spec.relative_buckets, spec.causal)
            return bias[:, bucket_of_offset]
        if keys > spec.length:
            raise ValueError(
                f"the relative bias was made for at most {spec.length} tokens and was given {keys}"
            )
        if spec.causal:
            bias = toeplitz.pad_future(bias)
        return toeplitz.crop(bias, keys)


def rotate(x: Array, first: Array | int, theta: float) -> Array:
    """Rotary positions (Su et al., arXiv 2104.09864): rotates the channels i and i + d / 2 of a
    token at position p, as a point in the plane, by the angle p theta^(-2 i / d).

    Args:
        x: [batch, tokens, heads, d], the queries or keys of the positions [first, first + tokens).
        first: the position of the first token.
        theta: the base of the wavelengths.

    Returns:
        The same shape and type; computed in float32.
    """
    _, tokens, _, d = x.shape
    angles = _angles(first, tokens, d, theta)
    angles_of_heads = angles[:, None]  # [tokens, 1, d / 2]
    cosines = jnp.cos(angles_of_heads)
    sines = jnp.sin(angles_of_heads)
    precise_dtype = jnp.promote_types(x.dtype, jnp.float32)
    precise = x.astype(precise_dtype)
    # a point (horizontal, vertical) for each i, each part [batch, tokens, heads, d / 2]
    horizontal, vertical = jnp.split(precise, 2, axis=-1)
    rotated_horizontal = horizontal * cosines - vertical * sines
    rotated_vertical = vertical * cosines + horizontal * sines
    rotated = jnp.concatenate([rotated_horizontal, rotated_vertical], axis=-1)
    return rotated.astype(x.dtype)


def _angles(first: Array | int, tokens: int, d: int, theta: float) -> Array:
    """p theta^(-2 i / d) in radians for the positions p in [first, first + tokens) and for i below
    d / 2: float32 [tokens, d / 2]."""
    even_channels = np.arange(0, d, 2)  # 2 i
    exponents = even_channels / d
    frequencies = theta**-exponents
    rounded = jnp.asarray(frequencies, jnp.float32)
    numbers = jnp.arange(tokens)
    positions = first + numbers
    return jnp.outer(positions, rounded)
