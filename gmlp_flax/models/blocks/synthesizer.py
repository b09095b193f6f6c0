"""The Synthesizer (arXiv 2005.00743): attention whose logits do not come from products of queries
and keys."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.attention.dot_product import dot_products, hide_padding, mix
from gmlp_flax.models.attention.spec import HeadsSpec, WeightDropoutSpec
from gmlp_flax.models.blocks.base import PreNormBlock
from gmlp_flax.models.layers import DecodeCache, LayerRng, Linear
from gmlp_flax.models.parameters import Resize, parameter, token_logits
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.options import ABOVE_0, AT_LEAST_0, SIZE, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesizerSpec(HeadsSpec, WeightDropoutSpec):
    """Options of the Synthesizer."""

    synthesizer: str = option(
        "random",
        "what makes the logits: random, fixed_random, factorized_random, dense, factorized_dense, "
        "attention; or a mixture of several, as in random+attention",
        architecture=True,
    )
    rank: int = option(
        8, "rank of factorized random logits (the paper's k)", SIZE, architecture=True
    )
    dense_factor: int = option(
        0,
        "the first factor of n in factorized dense logits (the paper's a); "
        "0: the largest up to the root of n",
        AT_LEAST_0,
        architecture=True,
    )
    random_std: float = option(1.0, "standard deviation of random logits at the start", ABOVE_0)

    def check(self) -> None:
        """Raises ValueError for unknown, missing or repeated logits, and for a factor that does not
        divide n."""
        super().check()
        value = f"model.synthesizer is {self.synthesizer!r}"
        for part in self.parts:
            if part not in LOGITS:
                raise ValueError(
                    f"{value}: {part!r} is not one of {', '.join(LOGITS)}; a mixture joins them by +"
                )
        if len(set(self.parts)) < len(self.parts):
            raise ValueError(f"{value}: expected each kind of logits once")
        if self.dense_factor and self.length % self.dense_factor:
            raise ValueError(
                f"model.dense_factor is {self.dense_factor}: "
                f"it must divide the {self.length} tokens"
            )

    def supports_length(self, tokens: int) -> bool:
        """At most n tokens; any number if the logits come from content alone and there are no
        learned positions."""
        if tokens <= self.length:
            return True
        is_from_content = self.parts == ("attention",)
        return is_from_content and self.positions == "none"

    @property
    def parts(self) -> tuple[str, ...]:
        """The kinds of logits that are mixed."""
        parts = self.synthesizer.split("+")
        return tuple(parts)

    @property
    def factors(self) -> tuple[int, int]:
        """The paper's a and b, whose product is n."""
        n = self.length
        a = self.dense_factor or _largest_factor_up_to_root(n)
        b = n // a
        return a, b


def _largest_factor_up_to_root(n: int) -> int:
    factor = math.isqrt(n)
    while n % factor:
        factor -= 1
    return factor


class RandomLogits(nnx.Module):
    """R, the same for every input: `logits` [heads, n, n]. Unless they are `trained`, their gradient
    is 0."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs, trained: bool = True):
        n = spec.length
        shape = (spec.heads, n, n)
        init = nnx.initializers.normal(spec.random_std)
        logits = init(rngs.params(), shape, spec.param_dtype)
        resize = token_logits(-2, -1)
        self.logits = parameter(logits, decayed=False, resize=resize)
        self.trained = trained

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [heads, tokens, tokens]."""
        tokens = x.shape[1]
        logits = self.logits[...]
        if not self.trained:
            logits = jax.lax.stop_gradient(logits)
        return logits[:, :tokens, :tokens]


