"""What models share: linear layers, the MLPs of Transformers and Mixers, layer norm, activations,
learned positions, residual sums with dropout and stochastic depth, and the cache of generation."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models import sharding
from gmlp_flax.models.matmul import add_bias, over_channels, over_tokens, saving_only_inputs
from gmlp_flax.models.parameters import OverPatches, Resize, parameter
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import SIZE, option

Branch = Callable[[jax.Array], jax.Array]
# those of all layers of a stack: the leading axis of each array is the layer
CacheArrays = dict[str, jax.Array]


def split_keys(keys: jax.Array, count: int) -> jax.Array:
    """[batch] keys, one per example, to `count` new keys per example, [count, batch]. What is drawn
    for an example depends on its own key alone, however a batch is spread over devices."""

    def split(key: jax.Array) -> jax.Array:
        return jax.random.split(key, count)

    split_each = jax.vmap(split, out_axes=1)
    return split_each(keys)


def fold_in(keys: jax.Array, number: jax.Array | int) -> jax.Array:
    """[batch] random keys to new keys for this number, [batch]."""
    fold_in_each = jax.vmap(jax.random.fold_in, (0, None))
    return fold_in_each(keys, number)


def dropout(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Zeroes elements of x [batch, ...] with probability `rate` and scales the others by 1 / (1 -
    rate). `keys` has a random key per example, [batch]; None for evaluation, which returns x."""
    if keys is None or rate == 0:
        return x
    keep_rate = 1 - rate
    shape_of_example = x.shape[1:]

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, keep_rate, shape_of_example)

    draw_each = jax.vmap(draw)
    keep = draw_each(keys)  # bool [batch, ...]
    return jnp.where(keep, x / keep_rate, 0)


def drop_path(branch: jax.Array, survival: jax.Array, keys: jax.Array) -> jax.Array:
    """Stochastic depth: zeroes the whole branch of an example with probability 1 - survival, and
    scales the others by 1 / survival, so that the expected value is the branch of evaluation.
    `branch` is [batch, tokens, d_model], `survival` float32 [], and `keys` [batch]."""

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, survival)

    keep = jax.vmap(draw)(keys)  # bool [batch]
    factors = (keep / survival).astype(branch.dtype)
    factors = factors[:, None, None]  # [batch, 1, 1]
    return branch * factors


@dataclasses.dataclass(frozen=True)
class LayerRng:
    """The random keys and rates of one layer in training; by default those of evaluation, in which
    nothing is random.

    Attributes:
        keys: a random key for each example, [batch]; None for evaluation.
        dropout: rate of dropout on residual branches.
        survival: probability that stochastic depth keeps a residual branch, float32 []; None to
            keep all.
    """

    keys: jax.Array | None = None
    dropout: float = 0.0
    survival: jax.Array | None = None

    @property
    def mixing_keys(self) -> jax.Array | None:
        """Keys for dropout inside the block, such as on the weights of attention: [batch], or None
        for evaluation."""
        return None if self.keys is None else fold_in(self.keys, 0)


EVALUATION = LayerRng()


def add_branch(
    x: jax.Array, branch: jax.Array, rng: LayerRng, number: int = 0, dropped: bool = True
) -> jax.Array:
    """The residual stream x + branch, both [batch, tokens, d_model], in the wider of their types;
    in training with stochastic depth and, if it is `dropped`, dropout on the branch. `rng` is the
    block's own. `number` is that of the branch within its block, from 0: each branch draws with its
    own keys."""
    if rng.keys is not None:
        dropout_keys = fold_in(rng.keys, 1 + 2 * number)
        depth_keys = fold_in(rng.keys, 2 + 2 * number)
        if dropped:
            branch = dropout(branch, rng.dropout, dropout_keys)
        if rng.survival is not None:
            branch = drop_path(branch, rng.survival, depth_keys)
    return sharding.constrain(x + branch, sharding.BATCH)


