"""Convolutions in place of attention (arXiv 2105.03322): lightweight or dynamic, with widths and
dilations by layer."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models import depthwise
from gmlp_flax.models.attention.spec import HeadsSpec, WeightDropoutSpec
from gmlp_flax.models.blocks.base import PreNormBlock
from gmlp_flax.models.layers import DecodeCache, LayerRng, Linear, dropout
from gmlp_flax.models.padding import documents_of, zero_padding
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import option


def convolve(x: Array, kernel: Array, dilation: int = 1, documents: Array | None = None) -> Array:
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
    entries_before = (width - 1) // 2
    entries_after = width // 2
    before = dilation * entries_before
    after = dilation * entries_after
    padded = depthwise.pad_tokens(x, before, after, documents)
    shifted = []
    for entry in range(width):
        offset = dilation * entry - before
        shifted.append(padded.at(offset))
    weights = kernel[..., 0, None]  # [..., heads, 1]
    total = weights * shifted[0]
    for entry in range(1, width):
        weights = kernel[..., entry, None]
        term = weights * shifted[entry]
        total = total + term
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
        self._check_numbers("kernel_widths", self.kernel_widths)
        self._check_numbers("dilations", self.dilations)
        for width, dilation in self.kernels:
            if dilation * (width // 2) >= self.length:
                widest = 2 * ((self.length - 1) // dilation) + 1  # every entry reads some token
                raise ValueError(
                    f"model.kernel_widths has {width} (dilation {dilation}), too wide for "
                    f"{self.length} tokens: expected at most {widest}"
                )

    def _check_numbers(self, name: str, numbers: tuple[int, ...]) -> None:
        has_count = len(numbers) in (1, self.layers)
        if min(numbers) < 1 or not has_count:
            raise ValueError(
                f"model.{name} is {numbers}: "
                f"expected one number from 1 for all layers, or {self.layers} of them"
            )

    @property
    def kernels(self) -> list[tuple[int, int]]:
        """The width and the dilation of each layer."""
        widths = self._by_layer(self.kernel_widths)
        dilations = self._by_layer(self.dilations)
        pairs = zip(widths, dilations, strict=True)
        return list(pairs)

    def _by_layer(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        if len(numbers) == 1:
            return numbers * self.layers
        return numbers


class LightweightKernel(nnx.Module):
    """softmax(`logits`) [heads, width], the same for every input; logits are Glorot-uniform at the
    start."""

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        width = spec.kernel_widths[0]
        init = nnx.initializers.glorot_uniform()
        shape = (spec.heads, width)
        logits = init(rngs.params(), shape, spec.param_dtype)
        self.logits = parameter(logits, decayed=False)

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [heads, width]."""
        logits = self.logits[...]
        return jax.nn.softmax(logits)


class DynamicKernel(nnx.Module):
    """A softmax of a linear layer of each token."""

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        width = spec.kernel_widths[0]
        width_of_heads = spec.heads * width
        self.proj = Linear(spec, spec.d_model, width_of_heads, rngs)
        self.heads = spec.heads
        self.precise_dtype = spec.precise_dtype

    def __call__(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [batch, tokens, heads, width]."""
        batch, tokens, _ = x.shape
        logits = self.proj(x)  # [batch, tokens, heads width]
        width_of_heads = logits.shape[-1]
        width = width_of_heads // self.heads
        logits = logits.reshape(batch, tokens, self.heads, width)
        logits = logits.astype(self.precise_dtype)
        return jax.nn.softmax(logits)


class Convolution(nnx.Module):
    """out(convolve(GLU(x))); GLU is one half of a projection times the sigmoid of the other half.

    In training the kernels, as they leave the softmax, have dropout (DropConnect; fairseq's
    `weight_dropout`): drawn for each example, and for each of its tokens if kernels are dynamic.
    """

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        self.proj_in = Linear(spec, d_model, 2 * d_model, rngs, parts=2)
        make_kernel = LightweightKernel if spec.convolution == "lightweight" else DynamicKernel
        self.kernel = make_kernel(spec, rngs)
        self.out = Linear(spec, d_model, d_model, rngs, sharding=(None, FSDP))
        self.heads = spec.heads
        self.dilation = spec.dilations[0]
        self.rate = spec.attention_dropout

    def __call__(
        self,
        x: Array,
        dropout_keys: Array | None = None,
        padding_mask: Array | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same. `dropout_keys` [batch] are for dropout on the
        kernels. Padding counts as zeros; `padding_mask` as in `Block`."""
        batch, tokens, _ = x.shape
        projected = self.proj_in(x)
        gated = jax.nn.glu(projected)  # [batch, tokens, d_model]
        gated = zero_padding(gated, padding_mask)
        documents = documents_of(padding_mask)
        kernel = self.kernel(gated)
        if dropout_keys is not None and self.rate:
            if kernel.ndim == 2:  # one for all examples
                kernel = jnp.broadcast_to(kernel, (batch, 1, *kernel.shape))
            kernel = dropout(kernel, self.rate, dropout_keys)
        channels = gated.shape[-1] // self.heads
        by_head = gated.reshape(batch, tokens, self.heads, channels)
        convolved = convolve(by_head, kernel, self.dilation, documents)
        convolved = convolved.astype(x.dtype)  # [batch, tokens, heads, channels of a head]
        mixed = convolved.reshape(x.shape)
        return self.out(mixed)


class ConvolutionBlock(PreNormBlock):
    """x + convolution(norm(x)), then x + mlp(norm(x))."""

    Spec = ConvolutionSpec
    hides_padding = True
    masks_documents = True

    def __init__(self, spec: ConvolutionSpec, rngs: nnx.Rngs):
        self.convolution = Convolution(spec, rngs)
        super().__init__(spec, rngs)

    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """See `PreNormBlock`."""
        return self.convolution(x, rng.mixing_keys, padding_mask)

    @classmethod
    def stack_specs(cls, spec: ConvolutionSpec) -> tuple[ConvolutionSpec, ...]:
        """See `Block`: one stack for each run of layers with equal kernels."""
        stacks = []
        for (width, dilation), run in itertools.groupby(spec.kernels):
            layers = len(list(run))
            stack = dataclasses.replace(
                spec, kernel_widths=(width,), dilations=(dilation,), layers=layers
            )
            stacks.append(stack)
        return tuple(stacks)