class FactorizedRandomLogits(nnx.Module):
    """R1 R2^T, the same for every input: `rows` (R1) and `columns` (R2), each [heads, n, rank]."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        # a product of two such factors, summed over the rank, has a deviation of random_std
        std_of_product = spec.random_std / spec.rank**0.5
        std = std_of_product**0.5
        init = nnx.initializers.normal(std)
        shape = (spec.heads, spec.length, spec.rank)
        resize = token_logits(-2)
        rows = init(rngs.params(), shape, spec.param_dtype)
        self.rows = parameter(rows, decayed=False, resize=resize)
        columns = init(rngs.params(), shape, spec.param_dtype)
        self.columns = parameter(columns, decayed=False, resize=resize)

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [heads, tokens, tokens]."""
        tokens = x.shape[1]
        rows = self.rows[:, :tokens]  # [heads, tokens, rank]
        columns = self.columns[:, :tokens]
        return jnp.einsum("hik,hjk->hij", rows, columns)


class Heads(nnx.Module):
    """A linear layer for each head: `weight` [heads, d_model / heads, out], `bias` [heads, out].

    `resize` is metadata of both.
    """

    def __init__(
        self, spec: SynthesizerSpec, outputs: int, rngs: nnx.Rngs, resize: Resize | None = None
    ):
        init = nnx.initializers.variance_scaling(
            1.0, "fan_avg", "uniform", in_axis=-2, out_axis=-1, batch_axis=0
        )
        d = spec.d_model // spec.heads
        shape = (spec.heads, d, outputs)
        weight = init(rngs.params(), shape, spec.param_dtype)
        self.weight = parameter(weight, resize=resize)
        bias = jnp.zeros((spec.heads, outputs), spec.param_dtype)
        self.bias = parameter(bias, decayed=False, resize=resize)

    def __call__(self, hidden: Array) -> Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, out] in the type of the bias."""
        weight = self.weight[...]
        bias = self.bias[...]
        batch, tokens, _ = hidden.shape
        heads, d, outputs = weight.shape
        # Heads first: a CPU has no product of bfloat16 in float32 whose batch axis is in the
        # middle.
        by_token = hidden.reshape(batch, tokens, heads, d)
        by_head = by_token.transpose(2, 0, 1, 3)  # [heads, batch, tokens, d]
        rows = jax.lax.collapse(by_head, 1, 3)  # [heads, batch tokens, d]
        weight = weight.astype(hidden.dtype)
        products = jnp.matmul(rows, weight, preferred_element_type=bias.dtype)
        products = products.reshape(heads, batch, tokens, outputs)
        by_example = products.swapaxes(0, 1)  # [batch, heads, tokens, out]
        bias_of_rows = bias[:, None]  # [heads, 1, out]
        return by_example + bias_of_rows


class DenseLogits(nnx.Module):
    """W2 relu(W1 x_i + b1) + b2 in R^n: W1 is shared by all heads, W2 acts on the channels of a
    head.

    The paper counts d^2 + d n parameters besides the biases: those of these two layers [recalled].
    """

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_model, rngs)
        resize = token_logits(-1)
        self.proj_out = Heads(spec, spec.length, rngs, resize)

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, tokens]."""
        tokens = x.shape[1]
        projected = self.proj_in(x)
        hidden = jax.nn.relu(projected)
        logits = self.proj_out(hidden)  # [batch, heads, tokens, n]
        return logits[..., :tokens]


class FactorizedDenseLogits(nnx.Module):
    """The outer product of A(x_i) in R^a and C(x_i) in R^b, a b = n, after the first layer of
    `DenseLogits`."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_model, rngs)
        a, b = spec.factors
        self.first = Heads(spec, a, rngs)
        self.second = Heads(spec, b, rngs)

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, tokens]."""
        projected = self.proj_in(x)
        hidden = jax.nn.relu(projected)
        first = self.first(hidden)  # [batch, heads, tokens, a]
        rows = first[..., :, None]
        second = self.second(hidden)  # [batch, heads, tokens, b]
        columns = second[..., None, :]
        products = rows * columns
        tokens = products.shape[2]
        logits = jax.lax.collapse(products, 3)  # [batch, heads, tokens, n]
        return logits[..., :tokens]


