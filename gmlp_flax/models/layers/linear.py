"""The linear layer on the channels of each token."""

import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models import sharding
from gmlp_flax.models.layers.activations import activation
from gmlp_flax.models.matmul import add_bias, over_channels
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import BlockSpec


class Linear(nnx.Module):
    """A dense layer [..., d_in] to [..., d_out]: `kernel` [d_in, d_out], Glorot-uniform by default,
    and `bias`.

    Args:
        sharding: mesh axes of the kernel's two axes. If the second is TENSOR, bias and output are
            sharded along it too.
        activation: name of the activation of the output; empty for none.
        parts: number of equal parts that the caller splits the output into. Each part has its own
            matrix product, so that the split copies nothing: strided slices of one wide array take
            a sixth of gMLP's step on a CPU.
        bias: whether the layer has one.
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

    def __call__(self, x: Array) -> Array:
        """[..., d_in] to [..., d_out] in the type of x."""
        kernel = self.kernel[...]
        kernel = kernel.astype(x.dtype)
        kernels = jnp.split(kernel, self.parts, axis=-1)
        biases = [None] * self.parts
        if self.bias is not None:
            bias = self.bias[...]
            biases = jnp.split(bias, self.parts)
        outputs = []
        for kernel, bias in zip(kernels, biases, strict=True):
            part = self._part(x, kernel, bias)
            outputs.append(part)
        if self.parts == 1:
            [output] = outputs
            return output
        return jnp.concatenate(outputs, axis=-1)

    def _part(self, x: Array, kernel: Array, bias: Array | None) -> Array:
        """One part of the output, [..., d_in] to [..., d_out / parts]."""
        y = over_channels(x, kernel)
        if bias is not None:
            y = add_bias(y, bias)
        if self.shard_output:
            inner = [None] * (y.ndim - 2)  # between the batch and the channels
            y = sharding.constrain(y, sharding.BATCH, *inner, TENSOR)
        if self.activation:
            y = activation(self.activation, y)
        return y
