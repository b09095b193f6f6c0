"""The Synthesizer (arXiv 2005.00743): attention whose logits do not come from products of queries
and keys."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.attention import HeadsSpec, WeightDropoutSpec, dot_products, hide_padding, mix
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import EVALUATION, ChannelMLP, LayerNorm, LayerRng, Linear, add_branch
from gmlp_flax.models.parameters import Resize, parameter, token_logits
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.options import ABOVE_0, AT_LEAST_0, SIZE, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class SynthesizerSpec(HeadsSpec, WeightDropoutSpec):
    """Options of the Synthesizer."""

    synthesizer: str = option(
        "random",
        "what makes the logits: random, fixed_random, factorized_random, dense, factorized_dense, attention; "
        "or a mixture of several, as in random+attention",
        architecture=True,
    )
    rank: int = option(
        8, "rank of factorised random logits (the paper's k)", SIZE, architecture=True
    )
    dense_factor: int = option(
        0,
        "the first factor of n in factorised dense logits (the paper's a); 0: the largest up to the root of n",
        AT_LEAST_0,
        architecture=True,
    )
    random_std: float = option(1.0, "standard deviation of random logits at the start", ABOVE_0)

    def check(self) -> None:
        """Raises ValueError for unknown, missing or repeated logits, and for a factor that does not
        divide n."""
        super().check()
        given = f"model.synthesizer is {self.synthesizer!r}"
        if unknown := [part for part in self.parts if part not in LOGITS]:
            raise ValueError(
                f"{given}: {unknown[0]!r} is none of {', '.join(LOGITS)}; a mixture joins them by +"
            )
        if len(set(self.parts)) < len(self.parts):
            raise ValueError(f"{given}: expected each kind of logits once")
        if self.dense_factor and self.length % self.dense_factor:
            raise ValueError(
                f"model.dense_factor is {self.dense_factor}: it must divide the {self.length} tokens"
            )

    def supports_length(self, tokens: int) -> bool:
        """At most n tokens; any number if the logits come from content alone and there are no
        learned positions."""
        return tokens <= self.length or (self.parts == ("attention",) and self.positions == "none")

    @property
    def parts(self) -> tuple[str, ...]:
        """The kinds of logits that are mixed."""
        return tuple(self.synthesizer.split("+"))

    @property
    def factors(self) -> tuple[int, int]:
        """The paper's a and b, whose product is n."""
        n = self.length
        first = self.dense_factor or max(a for a in range(1, math.isqrt(n) + 1) if n % a == 0)
        return first, n // first


class RandomLogits(nnx.Module):
    """R, the same for every input: `logits` [heads, n, n]. Unless it is `trained`, its gradient is
    0."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs, trained: bool = True):
        draw = nnx.initializers.normal(spec.random_std)
        value = draw(rngs.params(), (spec.heads, spec.length, spec.length), spec.param_dtype)
        self.logits = parameter(value, decayed=False, resize=token_logits(-2, -1))
        self.trained = trained

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [heads, tokens, tokens]."""
        tokens = x.shape[1]
        logits = self.logits[...] if self.trained else jax.lax.stop_gradient(self.logits[...])
        return logits[:, :tokens, :tokens]


class FactorizedRandomLogits(nnx.Module):
    """R1 R2^T, the same for every input: `rows` and `columns`, each [heads, n, rank]."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        draw = nnx.initializers.normal((spec.random_std / spec.rank**0.5) ** 0.5)
        shape = (spec.heads, spec.length, spec.rank)
        metadata = {"decayed": False, "resize": token_logits(-2)}
        self.rows = parameter(draw(rngs.params(), shape, spec.param_dtype), **metadata)
        self.columns = parameter(draw(rngs.params(), shape, spec.param_dtype), **metadata)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [heads, tokens, tokens]."""
        tokens = x.shape[1]
        return jnp.einsum("hik,hjk->hij", self.rows[...][:, :tokens], self.columns[...][:, :tokens])


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
        shape = (spec.heads, spec.d_model // spec.heads, outputs)
        self.weight = parameter(init(rngs.params(), shape, spec.param_dtype), resize=resize)
        self.bias = parameter(
            jnp.zeros((spec.heads, outputs), spec.param_dtype), decayed=False, resize=resize
        )

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, out] in the type of the bias."""
        weight = self.weight[...]
        bias = self.bias[...]
        # Heads first: a CPU has no product of bfloat16 in float32 whose batch axis is in the
        # middle.
        heads = hidden.reshape(*hidden.shape[:2], *weight.shape[:2]).transpose(2, 0, 1, 3)
        heads = heads.reshape(weight.shape[0], -1, weight.shape[1])
        products = jnp.matmul(heads, weight.astype(hidden.dtype), preferred_element_type=bias.dtype)
        return (
            products.reshape(-1, *hidden.shape[:2], weight.shape[2]).swapaxes(0, 1) + bias[:, None]
        )


class DenseLogits(nnx.Module):
    """W2 relu(W1 x_i + b1) + b2 in R^n: W1 is shared by all heads, W2 acts on the channels of a
    head.

    The paper counts d^2 + d n parameters beside the biases, those of these two layers [recalled].
    """

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_model, rngs)
        self.proj_out = Heads(spec, spec.length, rngs, token_logits(-1))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, tokens]."""
        return self.proj_out(jax.nn.relu(self.proj_in(x)))[..., : x.shape[1]]


