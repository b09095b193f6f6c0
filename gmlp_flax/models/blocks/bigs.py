"""Bidirectional gated state spaces (BiGS, "Pretraining Without Attention", arXiv 2212.10544)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import EVALUATION, DecodeCache, LayerNorm, LayerRng, Linear, add_branch
from gmlp_flax.models.padding import zero_padding
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.recurrences import state_space
from gmlp_flax.models.recurrences.state_space import Complex
from gmlp_flax.models.sharding import FSDP, TENSOR
from gmlp_flax.models.spec import AnyLengthSpec
from gmlp_flax.options import SIZE, option

SLOWEST_DECAY = -1e-4  # the largest real part of a mode, as in its authors' code
STEPS = (0.01, 1.0)  # between which steps are drawn


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiGSSpec(AnyLengthSpec):
    """Options of BiGS."""

    d_ffn: int = option(
        768,
        "width of the gate (published: 3 d_model); there is no other MLP",
        SIZE,
        architecture=True,
        scaled=True,
    )
    d_state: int = option(64, "modes of a state space (the paper's N)", SIZE, architecture=True)
    state_spaces: int = option(
        1,
        "state spaces of each direction, each for an equal share of the channels "
        "(published: 1; d_model: one for each channel)",
        SIZE,
        architecture=True,
    )

    def check(self) -> None:
        """Raises ValueError if the state spaces do not divide the channels."""
        super().check()
        if self.d_model % self.state_spaces:
            raise ValueError(
                f"model.d_model is {self.d_model}: model.state_spaces, {self.state_spaces}, "
                "must divide it"
            )


class DiagonalStateSpace(nnx.Module):
    """`spec.state_spaces` diagonal state spaces of N complex modes, x' = A x + u, y = Re C x + D u,
    with the input held for a step.

    Parameters: `a_real` and `a_imag` [spaces, N], those of HiPPO-LegS at the start (S4D-LegS);
    `c` [spaces, N, 2], real and imaginary parts; `d` [spaces], 1 at the start; `log_step` [spaces],
    log-uniform in STEPS. No weight decay applies. The authors train A and the steps at a tenth of
    the learning rate.
    """

    def __init__(self, spec: BiGSSpec, rngs: nnx.Rngs):
        dtype = spec.param_dtype
        spaces = spec.state_spaces
        shape = (spaces, spec.d_state)
        modes = state_space.legs_modes(spec.d_state)
        real = np.real(modes)
        a_real = jnp.asarray(real, dtype)
        a_real = jnp.broadcast_to(a_real, shape)
        imag = np.imag(modes)
        a_imag = jnp.asarray(imag, dtype)
        a_imag = jnp.broadcast_to(a_imag, shape)
        shortest, longest = STEPS
        low = math.log(shortest)
        high = math.log(longest)
        log_step = jax.random.uniform(rngs.params(), (spaces,), dtype, low, high)
        std = math.sqrt(0.5)
        normal = nnx.initializers.normal(std)
        shape_of_parts = (*shape, 2)  # real and imaginary
        c = normal(rngs.params(), shape_of_parts, dtype)
        d = jnp.ones((spaces,), dtype)
        self.a_real = parameter(a_real, decayed=False)
        self.a_imag = parameter(a_imag, decayed=False)
        self.c = parameter(c, decayed=False)
        self.d = parameter(d, decayed=False)
        self.log_step = parameter(log_step, decayed=False)

    def modes(self) -> state_space.Modes:
        """The discretised modes."""
        a_real = jnp.minimum(self.a_real[...], SLOWEST_DECAY)
        a = Complex(a_real, self.a_imag[...])
        step = jnp.exp(self.log_step[...])
        c_real = self.c[..., 0]
        c_imag = self.c[..., 1]
        c = Complex(c_real, c_imag)
        return state_space.discretize(a, c, step)

    def kernel(self, modes: state_space.Modes, tokens: int) -> Array:
        """The kernel of the convolution, [spaces, tokens] from lag 0 on; D is added at lag 0."""
        kernel = state_space.kernel(modes, tokens)
        d = self.d[...]
        d = d[:, None]  # [spaces, 1]
        is_first = jnp.arange(tokens) == 0
        zeros = jnp.zeros_like(d)
        skip = jnp.where(is_first, d, zeros)
        return kernel + skip


class GatedDirection(nnx.Module):
    """A state space behind a linear layer and its activation, and a linear layer after it: one
    direction of BiGS. Tokens see themselves and those before them or, with `reverse`, after
    them."""

    def __init__(self, spec: BiGSSpec, rngs: nnx.Rngs, reverse: bool):
        width = spec.d_model
        self.proj_in = Linear(spec, width, width, rngs, activation=spec.activation)
        self.ssm = DiagonalStateSpace(spec, rngs)
        self.proj_out = Linear(spec, width, width, rngs, sharding=(None, FSDP))
        self.reverse = reverse
        self.causal = spec.causal

    def __call__(
        self,
        x: Array,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same. Padding counts as zeros; arguments as in
        `Block`."""
        u = self.proj_in(x)
        u = zero_padding(u, padding_mask)
        modes = self.ssm.modes()
        kernel = self.ssm.kernel(modes, u.shape[1])
        if cache is not None:
            y = self._extend(modes, kernel, u, cache)
        elif self.causal:
            y = state_space.scan(modes, kernel, u)
        else:
            y = state_space.convolve(kernel, u, self.reverse)
        return self.proj_out(y)

    def _extend(
        self, modes: state_space.Modes, kernel: Array, u: Array, cache: DecodeCache
    ) -> Array:
        """The outputs of the tokens of a call, whose states are kept in the cache."""
        zeros = state_space.first_state(modes, u)
        real = cache.state("state_real", zeros.real)
        imag = cache.state("state_imag", zeros.imag)
        state = Complex(real, imag)
        tokens = u.shape[1]
        count = cache.count(tokens)
        y, state = state_space.extend(modes, kernel, u, state, count)
        cache.store("state_real", state.real)
        cache.store("state_imag", state.imag)
        return y


