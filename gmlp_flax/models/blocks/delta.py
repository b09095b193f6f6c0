"""The gated delta rule (Gated DeltaNet, arXiv 2412.06464), causal or in both directions."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models import depthwise
from gmlp_flax.models.attention.spec import HeadsSpec
from gmlp_flax.models.blocks.base import PreNormBlock
from gmlp_flax.models.layers import DecodeCache, LayerRng, Linear, rms_norm
from gmlp_flax.models.padding import documents_of, zero_padding
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.recurrences import delta_rule
from gmlp_flax.models.recurrences.steps import step_bias
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import ABOVE_0, SIZE, option

# As drawn in flash-linear-attention: the decay's rate A uniform, the step log-uniform.
LARGEST_RATE = 16.0
STEPS = (1e-3, 0.1)
NORM_EPS = 1e-6  # of the l2 norm of queries and keys


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaSpec(HeadsSpec, AnyLengthSpec):
    """Options of the gated delta rule."""

    heads: int = option(4, "heads, each with a state of its own", SIZE, architecture=True)
    expand_k: float = option(
        0.75,
        "channels of the queries, and of the keys, for each of d_model",
        ABOVE_0,
        architecture=True,
    )
    expand_v: float = option(
        1.5, "channels of the values for each of d_model", ABOVE_0, architecture=True
    )
    short_kernel: int = option(
        4, "tokens that the short convolution reads", SIZE, architecture=True
    )
    chunk: int = option(64, "tokens that are read at once, a power of two", SIZE, may_change=True)

    def check(self) -> None:
        """Raises ValueError for a chunk that is not a power of two, and if a head has no channels."""
        super().check()
        if self.chunk & (self.chunk - 1):
            raise ValueError(f"model.chunk is {self.chunk}: expected a power of two, such as 64")
        for name, channels in (("expand_k", self.key_size), ("expand_v", self.value_size)):
            if channels == 0:
                raise ValueError(
                    f"model.{name} is {getattr(self, name)}, which leaves a head of {self.heads} "
                    "no channels: increase it, or set fewer model.heads"
                )

    @property
    def key_size(self) -> int:
        """Channels of a head's queries and keys."""
        width = self.expand_k * self.d_model
        return round(width / self.heads)

    @property
    def value_size(self) -> int:
        """Channels of a head's values."""
        width = self.expand_v * self.d_model
        return round(width / self.heads)

    @property
    def projected(self) -> int:
        """Channels of the queries, keys and values of all heads."""
        of_head = 2 * self.key_size + self.value_size
        return self.heads * of_head

    @property
    def directions(self) -> int:
        """1 for a causal block, otherwise 2."""
        return 1 if self.causal else 2