class Linear(nnx.Module):
    """A dense layer [..., d_in] to [..., d_out]: `kernel` [d_in, d_out], Glorot-uniform by default,
    and `bias`.

    Args:
        sharding: mesh axes of the kernel's two axes. If the second is TENSOR, bias and output are
            sharded along it too.
        activation: name of the activation of the output; empty for none.
        parts: number of equal parts that the caller splits the output into. Each is computed by a
            product of its own, so that the split copies nothing: strided slices of one wide array
            cost a sixth of gMLP's step on a CPU.
        bias: whether there is one.
    """

    def __init__(
        self,
        spec: BlockSpec,
        d_in: int,
        d_out: int,
        rngs: nnx.Rngs,
        init: nnx.Initializer = nnx.initializers.glorot_uniform(),
        sharding: tuple[str | None, str | None] = (FSDP, None),
        activation: str = "",
        parts: int = 1,
        bias: bool = True,
    ):
        _, output_axis = sharding
        self.shard_output = output_axis == TENSOR
        kernel = init(rngs.params(), (d_in, d_out), spec.param_dtype)
        self.kernel = parameter(kernel, sharding=sharding)
        if bias:
            zeros = jnp.zeros((d_out,), spec.param_dtype)
            bias_sharding = (TENSOR,) if self.shard_output else ()
            self.bias = parameter(zeros, sharding=bias_sharding, decayed=False)
        else:
            self.bias = None
        self.activation = activation
        self.parts = parts

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., d_in] to [..., d_out] in the type of x."""
        kernel = self.kernel[...].astype(x.dtype)
        kernels = jnp.split(kernel, self.parts, axis=-1)
        biases = [None] * self.parts
        if self.bias is not None:
            biases = jnp.split(self.bias[...], self.parts)
        outputs = []
        for kernel, bias in zip(kernels, biases, strict=True):
            part = self._part(x, kernel, bias)
            outputs.append(part)
        if self.parts == 1:
            [output] = outputs
            return output
        return jnp.concatenate(outputs, axis=-1)

    def _part(self, x: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
        """One part of the output, [..., d_in] to [..., d_out / parts]."""
        y = over_channels(x, kernel)
        if bias is not None:
            y = add_bias(y, bias)
        if self.shard_output:
            inner = [None] * (y.ndim - 2)
            y = sharding.constrain(y, sharding.BATCH, *inner, TENSOR)
        if self.activation:
            y = activation(self.activation, y)
        return y


class LayerNorm(nnx.Module):
    """Layer norm over the last axis with scale and bias, computed in float32, returned in the
    compute type, or in the residual stream's if the norm stands in the stream itself (`post`).

    `eps` is the spec's unless given; `metadata` are of its two parameters (`ParamMetadata`). If the
    spec has no `biases`, there is the scale alone; with `norm_type="rms"` the norm divides by the
    root of the mean square and subtracts no mean (Zhang and Sennrich, arXiv 1910.07467).
    """

    def __init__(
        self, spec: BlockSpec, channels: int, eps: float = 0.0, post: bool = False, **metadata: Any
    ):
        ones = jnp.ones((channels,), spec.param_dtype)
        self.scale = parameter(ones, decayed=False, **metadata)
        self.is_rms = spec.norm_type == "rms"
        if spec.biases and not self.is_rms:
            zeros = jnp.zeros((channels,), spec.param_dtype)
            self.bias = parameter(zeros, decayed=False, **metadata)
        else:
            self.bias = None
        self.eps = eps or spec.norm_eps
        self.precise_dtype = spec.precise_dtype
        self.post = post
        self.compute_dtype = spec.compute_dtype
        self.dtype = spec.stream_dtype if post else spec.compute_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., channels] to [..., channels]."""
        scale = self.scale[...]
        if self.is_rms:
            y = rms_norm(x, scale, self.eps, self.dtype)
        else:
            bias = jnp.zeros_like(scale) if self.bias is None else self.bias[...]
            y = layer_norm(x, scale, bias, self.eps, self.dtype)
        # The output feeds matrix products. Without the barrier the compiler fuses the norm into
        # each of them and computes it in several layouts, which takes more memory on a TPU.
        return jax.lax.optimization_barrier(y)