class ContentLogits(nnx.Module):
    """q k^T / sqrt(d_model / heads), as in a Transformer."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, 2 * spec.d_model, rngs)
        self.spec = spec

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, tokens]."""
        batch, tokens, d_model = x.shape
        heads = self.spec.heads
        projected = self.proj_in(x)
        d = d_model // heads
        by_head = projected.reshape(batch, tokens, 2, heads, d)
        q, k = by_head.transpose(2, 0, 3, 1, 4)  # each [batch, heads, tokens, d]
        logits = dot_products(q, k, self.spec)
        return logits(0, tokens)


LOGITS = {
    "random": RandomLogits,
    "fixed_random": functools.partial(RandomLogits, trained=False),
    "factorized_random": FactorizedRandomLogits,
    "dense": DenseLogits,
    "factorized_dense": FactorizedDenseLogits,
    "attention": ContentLogits,
}


class SyntheticAttention(nnx.Module):
    """softmax(B) V in each head; the heads, concatenated, through a projection. The options choose
    the logits B.

    A mixture has a parameter `weights`, one per part, whose softmax weighs the logits; all start
    equal.
    """

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        for part in spec.parts:
            make_logits = LOGITS[part]
            setattr(self, part, make_logits(spec, rngs))
        count = len(spec.parts)
        if count > 1:
            weights = jnp.zeros((count,), spec.param_dtype)
            self.weights = parameter(weights, decayed=False)
        else:
            self.weights = None
        d_model = spec.d_model
        self.values = Linear(spec, d_model, d_model, rngs)
        self.out = Linear(spec, d_model, d_model, rngs, sharding=(None, FSDP))
        self.spec = spec

    def scores(self, x: Array) -> Array:
        """[batch, tokens, d_model] to logits [batch or 1, heads, tokens, tokens]; ValueError for
        more tokens than n, if the logits have parameters for each token."""
        tokens = x.shape[1]
        if not self.spec.supports_length(tokens):
            kind = self.spec.synthesizer
            most = self.spec.length
            raise ValueError(
                f"the logits ({kind}) were made for at most {most} tokens and were given {tokens}"
            )
        logits = []
        for part in self.spec.parts:
            make_logits = getattr(self, part)
            logits.append(make_logits(x))
        if self.weights is not None:
            shares = jax.nn.softmax(self.weights[...])
            logits = [share * part for share, part in zip(shares, logits, strict=True)]
        mixed = functools.reduce(jnp.add, logits)
        shape_of_example = mixed.shape[-3:]
        return mixed.reshape(-1, *shape_of_example)

    def __call__(
        self,
        x: Array,
        dropout_keys: Array | None = None,
        padding_mask: Array | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same; other arguments as in `MultiHeadAttention`."""
        batch, tokens, d_model = x.shape
        heads = self.spec.heads
        values = self.values(x)
        values = values.reshape(batch, tokens, heads, d_model // heads)
        values = values.swapaxes(1, 2)  # [batch, heads, tokens, d]
        scores = self.scores(x)
        scores = hide_padding(scores, padding_mask, heads=True)
        trained = self.spec.parts != ("fixed_random",)
        by_head = mix(scores, values, self.spec.attention_dropout, dropout_keys, trained)
        by_token = by_head.swapaxes(1, 2)  # [batch, tokens, heads, d]
        mixed = by_token.reshape(x.shape)
        return self.out(mixed)


class SynthesizerBlock(PreNormBlock):
    """x + synthesized(norm(x)), then x + mlp(norm(x))."""

    Spec = SynthesizerSpec
    hides_padding = True
    masks_documents = True

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.synthesizer = SyntheticAttention(spec, rngs)
        super().__init__(spec, rngs)

    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """See `PreNormBlock`."""
        return self.synthesizer(x, rng.mixing_keys, padding_mask)

    def attention_scores(self, x: Array) -> Array:
        """See `Block`."""
        normed = self.mixing_norm(x)
        return self.synthesizer.scores(normed)