class SiluConvolution(nnx.Module):
    """silu(sum_j kernel[j] x[t - j]), a causal depthwise convolution without a bias: `kernel` [width,
    channels], whose first entry is that of the token itself. Zeros precede the first token."""

    def __init__(self, spec: DeltaSpec, channels: int, rngs: nnx.Rngs):
        width = spec.short_kernel
        kernel = depthwise.uniform_kernel(rngs.params(), width, channels, spec.param_dtype)
        self.kernel = parameter(kernel, sharding=(None, FSDP))

    def __call__(
        self,
        x: Array,
        documents: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[batch, tokens, channels] to the same. `documents` as in `depthwise.convolve`; with a cache
        there is one document."""
        by_lag = self.kernel[...]
        kernel = jnp.flip(by_lag, axis=0)  # the largest lag first
        past = len(kernel) - 1
        if cache is None:
            mixed = depthwise.convolve(x, kernel, past, documents)
        else:
            whole = cache.with_earlier("convolution", x, past)
            mixed = depthwise.convolve_valid(whole, kernel)
        return jax.nn.silu(mixed)


class Direction(nnx.Module):
    """The gated delta rule from the first token to the last: short convolutions, the decay and the
    strength of a write, and the rule.

    For each head, b = sigmoid(W_b x), and a = exp(-exp(`a_log`) softplus(W_a x + `dt_bias`)).
    """

    def __init__(self, spec: DeltaSpec, rngs: nnx.Rngs):
        self.convolution = SiluConvolution(spec, spec.projected, rngs)
        self.gates = Linear(spec, spec.d_model, 2 * spec.heads, rngs, bias=False)
        dtype = spec.param_dtype
        shape = (spec.heads,)
        smallest = jnp.finfo(jnp.float32).tiny  # above 0, which has no logarithm
        rates = jax.random.uniform(rngs.params(), shape, dtype, smallest, LARGEST_RATE)
        log_rates = jnp.log(rates)
        self.a_log = parameter(log_rates, decayed=False)
        bias = step_bias(rngs.params(), shape, dtype, STEPS)
        self.dt_bias = parameter(bias, decayed=False)
        self.spec = spec

    def __call__(
        self,
        x: Array,
        qkv: Array,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """x [batch, tokens, d_model] and the projections of queries, keys and values [batch,
        tokens, channels] to [batch, tokens, heads, d] in the precise type. Padding leaves the state
        as it is; arguments as in `Block`."""
        documents = documents_of(padding_mask)
        visible = zero_padding(qkv, padding_mask)
        convolved = self.convolution(visible, documents, cache)
        inputs = self._inputs(x, convolved)
        if cache is not None:
            return self._extend(inputs, cache)
        inputs = _skip_padding(inputs, padding_mask)
        mixed, _ = delta_rule.delta_rule(inputs, self.spec.chunk, documents=documents)
        return mixed

    def _extend(self, inputs: delta_rule.Inputs, cache: DecodeCache) -> Array:
        """The rule for further tokens of a text, whose state is kept in the cache."""
        tokens = inputs.keys.shape[1]
        positions = jnp.arange(tokens)
        is_text = positions < cache.count(tokens)
        fresh_state = delta_rule.first_state(inputs)
        state = cache.state("state", fresh_state)
        padding_mask = is_text[None]
        inputs = _skip_padding(inputs, padding_mask)
        mixed, state = delta_rule.delta_rule(inputs, self.spec.chunk, state)
        cache.store("state", state)
        return mixed

    def _inputs(self, x: Array, qkv: Array) -> delta_rule.Inputs:
        """What the rule reads, in the precise type. Queries and keys have unit length, and queries
        are divided by sqrt(channels of a head)."""
        spec = self.spec
        precise = spec.precise_dtype
        batch, tokens, _ = x.shape
        keys_end = 2 * spec.heads * spec.key_size
        queries_and_keys = qkv[..., :keys_end]
        queries_and_keys = queries_and_keys.astype(precise)
        by_head = queries_and_keys.reshape(batch, tokens, 2, spec.heads, spec.key_size)
        unit = _of_unit_length(by_head)
        values = qkv[..., keys_end:]
        values = values.astype(precise)
        gates = self.gates(x)  # [batch, tokens, 2 heads]
        gates = gates.astype(precise)
        decay_gate, write_gate = jnp.split(gates, 2, axis=-1)
        log_rate = self.a_log[...]
        rate = jnp.exp(log_rate)
        biased_gate = decay_gate + self.dt_bias[...]
        step = jax.nn.softplus(biased_gate)
        scale = spec.key_size**-0.5
        queries = unit[:, :, 0] * scale
        keys = unit[:, :, 1]
        values = values.reshape(batch, tokens, spec.heads, spec.value_size)
        log_decay = -rate * step
        beta = jax.nn.sigmoid(write_gate)
        return delta_rule.Inputs(queries, keys, values, log_decay, beta)


def _skip_padding(inputs: delta_rule.Inputs, padding_mask: Array | None) -> delta_rule.Inputs:
    """Inputs whose padding leaves the state unchanged; `padding_mask` as in `Block`, [batch or 1,
    tokens]."""
    beta = zero_padding(inputs.beta, padding_mask)
    log_decay = zero_padding(inputs.log_decay, padding_mask)
    return inputs._replace(beta=beta, log_decay=log_decay)


def _of_unit_length(x: Array) -> Array:
    """x [..., channels] divided by its length, the root of the sum of its squares."""
    squares = jnp.square(x)
    square_of_length = squares.sum(-1, keepdims=True)
    inverse_length = jax.lax.rsqrt(square_of_length + NORM_EPS)
    return x * inverse_length


class DeltaMixer(nnx.Module):
    """W_o (rms_norm(o) * silu(W_g x)), with o the sum of the directions and a norm for each head.

    Both directions read the same queries, keys and values. Each has its own short convolutions and
    gates, 0.5 % of the parameters: if they shared these, a model could not tell left from right.
    """

    def __init__(self, spec: DeltaSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        width = spec.heads * spec.value_size
        self.proj_in = Linear(spec, d_model, spec.projected, rngs, bias=False)
        self.forward = Direction(spec, rngs)
        if spec.causal:
            self.backward = None
        else:
            self.backward = Direction(spec, rngs)
        self.gate = Linear(spec, d_model, width, rngs, activation="silu", bias=False)
        ones = jnp.ones((spec.value_size,), spec.param_dtype)
        self.norm_scale = parameter(ones, decayed=False)
        self.out = Linear(spec, width, d_model, rngs, sharding=(None, FSDP), bias=False)
        self.eps = spec.norm_eps

    def __call__(
        self,
        x: Array,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same; arguments as in `Block`."""
        qkv = self.proj_in(x)
        mixed = self.forward(x, qkv, padding_mask, cache)  # [batch, tokens, heads, d]
        if self.backward is not None:
            reversed_mask = None if padding_mask is None else jnp.flip(padding_mask, axis=1)
            reversed_x = jnp.flip(x, axis=1)
            reversed_qkv = jnp.flip(qkv, axis=1)
            reversed_mixed = self.backward(reversed_x, reversed_qkv, reversed_mask)
            mixed = mixed + jnp.flip(reversed_mixed, axis=1)
        normed = rms_norm(mixed, self.norm_scale[...], self.eps, x.dtype)
        channels = jax.lax.collapse(normed, 2)
        gated = channels * self.gate(x)
        return self.out(gated)


class DeltaBlock(PreNormBlock):
    """x + delta(norm(x)), then x + mlp(norm(x)).

    The published model is causal. Here a block that is not causal adds the outputs of two passes,
    one of them from the last token to the first.
    """

    Spec = DeltaSpec
    hides_padding = True
    masks_documents = True
    can_be_causal = True

    def __init__(self, spec: DeltaSpec, rngs: nnx.Rngs):
        self.delta = DeltaMixer(spec, rngs)
        super().__init__(spec, rngs)

    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """See `PreNormBlock`."""
        return self.delta(x, padding_mask, cache)