def moments(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of x over its last axis, [..., 1]."""
    mean = x.mean(-1, keepdims=True)
    squares = jnp.square(x - mean)
    variance = squares.mean(-1, keepdims=True)
    return mean, variance


def moments_in_one_pass(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`moments`, reading x once: from sums of x less its first entry. A large mean therefore costs
    the squares no precision. The first entry, at most sqrt(n) deviations from the mean of n, costs
    n roundings at most."""
    first = x[..., :1]
    mean = (x - first).mean(-1, keepdims=True)  # of x - first
    squares = jnp.square(x - first)
    mean_square = squares.mean(-1, keepdims=True)
    variance = mean_square - jnp.square(mean)
    return first + mean, jnp.maximum(variance, 0)


def _statistics(x: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    """Mean and 1 / deviation over the last axis of x, [..., 1]. XLA reads x twice for `moments` on
    a GPU; on a TPU one pass moves more bytes (docs/developers/measurements.md)."""
    mean, variance = jax.lax.platform_dependent(x, cuda=moments_in_one_pass, default=moments)
    return mean, jax.lax.rsqrt(variance + eps)


@functools.partial(jax.custom_jvp, nondiff_argnums=(3, 4))
def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float, dtype: jnp.dtype
) -> jax.Array:
    """(x - mean) / deviation * scale + bias over the last axis of x [..., channels], computed in
    the type of `scale` [channels], returned in `dtype`.

    The derivative is written out: it keeps x alone of the forward pass, and needs fewer passes over
    memory.
    """
    x = x.astype(scale.dtype)
    mean, inverse = _statistics(x, eps)
    normed = (x - mean) * inverse
    y = normed * scale + bias
    return y.astype(dtype)


@layer_norm.defjvp
def _layer_norm_jvp(eps: float, dtype: jnp.dtype, primals, tangents):
    x, scale, bias = primals

    @saving_only_inputs
    def derivative(x, scale, d_x, d_scale, d_bias):
        """The tangent of the output, linear in the tangents d_x, d_scale and d_bias."""
        x = x.astype(scale.dtype)
        # With the barrier they are computed first. Without it a GPU writes what follows in float32
        # before it sums that.
        statistics = jax.lax.optimization_barrier(_statistics(x, eps))
        mean, inverse = statistics
        normed = (x - mean) * inverse
        d_x = d_x.astype(scale.dtype)
        centred = d_x - d_x.mean(-1, keepdims=True)
        products = normed * d_x
        along_normed = products.mean(-1, keepdims=True)
        d_normed = inverse * (centred - normed * along_normed)
        from_normed = d_normed * scale
        from_scale = normed * d_scale
        d_y = from_normed + from_scale + d_bias
        return d_y.astype(dtype)

    y = layer_norm(x, scale, bias, eps, dtype)
    d_y = derivative(x, scale, *tangents)
    return y, d_y


def rms_norm(x: jax.Array, scale: jax.Array, eps: float, dtype: jnp.dtype) -> jax.Array:
    """x / sqrt(mean of x^2 + eps) * scale over the last axis of x [..., channels], computed in the
    type of `scale` [channels], returned in `dtype`."""
    x = x.astype(scale.dtype)
    squares = jnp.square(x)
    mean_square = squares.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(mean_square + eps)
    y = x * inverse * scale
    return y.astype(dtype)


class LearnedPositions(nnx.Module):
    """One vector per position, `table` [length, d_model], as in BERT and ViT, for any number of
    tokens up to n.

    `resize` says how the table is resized for another number of positions.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs, resize: Resize):
        init = nnx.initializers.normal(0.02)  # BERT's and ViT's
        shape = (spec.length, spec.d_model)
        table = init(rngs.params(), shape, spec.param_dtype)
        self.table = parameter(table, decayed=False, resize=resize)

    def __call__(self, x: jax.Array, first: jax.Array | int = 0) -> jax.Array:
        """[batch, tokens, d_model] to the same, in the type of x; `first` is the position of the
        first token. Raises ValueError for more tokens than the table has rows."""
        rows = self.table.shape[0]
        tokens = x.shape[-2]
        if tokens > rows:
            raise ValueError(
                f"the positions were made for at most {rows} tokens and were given {tokens}"
            )
        vectors = jax.lax.dynamic_slice_in_dim(self.table[...], first, tokens)
        return x + vectors.astype(x.dtype)


class LearnedSegments(nnx.Module):
    """One vector per segment, `table` [rows, d_model], as in BERT for the two texts of a pair.

    They start at 0, so that they do not change a model that was pretrained without them. If `rngs`
    is given, for models that are pretrained with segments, they start like positions.
    """

    def __init__(self, spec: BlockSpec, rows: int = 2, rngs: nnx.Rngs | None = None):
        shape = (rows, spec.d_model)
        if rngs is None:
            table = jnp.zeros(shape)
        else:
            init = nnx.initializers.normal(0.02)
            table = init(rngs.params(), shape)
        self.table = parameter(table.astype(spec.param_dtype), decayed=False)

    def __call__(self, x: jax.Array, segments: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] and int [batch, tokens], below the number of rows, to the shape
        and type of x."""
        vectors = jnp.take(self.table[...], segments, axis=0, mode="clip")
        return x + vectors.astype(x.dtype)  # cast last: gradients are summed in the table's type


def add_normed(
    x: jax.Array, norm: LayerNorm, branch: Branch, rng: LayerRng, number: int, dropped: bool = True
) -> jax.Array:
    """x + branch(norm(x)) or, if the norm stands in the residual stream (`post`), norm(x +
    branch(x)); the other arguments are those of `add_branch`."""
    if norm.post:
        added = branch(x.astype(norm.compute_dtype))
        total = add_branch(x, added, rng, number, dropped)
        return norm(total)
    added = branch(norm(x))
    return add_branch(x, added, rng, number, dropped)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def activation(name: str, x: jax.Array) -> jax.Array:
    """The exact GELU x Phi(x), its tanh approximation (`gelu_tanh`), or x sigmoid(x) (`silu`),
    computed in float32, in the type of x.

    Phi is written with erf, as torch does: half the cost of erfc on a CPU, and an absolute error
    below 1e-6. The derivative keeps x alone of the forward pass.
    """
    precise = jnp.promote_types(x.dtype, jnp.float32)
    y = _gelu(name, x.astype(precise))
    return y.astype(x.dtype)


def _gelu(name: str, x: jax.Array) -> jax.Array:
    match name:
        case "silu":
            return jax.nn.silu(x)
        case "gelu_tanh":
            return jax.nn.gelu(x)
        case _:
            half = 0.5 * x
            scaled = x * 2**-0.5
            return half * (1 + jax.lax.erf(scaled))


@activation.defjvp
def _activation_jvp(name: str, primals, tangents):
    (x,) = primals
    (d_x,) = tangents

    @saving_only_inputs
    def derivative(x, d_x):
        """The derivative of the activation at x times d_x, in the type of x."""
        # In the backward pass the barrier holds the gradient in the type of x. Without it the
        # gradient is in memory in float32.
        d_x = jax.lax.optimization_barrier(d_x)
        precise = jnp.promote_types(x.dtype, jnp.float32)
        precise_x = x.astype(precise)
        precise_d_x = d_x.astype(precise)
        gelu = functools.partial(_gelu, name)
        _, d_y = jax.jvp(gelu, (precise_x,), (precise_d_x,))
        return d_y.astype(x.dtype)

    y = activation(name, x)
    d_y = derivative(x, d_x)
    return y, d_y


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelMLPSpec(BlockSpec):
    """Options of the MLP over channels."""

    d_ffn: int = option(
        768, "width inside the MLP over channels", SIZE, architecture=True, scaled=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenMLPSpec(ChannelMLPSpec):
    """Options of both MLPs."""

    d_spatial: int = option(64, "width inside the MLP over tokens", SIZE, architecture=True)


class ChannelMLP(nnx.Module):
    """Two linear layers on the channels of each token, d_model to d_ffn to d_model, with the
    activation between."""

    def __init__(self, spec: ChannelMLPSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(
            spec,
            spec.d_model,
            spec.d_ffn,
            rngs,
            sharding=(FSDP, TENSOR),
            activation=spec.activation,
            bias=spec.biases,
        )
        self.proj_out = Linear(
            spec, spec.d_ffn, spec.d_model, rngs, sharding=(TENSOR, FSDP), bias=spec.biases
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        hidden = self.proj_in(x)
        return self.proj_out(hidden)


class GatedMLP(nnx.Module):
    """Two linear layers from d_model to d_ffn, the product of one, behind the activation, and the
    other, and a linear layer back (Shazeer, arXiv 2002.05202).

    Args:
        activation: of the gate: that of the spec in GeGLU, `silu` in SwiGLU.
    """

    def __init__(self, spec: ChannelMLPSpec, rngs: nnx.Rngs, activation: str):
        width = spec.d_ffn
        wide = (FSDP, TENSOR)
        biases = spec.biases
        self.gate = Linear(
            spec, spec.d_model, width, rngs, sharding=wide, activation=activation, bias=biases
        )
        self.proj_in = Linear(spec, spec.d_model, width, rngs, sharding=wide, bias=biases)
        self.proj_out = Linear(
            spec, width, spec.d_model, rngs, sharding=(TENSOR, FSDP), bias=biases
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to the same."""
        gate = self.gate(x)
        hidden = gate * self.proj_in(x)
        return self.proj_out(hidden)


def check_tokens(x: jax.Array, tokens: int) -> None:
    """Raises ValueError unless x [batch, tokens, channels] has the number of tokens that a layer
    was made for."""
    if x.shape[-2] != tokens:
        raise ValueError(
            f"the layer over tokens was made for exactly {tokens} tokens "
            f"and was given {x.shape[-2]}"
        )


class TokenLinear(nnx.Module):
    """W Z + b over the token axis, the same for all channels: `weight` [out, in], Glorot-uniform,
    and `bias` [out].

    `resize` says which of the weight's two axes are the n tokens. They are not sharded, as n is
    seldom divisible.
    """

    def __init__(
        self, spec: BlockSpec, tokens_in: int, tokens_out: int, rngs: nnx.Rngs, resize: OverPatches
    ):
        init = nnx.initializers.glorot_uniform()
        shape = (tokens_out, tokens_in)
        weight = init(rngs.params(), shape, spec.param_dtype)
        output_axis = FSDP
        bias_resize = None
        if resize.outputs:
            output_axis = None
            bias_resize = OverPatches(outputs=-1)
        input_axis = None if resize.inputs else FSDP
        self.weight = parameter(weight, sharding=(output_axis, input_axis), resize=resize)
        bias = jnp.zeros((tokens_out,), spec.param_dtype)
        self.bias = parameter(bias, decayed=False, resize=bias_resize)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, in, channels] to [batch, out, channels] in the type of x; ValueError for another
        number of tokens."""
        _, tokens = self.weight.shape
        check_tokens(x, tokens)
        weight = self.weight[...].astype(x.dtype)
        mixed = over_tokens(weight, x)  # [batch, out, channels]
        return add_bias(mixed, self.bias[:, None])


class TokenMLP(nnx.Module):
    """Two linear layers on the tokens of each channel, n to d_spatial to n, with the activation
    between."""

    def __init__(self, spec: TokenMLPSpec, rngs: nnx.Rngs):
        over_inputs = OverPatches(inputs=-1)
        over_outputs = OverPatches(outputs=-2)
        self.proj_in = TokenLinear(spec, spec.length, spec.d_spatial, rngs, over_inputs)
        self.proj_out = TokenLinear(spec, spec.d_spatial, spec.length, rngs, over_outputs)
        self.activation = spec.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, n, channels] to the same; ValueError for another number of tokens."""
        hidden = self.proj_in(x)  # [batch, d_spatial, channels]
        hidden = activation(self.activation, hidden)
        return self.proj_out(hidden)


class DecodeCache:
    """What one layer stores of up to n tokens, so that a causal model continues a text without
    reading its earlier tokens again: keys and values of attention, inputs of a spatial projection,
    states of a recurrence.

    Attributes:
        arrays: by name, with the tokens along an axis of n, or states without such an axis; empty
            before the first token.
        first: position of the first token of this call, from 0. All positions of the call lie below
            n.
        text: number of the tokens of this call that are not padding; None if all are.
    """

    def __init__(
        self,
        arrays: Mapping[str, jax.Array],
        first: jax.Array,
        length: int,
        text: jax.Array | None = None,
    ):
        self.arrays = dict(arrays)
        self.first = first
        self.length = length
        self.text = text

    def update(self, name: str, values: jax.Array, axis: int = 1) -> jax.Array:
        """Stores values of the tokens of this call, and returns those of all n positions.

        Later positions hold zeros, or values of padding: no causal output depends on them.

        Args:
            name: name of the values, unique within a layer.
            values: the tokens of this call along `axis`, which is not negative.
        """
        stored = self.arrays.get(name)
        if stored is None:
            shape = list(values.shape)
            shape[axis] = self.length
            stored = jnp.zeros(shape, values.dtype)
        updated = jax.lax.dynamic_update_slice_in_dim(stored, values, self.first, axis)
        self.arrays[name] = updated
        return updated

    def state(self, name: str, initial: jax.Array) -> jax.Array:
        """The state of a recurrence after the tokens before this call; `initial` before the first
        token."""
        return self.arrays.get(name, initial)

    def store(self, name: str, state: jax.Array) -> None:
        """Stores the state after the last token of this call that is not padding (`count`)."""
        self.arrays[name] = state

    def count(self, tokens: int) -> jax.Array | int:
        """How many of the tokens of this call are not padding; padding follows them."""
        return tokens if self.text is None else self.text
