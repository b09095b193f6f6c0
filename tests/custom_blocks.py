"""Blocks as a user's package has them: named `tests.custom_blocks:Averaging` in a config."""

import dataclasses

import jax.numpy as jnp

from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.layers import (
    EVALUATION,
    ChannelMLP,
    ChannelMLPSpec,
    LayerNorm,
    Linear,
    add_branch,
)
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import ABOVE_0, option

AVERAGING = "tests.custom_blocks:Averaging"
SHIFTING = "tests.custom_blocks:Shifting"
PEEKING = "tests.custom_blocks:Peeking"
UNUSED = "tests.custom_blocks:Unused"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AveragingSpec(ChannelMLPSpec):
    """Its options: d_ffn of the MLP over channels."""


class Averaging(Block):
    """x + mean of all tokens, then x + mlp(norm(x)): its parameters are linear in d_ffn."""

    Spec = AveragingSpec

    def __init__(self, spec, rngs):
        self.norm = LayerNorm(spec, spec.d_model)
        self.mlp = ChannelMLP(spec, rngs)

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        mean = x.mean(axis=1, keepdims=True)
        x = add_branch(x, jnp.broadcast_to(mean, x.shape), rng, 0)
        hidden = self.mlp(self.norm(x))
        return add_branch(x, hidden, rng, 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShiftingSpec(BlockSpec):
    """It has no MLP, so that only its layers set its size."""


class Shifting(Block):
    """x + a linear map of the token before: d_model^2 + d_model parameters, causal."""

    Spec = ShiftingSpec
    can_be_causal = True

    def __init__(self, spec, rngs):
        self.linear = Linear(spec, spec.d_model, spec.d_model, rngs)

    def __call__(self, x, rng=EVALUATION, padding_mask=None, cache=None):
        before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return add_branch(x, self.linear(before), rng, 0)


class CausalWithoutCache(Averaging):
    """A mistake: it claims to support causal models."""

    can_be_causal = True


class Unpadded(Averaging):
    """A mistake in a model of texts: it refuses padding."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        if padding_mask is not None:
            raise NotImplementedError("no padding")
        return super().__call__(x, rng)


class UndecoratedSpec(Averaging):
    """A mistake: its Spec is no dataclass of its own."""

    class Spec(AveragingSpec):
        """With an option that nothing reads."""

        weight: float = option(0.1, "of the mean", ABOVE_0, architecture=True)


class OtherSpec(Averaging):
    """A mistake: its options extend nothing."""

    class Spec:
        """It is no BlockSpec."""


class Unused(Shifting):
    """The same, with a d_ffn that changes nothing."""

    Spec = AveragingSpec


class Shortening(Averaging):
    """A mistake: it drops a token."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        return super().__call__(x, rng)[:, 1:]


class Raising(Averaging):
    """A mistake that shows only when it is called."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        raise KeyError("raised by a block")


class RaisingInBatches(Averaging):
    """A mistake that shows only with several examples."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        if len(x) > 1:
            raise KeyError("raised in training")
        return super().__call__(x, rng)


class WithoutMask(Averaging):
    """A mistake: no padding_mask."""

    def __call__(self, x, rng=EVALUATION):
        return super().__call__(x, rng)


class WithoutRngs(Averaging):
    """A mistake: no rngs."""

    def __init__(self, spec):
        pass


class Rounding(Averaging):
    """A mistake: it returns whole numbers."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        return super().__call__(x, rng).astype(int)


class Logarithm(Averaging):
    """A mistake: half of its outputs are NaN."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        return jnp.log(super().__call__(x, rng))


class RootOfZero(Averaging):
    """A mistake: the gradient of its square root is infinite at 0."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None):
        return super().__call__(x, rng) + jnp.sqrt(jnp.square(0 * x))


class Peeking(Shifting):
    """x + the mean of each four tokens, although it claims to support causal models."""

    def __call__(self, x, rng=EVALUATION, padding_mask=None, cache=None):
        batch, tokens, channels = x.shape
        chunks = x.reshape(batch, tokens // 4, 4, channels)
        means = chunks.mean(axis=2)
        mixed = self.linear(jnp.repeat(means, 4, axis=1))
        return add_branch(x, mixed, rng, 0)