class FactorizedDenseLogits(nnx.Module):
    """The outer product of A(x_i) in R^a and C(x_i) in R^b, a b = n, after the first layer of
    `DenseLogits`."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, spec.d_model, rngs)
        self.first, self.second = (Heads(spec, factor, rngs) for factor in spec.factors)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, tokens]."""
        hidden = jax.nn.relu(self.proj_in(x))
        first = self.first(hidden)[..., :, None]
        second = self.second(hidden)[..., None, :]
        products = first * second
        return products.reshape(*products.shape[:3], -1)[..., : x.shape[1]]


class ContentLogits(nnx.Module):
    """q k^T / sqrt(d_model / heads), as in a Transformer."""

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, 2 * spec.d_model, rngs)
        self.spec = spec

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch, heads, tokens, tokens]."""
        q, k = (
            self.proj_in(x).reshape(*x.shape[:2], 2, self.spec.heads, -1).transpose(2, 0, 3, 1, 4)
        )
        return dot_products(q, k, self.spec)(0, x.shape[1])


LOGITS = {
    "random": RandomLogits, "fixed_random": functools.partial(RandomLogits, trained=False),
    "factorized_random": FactorizedRandomLogits, "dense": DenseLogits, "factorized_dense": FactorizedDenseLogits,
    "attention": ContentLogits,
}  # fmt: skip


class SyntheticAttention(nnx.Module):
    """softmax(B) V in each head; the heads, concatenated, through a projection. The options choose
    the logits B.

    A mixture has a parameter `weights`, one per part, whose softmax weighs the logits; all start
    equal.
    """

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        for part in spec.parts:
            setattr(self, part, LOGITS[part](spec, rngs))
        mixed = len(spec.parts) > 1
        self.weights = (
            parameter(jnp.zeros((len(spec.parts),), spec.param_dtype), decayed=False)
            if mixed
            else None
        )
        self.values = Linear(spec, spec.d_model, spec.d_model, rngs)
        self.out = Linear(spec, spec.d_model, spec.d_model, rngs, sharding=(None, FSDP))
        self.spec = spec

    def scores(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to logits [batch or 1, heads, tokens, tokens]; ValueError for
        more tokens than n, if the logits have parameters for each token."""
        tokens = x.shape[1]
        if not self.spec.supports_length(tokens):
            kind = self.spec.synthesizer
            most = self.spec.length
            raise ValueError(
                f"the logits ({kind}) were made for at most {most} tokens and were given {tokens}"
            )
        logits = [getattr(self, part)(x) for part in self.spec.parts]
        if self.weights is not None:
            shares = jax.nn.softmax(self.weights[...])
            logits = [share * part for share, part in zip(shares, logits, strict=True)]
        mixed = functools.reduce(jnp.add, logits)
        return mixed.reshape(-1, *mixed.shape[-3:])

    def __call__(
        self,
        x: jax.Array,
        dropout_keys: jax.Array | None = None,
        padding_mask: jax.Array | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same; other arguments as in `MultiHeadAttention`."""
        values = self.values(x).reshape(*x.shape[:2], self.spec.heads, -1).swapaxes(1, 2)
        scores = hide_padding(self.scores(x), padding_mask, heads=True)
        return self.out(
            mix(scores, values, self.spec.attention_dropout, dropout_keys)
            .swapaxes(1, 2)
            .reshape(x.shape)
        )


class SynthesizerBlock(Block):
    """x + synthesized(norm(x)), then x + mlp(norm(x))."""

    Spec = SynthesizerSpec
    hides_padding = True
    masks_documents = True

    def __init__(self, spec: SynthesizerSpec, rngs: nnx.Rngs):
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.synthesizer = SyntheticAttention(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: jax.Array, rng: LayerRng = EVALUATION, padding_mask: jax.Array | None = None
    ) -> jax.Array:
        """See `Block`."""
        x = add_branch(
            x, self.synthesizer(self.mixing_norm(x), rng.mixing_keys, padding_mask), rng, 0
        )
        return add_branch(x, self.mlp(self.mlp_norm(x)), rng, 1)

    def attention_scores(self, x: jax.Array) -> jax.Array:
        """See `Block`."""
        return self.synthesizer.scores(self.mixing_norm(x))
