"""Gated long convolutions with implicit filters: Hyena of order 2 (arXiv 2302.10866), and in both
directions the sequence mixer of Monarch Mixer (M2, arXiv 2310.12109).

A filter has an entry for each distance between tokens, which a small MLP computes from the
distance. The convolution is computed by FFT: O(n log n) work and O(n) memory for each channel.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models import depthwise, sharding
from gmlp_flax.models.blocks.base import PreNormBlock
from gmlp_flax.models.blocks.fnet import dft
from gmlp_flax.models.layers import ChannelMLPSpec, DecodeCache, LayerRng, Linear
from gmlp_flax.models.matmul import NAME, add_bias
from gmlp_flax.models.padding import pad_axis, zero_padding
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spec import AnyLengthSpec, BlockSpec
from gmlp_flax.options import ABOVE_0, SIZE, Range, option

SHORT_WIDTH = 3  # tokens that the short convolution reads: the token and two before it
# The window of a channel falls to DECAYED at a distance between these shares of n.
DECAYED = 0.01
FASTEST_DECAY = 0.3
SLOWEST_DECAY = 1.5
PRODUCTS_UP_TO = 2048  # tokens, in exported programs
LOWEST_FREQUENCY = 1e-4  # of the features, in turns per n tokens


def fft_points(tokens: int) -> int:
    """The points of the transforms: a power of two, so large that no two offsets between tokens
    share a point."""
    last = 2 * tokens - 2  # index of the last point that is needed
    return 1 << last.bit_length()


def convolve(x: Array, past: Array, future: Array | None = None) -> Array:
    """y[i] = sum_{j <= i} past[i - j] x[j] + sum_{j > i} future[j - i - 1] x[j], for each channel.

    Args:
        x: [batch, tokens, channels].
        past: the filter of the distances from 0, [tokens, channels].
        future: that of the distances from 1 to later tokens, [tokens, channels], whose last entry
            no token reads; None if the convolution is causal.

    Returns:
        [batch, tokens, channels] in the type of x. The transforms run in the filters' type, float32
        or float64. The rounding of a token may depend on every other token.
    """
    tokens, _ = past.shape
    points = fft_points(tokens)
    taps = _at_front(past, points)
    if future is not None and tokens > 1:
        # distance 1 is the last point
        future_read = future[:-1]
        reversed_future = jnp.flip(future_read, axis=0)
        future_taps = _at_end(reversed_future, points)
        taps = taps + future_taps
    is_exported = sharding.platform() == "any"
    by_products = is_exported and tokens <= PRODUCTS_UP_TO
    transform = circular_by_products if by_products else circular_by_fft
    y = sharding.map_shards(transform, x, taps)
    return checkpoint_name(y, NAME)


def circular_by_fft(x: Array, taps: Array) -> Array:
    """The first outputs of the circular convolution of x [batch, tokens, channels] and taps
    [points, channels]: [batch, tokens, channels] in the type of x."""
    points, _ = taps.shape
    tokens = x.shape[1]
    taps_hat = jnp.fft.rfft(taps, axis=0)  # [points / 2 + 1, channels]
    precise_x = x.astype(taps.dtype)
    x_hat = jnp.fft.rfft(precise_x, points, axis=1)  # [batch, points / 2 + 1, channels]
    product = x_hat * taps_hat
    convolution = jnp.fft.irfft(product, points, axis=1)  # [batch, points, channels]
    y = convolution[:, :tokens]
    return y.astype(x.dtype)


def circular_by_products(x: Array, taps: Array) -> Array:
    """`circular_by_fft` by products with the matrix of the Fourier transform, C - i S, in O(n^2)
    work and memory: ONNX has no transform of a batch of any size."""
    points, _ = taps.shape
    tokens = x.shape[1]
    cosines, sines = dft(points, taps.dtype)
    precise_x = x.astype(taps.dtype)
    cosines_of_x = cosines[:, :tokens]  # the points beyond are zeros
    x_cos = _precise_product(cosines_of_x, precise_x)  # [batch, points, channels]
    sines_of_x = sines[:, :tokens]
    x_sin = _precise_product(sines_of_x, precise_x)
    taps_cos = _precise_product(cosines, taps)
    taps_sin = _precise_product(sines, taps)
    # (x_cos - i x_sin) (taps_cos - i taps_sin)
    cos_cos = x_cos * taps_cos
    sin_sin = x_sin * taps_sin
    real = cos_cos - sin_sin
    cos_sin = x_cos * taps_sin
    sin_cos = x_sin * taps_cos
    imaginary = -(cos_sin + sin_cos)
    cosines_of_y = cosines[:tokens]
    y_real = _precise_product(cosines_of_y, real)
    sines_of_y = sines[:tokens]
    y_imaginary = _precise_product(sines_of_y, imaginary)
    sums = y_real - y_imaginary
    y = sums / points
    return y.astype(x.dtype)


def _precise_product(matrix: Array, x: Array) -> Array:
    return jnp.matmul(matrix, x, precision=jax.lax.Precision.HIGHEST)


def convolve_row(x: Array, past: Array, row: Array) -> Array:
    """Row `row` of the causal convolution of x [batch, n, channels] with the filter `past` [n,
    channels], at a cost of n: [batch, 1, channels]."""
    n, _ = past.shape
    # the weight of token j is past[row - j]: entry n - 1 - row + j of the reversed filter, and 0
    # beyond it, for later tokens
    reversed_past = jnp.flip(past, axis=0)
    with_zeros = _at_front(reversed_past, 2 * n - 1)
    start = n - 1 - row
    weights = jax.lax.dynamic_slice_in_dim(with_zeros, start, n)  # [n, channels]
    precise_x = x.astype(past.dtype)
    products = weights * precise_x  # [batch, n, channels]
    y = products.sum(axis=1, keepdims=True)
    return y.astype(x.dtype)


def _at_front(rows: Array, count: int) -> Array:
    """[rows, channels] to [count, channels], zeros last."""
    added = count - len(rows)
    return pad_axis(rows, 0, 0, added)


def _at_end(rows: Array, count: int) -> Array:
    """[rows, channels] to [count, channels], zeros first."""
    added = count - len(rows)
    return pad_axis(rows, 0, added, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LongConvSpec(ChannelMLPSpec, AnyLengthSpec):
    """Options of long convolutions."""

    filter_width: int = option(
        64, "width of the MLP that computes the filters (Hyena: 64)", SIZE, architecture=True
    )
    filter_features: int = option(
        5,
        "features of a distance that the MLP reads: itself, and a cosine and a sine for each "
        "frequency (M2: 5)",
        Range("an odd number from 3", 3, SIZE.most),
        architecture=True,
    )
    filter_frequency: float = option(
        10.0, "factor inside the sines of the MLP at the start (M2: 10)", ABOVE_0
    )

    def check(self) -> None:
        """Raises ValueError for an even number of features."""
        super().check()
        if self.filter_features % 2 == 0:
            raise ValueError(
                f"model.filter_features is {self.filter_features}: expected an odd number, a "
                "distance and pairs of a cosine and a sine"
            )

    @property
    def mixes_by_length(self) -> bool:
        """See `BlockSpec`: a filter reads distances as shares of n."""
        return True


def _uniform(fan_in: int) -> nnx.Initializer:
    """PyTorch's default, by which the published filters start: uniform within 1 / sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    from_0 = nnx.initializers.uniform(2 * bound)

    def init(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
        numbers = from_0(key, shape, dtype)  # in [0, 2 bound)
        return numbers - bound

    return init


class FilterLayer(nnx.Module):
    """A layer of the filter's MLP: `weight` [d_in, d_out] and, unless it is the last, `bias`."""

    def __init__(self, spec: BlockSpec, d_in: int, d_out: int, rngs: nnx.Rngs, last: bool = False):
        init = _uniform(d_in)
        shape = (d_in, d_out)
        weight = init(rngs.params(), shape, spec.param_dtype)
        output_axis = FSDP if last else None
        self.weight = parameter(weight, sharding=(None, output_axis))
        if last:
            self.bias = None
        else:
            bias = init(rngs.params(), (d_out,), spec.param_dtype)
            self.bias = parameter(bias, decayed=False)

    def __call__(self, x: Array) -> Array:
        """[tokens, d_in] to [tokens, d_out]."""
        y = _precise_product(x, self.weight[...])
        if self.bias is None:
            return y
        return y + self.bias[...]


class ImplicitFilter(nnx.Module):
    """h[t, c] = window[t, c] mlp(features(t))[c] for the distances t from 0 (Hyena, sections 3.3 and
    D.3; the authors' `HyenaFilter`).

    The MLP has sines as activations, with learned `frequencies` [filter_width]. Its features are
    t / (n - 1), and cosines and sines of t in turns per n tokens, n the model's length. The window
    falls exponentially, for each channel at another rate. Distances beyond n continue all of
    these: at n the window is 0.05 for the slowest channel, and less than 0.01 for seven of eight.
    """

    def __init__(self, spec: LongConvSpec, rngs: nnx.Rngs):
        width = spec.filter_width
        self.first = FilterLayer(spec, spec.filter_features, width, rngs)
        self.second = FilterLayer(spec, width, width, rngs)
        self.third = FilterLayer(spec, width, width, rngs)
        self.last = FilterLayer(spec, width, spec.d_model, rngs, last=True)
        shape = (width,)
        frequencies = jnp.full(shape, spec.filter_frequency, spec.param_dtype)
        self.frequencies = parameter(frequencies, decayed=False)
        self.spec = spec

    def __call__(self, tokens: int) -> Array:
        """The filter of the distances from 0, [tokens, d_model]."""
        hidden = self._features(tokens)
        for layer in (self.first, self.second, self.third):
            projected = layer(hidden)  # [tokens, filter_width]
            hidden = self._activation(projected)
        values = self.last(hidden)  # [tokens, d_model]
        window = self._window(tokens)
        return values * window

    def _activation(self, x: Array) -> Array:
        frequencies = self.frequencies[...]
        return jnp.sin(frequencies * x)

    def _shares(self, tokens: int) -> Array:
        """The distances as shares of the longest one, n - 1: [tokens]."""
        longest = max(1, self.spec.length - 1)
        distances = jnp.arange(tokens, dtype=self.spec.param_dtype)
        return distances / longest

    def _features(self, tokens: int) -> Array:
        """What the MLP reads of each distance, [tokens, filter_features]: its share of the longest
        one, and the cosine and the negative sine of each frequency."""
        dtype = self.spec.param_dtype
        waves = self.spec.filter_features - 1
        frequencies = waves // 2
        last = frequencies - 1
        turns = jnp.linspace(LOWEST_FREQUENCY, last, frequencies, dtype=dtype)
        angle_of_token = 2 * math.pi / self.spec.length  # at one turn per n tokens
        distances = jnp.arange(tokens, dtype=dtype)
        angles_of_turn = angle_of_token * distances
        angles_of_rows = angles_of_turn[:, None]  # [tokens, 1]
        angles = angles_of_rows * turns  # [tokens, frequencies]
        cosines = jnp.cos(angles)
        sines = -jnp.sin(angles)
        shares = self._shares(tokens)[:, None]
        return jnp.concatenate([shares, cosines, sines], axis=1)

    def _window(self, tokens: int) -> Array:
        """exp(-rate t / (n - 1)) for each distance t and channel, [tokens, d_model]. The rates of the
        channels grow evenly from the slowest to the fastest."""
        decay = -math.log(DECAYED)
        slowest = decay / SLOWEST_DECAY
        fastest = decay / FASTEST_DECAY
        channels = self.spec.d_model
        rates = jnp.linspace(slowest, fastest, channels, dtype=self.spec.param_dtype)
        shares = self._shares(tokens)[:, None]
        exponents = -rates * shares
        return jnp.exp(exponents)


class ShortFilter(nnx.Module):
    """A causal depthwise convolution: `taps` [SHORT_WIDTH, channels], whose last entry is that of the
    token itself, and `bias` [channels] (Hyena, section 3.3; the authors' `short_filter`)."""

    def __init__(self, spec: BlockSpec, channels: int, rngs: nnx.Rngs):
        dtype = spec.param_dtype
        init = _uniform(SHORT_WIDTH)
        shape = (SHORT_WIDTH, channels)
        taps = init(rngs.params(), shape, dtype)
        self.taps = parameter(taps, sharding=(None, FSDP))
        bias = init(rngs.params(), (channels,), dtype)
        self.bias = parameter(bias, decayed=False)

    def __call__(self, x: Array, cache: DecodeCache | None = None) -> Array:
        """[batch, tokens, channels] to the same, in the type of x."""
        taps = self.taps[...]
        past = SHORT_WIDTH - 1
        if cache is None:
            mixed = depthwise.convolve(x, taps, past)
        else:
            whole = cache.with_earlier("projections", x, past)
            mixed = depthwise.convolve_valid(whole, taps)
        mixed = checkpoint_name(mixed, NAME)
        return add_bias(mixed, self.bias[...])


class LongConvolution(nnx.Module):
    """out(x2 * (h * (x1 v) + skip x1 v)): x2, x1 and v are projections behind a short convolution,
    and h is an implicit filter (Hyena of order 2).

    Unless the block is causal, it has a second filter for later tokens (M2). The short convolution
    is causal in either case, as published. `skip` [d_model] is standard normal at the start.
    """

    def __init__(self, spec: LongConvSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        projections = 3 * d_model
        self.proj_in = Linear(spec, d_model, projections, rngs, parts=3)
        self.short = ShortFilter(spec, projections, rngs)
        self.past = ImplicitFilter(spec, rngs)
        if spec.causal:
            self.future = None
        else:
            self.future = ImplicitFilter(spec, rngs)
        normal = nnx.initializers.normal(1.0)
        skip = normal(rngs.params(), (d_model,), spec.param_dtype)
        self.skip = parameter(skip, decayed=False)
        self.out = Linear(spec, d_model, d_model, rngs, sharding=(None, FSDP))

    def __call__(
        self,
        x: Array,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same. Padding counts as zeros. `cache` as in `Block`."""
        projected = self.proj_in(x)
        projected = zero_padding(projected, padding_mask)
        short = self.short(projected, cache)
        last_gate, first_gate, values = jnp.split(short, 3, axis=-1)
        gated = first_gate * values
        gated = zero_padding(gated, padding_mask)
        mixed = self._mix(gated, cache)
        return self.out(last_gate * mixed)

    def _mix(self, x: Array, cache: DecodeCache | None) -> Array:
        """h * x + skip x: [batch, tokens, d_model] to the same."""
        tokens = x.shape[1]
        if cache is None:
            future = None if self.future is None else self.future(tokens)
            past = self._past_and_skip(tokens)
            return convolve(x, past, future)
        stored = cache.update("values", x)
        n = stored.shape[1]
        past = self._past_and_skip(n)
        if tokens == 1:
            return convolve_row(stored, past, cache.first)
        whole = convolve(stored, past)
        return jax.lax.dynamic_slice_in_dim(whole, cache.first, tokens, axis=1)

    def _past_and_skip(self, tokens: int) -> Array:
        """The filter of the distances from 0, with the skip at distance 0: [tokens, d_model]."""
        skip = self.skip[...]
        skip_of_first = skip[None]  # [1, d_model]
        skip_of_tokens = _at_front(skip_of_first, tokens)
        past = self.past(tokens)
        return past + skip_of_tokens


class LongConvBlock(PreNormBlock):
    """x + convolution(norm(x)), then x + mlp(norm(x))."""

    Spec = LongConvSpec
    can_be_causal = True
    hides_padding = True

    def __init__(self, spec: LongConvSpec, rngs: nnx.Rngs):
        self.convolution = LongConvolution(spec, rngs)
        super().__init__(spec, rngs)

    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """See `PreNormBlock`."""
        return self.convolution(x, padding_mask, cache)
