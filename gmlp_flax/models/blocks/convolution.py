"""Convolutions in place of attention (arXiv 2105.03322): lightweight or dynamic, with widths and
dilations by layer."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from flax import nnx

from gmlp_flax.models.attention import HeadsSpec, WeightDropoutSpec
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    LayerNorm,
    LayerRng,
    Linear,
    add_branch,
    dropout,
)
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import option


def convolve(
    x: jax.Array, kernel: jax.Array, dilation: int = 1, documents: jax.Array | None = None
) -> jax.Array:
    """y[i] = sum_j kernel[j] x[i + dilation (j - (width - 1) // 2)], with zeros beyond the first
    and last token.

    Args:
        x: [batch, tokens, heads, c], the shape of y; a head's channels share its kernel.
        kernel: [heads, width], or [batch, tokens or 1, heads, width] for a different kernel at each
            output or example.
        dilation: distance between neighbouring tokens that a kernel reads.
        documents: int [batch, tokens], from 1, the document of each token; those of another one
            count as zeros. None if there is one.
    """
    width = kernel.shape[-1]
    tokens = x.shape[1]
    before = dilation * ((width - 1) // 2)
    after = dilation * (width // 2)
    padded = jnp.pad(x, ((0, 0), (before, after), (0, 0), (0, 0)))
    padded_documents = None
    if documents is not None:
        padded_documents = jnp.pad(documents, ((0, 0), (before, after)))
    shifted = []
    for entry in range(width):
        start = dilation * entry
        stop = start + tokens
        neighbours = padded[:, start:stop]
        if padded_documents is not None:
            is_own = padded_documents[:, start:stop] == documents
            neighbours = jnp.where(is_own[..., None, None], neighbours, jnp.zeros_like(neighbours))
        shifted.append(neighbours)
    total = kernel[..., 0, None] * shifted[0]
    for entry in range(1, width):
        total = total + kernel[..., entry, None] * shifted[entry]
    return total


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionSpec(HeadsSpec, WeightDropoutSpec, AnyLengthSpec):
    """Options of the convolutions."""

    convolution: str = option(
        "lightweight",
        "each head's kernel is learned (lightweight), or made from the token (dynamic)",
        ("lightweight", "dynamic"),
        architecture=True,
    )
    kernel_widths: tuple[int, ...] = option(
        (7,),
        "tokens that a kernel reads: one number for all layers, or one for each",
        architecture=True,
    )
    dilations: tuple[int, ...] = option(
        (1,),
        "distance between these tokens: one number for all layers, or one for each",
        architecture=True,
    )

    def check(self) -> None:
        """Raises ValueError for lists of a wrong length, for numbers below 1, and for kernels wider
        than the tokens."""
        super().check()
        for name, given in (("kernel_widths", self.kernel_widths), ("dilations", self.dilations)):
            if min(given) < 1 or len(given) not in (1, self.layers):
                expected = f"expected one number from 1 for all layers, or {self.layers} of them"
                raise ValueError(f"model.{name} is {given}: {expected}")
        for width, dilation in self.kernels:
            if dilation * (width // 2) >= self.length:
                widest = 2 * ((self.length - 1) // dilation) + 1  # every entry reads some token
                raise ValueError(
                    f"model.kernel_widths has {width} (dilation {dilation}), too wide for {self.length} tokens: "
                    f"expected at most {widest}"
                )

    @property
    def kernels(self) -> list[tuple[int, int]]:
        """The width and the dilation of each layer."""
        by_layer = (
            given * self.layers if len(given) == 1 else given
            for given in (self.kernel_widths, self.dilations)
        )
        return list(zip(*by_layer, strict=True))


class LightweightKernel(nnx.Module):
    """softmax(`logits`) [heads, width], the same for every input; logits are Glorot-uniform at the
    start."""

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        width = spec.kernel_widths[0]
        logits = nnx.initializers.glorot_uniform()(
            rngs.params(), (spec.heads, width), spec.param_dtype
        )
        self.logits = parameter(logits, decayed=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [heads, width]."""
        return jax.nn.softmax(self.logits[...])


class DynamicKernel(nnx.Module):
    """A softmax of a linear layer of each token."""

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        self.proj = Linear(spec, spec.d_model, spec.heads * spec.kernel_widths[0], rngs)
        self.heads = spec.heads
        self.precise_dtype = spec.precise_dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, tokens, d_model] to [batch, tokens, heads, width]."""
        logits = self.proj(x).reshape(*x.shape[:2], self.heads, -1)
        return jax.nn.softmax(logits.astype(self.precise_dtype))


class Convolution(nnx.Module):
    """out(convolve(GLU(x))); GLU is one half of a projection times the sigmoid of the other half.

    In training the kernels, as they leave the softmax, have dropout (DropConnect; fairseq's
    `weight_dropout`): drawn for each example, and for each of its tokens if kernels are dynamic.
    """

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        self.proj_in = Linear(spec, spec.d_model, 2 * spec.d_model, rngs, parts=2)
        kernel = LightweightKernel if spec.convolution == "lightweight" else DynamicKernel
        self.kernel = kernel(spec, rngs)
        self.out = Linear(spec, spec.d_model, spec.d_model, rngs, sharding=(None, FSDP))
        self.heads = spec.heads
        self.dilation = spec.dilations[0]
        self.rate = spec.attention_dropout

    def __call__(
        self,
        x: jax.Array,
        dropout_keys: jax.Array | None = None,
        padding_mask: jax.Array | None = None,
    ) -> jax.Array:
        """[batch, tokens, d_model] to the same. `dropout_keys` [batch] are for dropout on the
        kernels. Padding counts as zeros; `padding_mask` as in `Block`."""
        gated = jax.nn.glu(self.proj_in(x))
        documents = None
        if padding_mask is not None:
            is_text = padding_mask > 0
            gated = jnp.where(is_text[..., None], gated, jnp.zeros_like(gated))
            if padding_mask.dtype != jnp.bool_:
                documents = padding_mask
        kernel = self.kernel(gated)
        if dropout_keys is not None and self.rate:
            if kernel.ndim == 2:  # one for all examples
                kernel = jnp.broadcast_to(kernel, (len(x), 1, *kernel.shape))
            kernel = dropout(kernel, self.rate, dropout_keys)
        by_head = gated.reshape(*x.shape[:2], self.heads, -1)
        convolved = convolve(by_head, kernel, self.dilation, documents)
        return self.out(convolved.astype(x.dtype).reshape(x.shape))


class ConvolutionBlock(Block):
    """x + convolution(norm(x)), then x + mlp(norm(x))."""

    Spec = ConvolutionSpec
    hides_padding = True
    masks_documents = True

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        self.mixing_norm = LayerNorm(spec, spec.d_model)
        self.convolution = Convolution(spec, rngs)
        self.mlp_norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(
        self, x: jax.Array, rng: LayerRng = EVALUATION, padding_mask: jax.Array | None = None
    ) -> jax.Array:
        """See `Block`."""
        x = add_branch(
            x, self.convolution(self.mixing_norm(x), rng.mixing_keys, padding_mask), rng, 0
        )
        return add_branch(x, self.mlp(self.mlp_norm(x)), rng, 1)

    @classmethod
    def stack_specs(cls, spec: ConvolutionSpec) -> tuple[ConvolutionSpec, ...]:
        """See `Block`: one stack for each run of layers with equal kernels."""
        return tuple(
            dataclasses.replace(
                spec, kernel_widths=(width,), dilations=(dilation,), layers=len(list(run))
            )
            for (width, dilation), run in itertools.groupby(spec.kernels)
        )