class BiGSBlock(Block):
    """x + W_o (act(W_u u) * act(W_v norm(x))): u is the product of a forward and a backward state
    space of norm(x), each between linear layers. There is no other MLP.

    The paper has no causal form. Here a causal block has only the forward state space.
    """

    Spec = BiGSSpec
    hides_padding = True
    can_be_causal = True

    def __init__(self, spec: BiGSSpec, rngs: nnx.Rngs):
        width = spec.d_ffn
        self.norm = LayerNorm(spec, spec.d_model)
        self.value = _widening(spec, rngs)
        self.forward = GatedDirection(spec, rngs, reverse=False)
        if spec.causal:
            self.backward = None
        else:
            self.backward = GatedDirection(spec, rngs, reverse=True)
        self.mixed = _widening(spec, rngs)
        self.proj_out = Linear(spec, width, spec.d_model, rngs, sharding=(TENSOR, FSDP))

    def __call__(
        self,
        x: Array,
        rng: LayerRng = EVALUATION,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """See `Block`."""
        normed = self.norm(x)
        mixed = self.forward(normed, padding_mask, cache)
        if self.backward is not None:
            mixed = mixed * self.backward(normed, padding_mask)
        gated = self.mixed(mixed) * self.value(normed)  # [batch, tokens, d_ffn]
        branch = self.proj_out(gated)
        return add_branch(x, branch, rng)


def _widening(spec: BiGSSpec, rngs: nnx.Rngs) -> Linear:
    """A linear layer from d_model to the width of the gate, and its activation."""
    return Linear(
        spec,
        spec.d_model,
        spec.d_ffn,
        rngs,
        sharding=(FSDP, TENSOR),
        activation=spec.activation,
    )
