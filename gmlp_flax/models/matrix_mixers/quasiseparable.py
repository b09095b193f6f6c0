"""Quasiseparable matrices: state space models in both directions."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.layers import Linear, activation
from gmlp_flax.models.matrix_mixers.base import (
    BUILT_UP_TO,
    Features,
    MatrixMixer,
    MatrixSpec,
    View,
    by_head,
)
from gmlp_flax.models.parameters import parameter, token_logits
from gmlp_flax.models.recurrences import semiseparable
from gmlp_flax.models.recurrences.semiseparable import Direction

STEPS = (1e-3, 0.1)  # the range of dt at the start


class Quasiseparable(MatrixMixer):
    """The state space models of `models.recurrences.semiseparable`, one in each direction, with a_i = -exp(A) s_i
    and s_i = softplus(d_i + dt), d_i a linear layer of the token.

    Parameters: `log_rates` [heads], which are A, `step_bias` [heads], which is dt, and `skip`
    [heads], the diagonal, to which a linear layer of the mixed channels is added. Without the
    input, s_i and the diagonal are the same for all tokens, and `b` and `c` are [directions, groups,
    n, d_state]. A causal matrix has the first direction alone.
    """

    def __init__(self, spec: MatrixSpec, rngs: nnx.Rngs):
        heads = spec.heads
        shape = (spec.directions, spec.groups, spec.length, spec.d_state)
        if spec.input_dependent:
            channels = 2 * spec.directions * spec.groups * spec.d_state
            self.features = Features(spec, channels, rngs)
            self.steps = Linear(spec, spec.d_model, spec.directions * heads, rngs, bias=False)
            self.skip_proj = Linear(spec, spec.d_inner, heads, rngs, bias=False)
        else:
            init = nnx.initializers.glorot_normal(batch_axis=(0, 1))
            resize = token_logits(-2)
            b = init(rngs.params(), shape, spec.param_dtype)
            self.b = parameter(b, decayed=False, resize=resize)
            c = init(rngs.params(), shape, spec.param_dtype)
            self.c = parameter(c, decayed=False, resize=resize)
        least, most = STEPS
        exponents = jax.random.uniform(
            rngs.params(), (heads,), spec.param_dtype, math.log(least), math.log(most)
        )
        steps = jnp.exp(exponents)
        step_bias = steps + jnp.log(-jnp.expm1(-steps))  # the inverse of softplus
        self.step_bias = parameter(step_bias, decayed=False)
        log_rates = jnp.zeros((heads,), spec.param_dtype)
        self.log_rates = parameter(log_rates, decayed=False)
        skip = jnp.ones((heads,), spec.param_dtype)
        self.skip = parameter(skip, decayed=False)
        self.spec = spec

    @classmethod
    def fastest_form(cls, spec: MatrixSpec, tokens: int) -> str:
        """See `MatrixMixer`."""
        return "direct" if tokens <= BUILT_UP_TO else "fast"

    def project(self, x: Array) -> dict[str, Array]:
        """See `MatrixMixer`."""
        if not self.spec.input_dependent:
            return {}
        return {"states": self.features.proj(x), "steps": self.steps(x)}

    def rows(self, inputs: dict[str, Array], view: View) -> Array:
        """See `MatrixMixer`."""
        forward, backward = self._directions(inputs, view)
        rows = semiseparable.rows(forward, backward, view.first, view.count)
        return view.hide_documents(rows)

    def apply_fast(self, inputs: dict[str, Array], v: Array, view: View) -> Array:
        """See `MatrixMixer`: a scan in each direction."""
        forward, backward = self._directions(inputs, view)
        batch = v.shape[0]
        forward = _for_batch(forward, batch)
        if backward is not None:
            backward = _for_batch(backward, batch)
        return semiseparable.mix(forward, backward, v, view.documents)

    def diagonal(self, v: Array) -> Array:
        """See `MatrixMixer`: free, instead of the identity."""
        skip = self.skip[...]
        if not self.spec.input_dependent:
            return skip[None, :, None]
        batch, _, tokens, _ = v.shape
        channels = v.swapaxes(1, 2).reshape(batch, tokens, -1)
        diagonal = self.skip_proj(channels).astype(skip.dtype) + skip  # [batch, tokens, heads]
        return diagonal.swapaxes(1, 2)

    def _directions(
        self, inputs: dict[str, Array], view: View
    ) -> tuple[Direction, Direction | None]:
        """The models of all keys. Padding adds nothing to their states, nor do these decay at
        it."""
        spec = self.spec
        if spec.input_dependent:
            found = self._computed_directions(inputs, view)
        else:
            found = self._learned_directions(view)
        if spec.causal:
            return found[0], None
        forward, backward = found
        return forward, backward

    def _computed_directions(self, inputs: dict[str, Array], view: View) -> list[Direction]:
        spec = self.spec
        convolved = self.features.convolution(inputs["states"], view.documents)
        states = view.hide(activation("silu", convolved))
        steps = inputs["steps"].astype(spec.precise_dtype)
        directions = []
        for of_states, of_steps in zip(
            jnp.split(states, spec.directions, axis=-1),
            jnp.split(steps, spec.directions, axis=-1),
            strict=True,
        ):
            b, c = jnp.split(by_head(of_states, 2 * spec.groups), 2, axis=1)
            positive = jax.nn.softplus(of_steps + self.step_bias[...])
            positive = view.hide(positive).swapaxes(1, 2)  # [batch, heads, keys]
            directions.append(self._direction(positive, b, c))
        return directions

    def _learned_directions(self, view: View) -> list[Direction]:
        spec = self.spec
        step = jax.nn.softplus(self.step_bias[...])
        steps = jnp.broadcast_to(step[:, None], (1, spec.heads, view.keys))
        steps = view.hide(steps, axis=2)
        directions = []
        for number in range(spec.directions):
            b = self.b[number, None, :, : view.keys]  # [1, groups, keys, d_state]
            c = self.c[number, None, :, : view.keys]
            b = b.astype(spec.compute_dtype)
            c = c.astype(spec.compute_dtype)
            directions.append(self._direction(steps, b, c))
        return directions

    def _direction(self, steps: Array, b: Array, c: Array) -> Direction:
        rates = jnp.exp(self.log_rates[...])
        return Direction(steps, -rates[:, None] * steps, b, c)


def _for_batch(direction: Direction, batch: int) -> Direction:
    """A direction with an example for each of the batch."""
    whole = []
    for array in direction:
        whole.append(jnp.broadcast_to(array, (batch, *array.shape[1:])))
    return Direction(*whole)
