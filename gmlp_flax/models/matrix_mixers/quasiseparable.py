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
    """The state space models of `models.recurrences.semiseparable`, one in each direction, with
    a_i = -exp(A) s_i and s_i = softplus(d_i + dt), d_i a linear layer of the token.

    Parameters: `log_rates` [heads], which are A, `step_bias` [heads], which is dt, and `skip`
    [heads], the diagonal, to which a linear layer of the mixed channels is added. Without the
    input, s_i and the diagonal are the same for all tokens, and `b` and `c` are [directions, groups,
    n, d_state]. A causal matrix has the first direction alone.
    """

    def __init__(self, spec: MatrixSpec, rngs: nnx.Rngs):
        if spec.input_dependent:
            self._add_projections(spec, rngs)
        else:
            self._add_states(spec, rngs)
        shape = (spec.heads,)
        step_bias = _step_bias(rngs.params(), shape, spec.param_dtype)
        self.step_bias = parameter(step_bias, decayed=False)
        log_rates = jnp.zeros(shape, spec.param_dtype)
        self.log_rates = parameter(log_rates, decayed=False)
        skip = jnp.ones(shape, spec.param_dtype)
        self.skip = parameter(skip, decayed=False)
        self.spec = spec

    def _add_projections(self, spec: MatrixSpec, rngs: nnx.Rngs) -> None:
        """The layers that compute B, C, the steps and the diagonal."""
        channels = 2 * spec.directions * spec.groups * spec.d_state
        steps = spec.directions * spec.heads
        self.features = Features(spec, channels, rngs)
        self.steps = Linear(spec, spec.d_model, steps, rngs, bias=False)
        self.skip_proj = Linear(spec, spec.d_inner, spec.heads, rngs, bias=False)

    def _add_states(self, spec: MatrixSpec, rngs: nnx.Rngs) -> None:
        """B and C as parameters."""
        init = nnx.initializers.glorot_normal(batch_axis=(0, 1))
        shape = (spec.directions, spec.groups, spec.length, spec.d_state)
        resize = token_logits(-2)
        b = init(rngs.params(), shape, spec.param_dtype)
        self.b = parameter(b, decayed=False, resize=resize)
        c = init(rngs.params(), shape, spec.param_dtype)
        self.c = parameter(c, decayed=False, resize=resize)

    @classmethod
    def fastest_form(cls, spec: MatrixSpec, tokens: int) -> str:
        """See `MatrixMixer`."""
        return "direct" if tokens <= BUILT_UP_TO else "fast"

    def project(self, x: Array) -> dict[str, Array]:
        """See `MatrixMixer`."""
        if not self.spec.input_dependent:
            return {}
        states = self.features.proj(x)
        steps = self.steps(x)
        return {"states": states, "steps": steps}

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
        by_token = v.swapaxes(1, 2)  # [batch, tokens, heads, channels]
        channels = by_token.reshape(batch, tokens, -1)
        projected = self.skip_proj(channels)  # [batch, tokens, heads]
        diagonal = projected.astype(skip.dtype) + skip
        return diagonal.swapaxes(1, 2)

    def _directions(
        self, inputs: dict[str, Array], view: View
    ) -> tuple[Direction, Direction | None]:
        """The models of all keys. Padding adds nothing to their states, nor do these decay at
        it."""
        spec = self.spec
        if spec.input_dependent:
            directions = self._computed_directions(inputs, view)
        else:
            directions = self._learned_directions(view)
        if spec.causal:
            return directions[0], None
        forward, backward = directions
        return forward, backward

    def _computed_directions(self, inputs: dict[str, Array], view: View) -> list[Direction]:
        spec = self.spec
        convolved = self.features.convolution(inputs["states"], view.documents)
        activated = activation("silu", convolved)
        states = view.hide(activated)
        logits = inputs["steps"].astype(spec.precise_dtype)
        states_of_directions = jnp.split(states, spec.directions, axis=-1)
        logits_of_directions = jnp.split(logits, spec.directions, axis=-1)
        return [
            self._computed_direction(states, logits, view)
            for states, logits in zip(states_of_directions, logits_of_directions, strict=True)
        ]

    def _computed_direction(self, states: Array, logits: Array, view: View) -> Direction:
        """The model of one direction.

        Args:
            states: [batch, keys, 2 groups d_state], B and C.
            logits: of the steps, [batch, keys, heads].
            view: hides padding.
        """
        b_and_c = by_head(states, 2 * self.spec.groups)
        b, c = jnp.split(b_and_c, 2, axis=1)
        steps = jax.nn.softplus(logits + self.step_bias[...])
        steps = view.hide(steps)
        steps = steps.swapaxes(1, 2)  # [batch, heads, keys]
        return self._direction(steps, b, c)

    def _learned_directions(self, view: View) -> list[Direction]:
        spec = self.spec
        step = jax.nn.softplus(self.step_bias[...])
        shape = (1, spec.heads, view.keys)
        steps = jnp.broadcast_to(step[:, None], shape)
        steps = view.hide(steps, axis=2)
        directions = []
        for number in range(spec.directions):
            b = self.b[number, None, :, : view.keys]  # [1, groups, keys, d_state]
            c = self.c[number, None, :, : view.keys]
            b = b.astype(spec.compute_dtype)
            c = c.astype(spec.compute_dtype)
            direction = self._direction(steps, b, c)
            directions.append(direction)
        return directions

    def _direction(self, steps: Array, b: Array, c: Array) -> Direction:
        rates = jnp.exp(self.log_rates[...])
        log_decays = -rates[:, None] * steps
        return Direction(steps, log_decays, b, c)


def _step_bias(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """The inverse softplus of steps whose logarithms are uniform between those of STEPS."""
    least, most = STEPS
    exponents = jax.random.uniform(key, shape, dtype, math.log(least), math.log(most))
    steps = jnp.exp(exponents)
    log_of_rest = jnp.log(-jnp.expm1(-steps))  # log(1 - exp(-step))
    return steps + log_of_rest


def _for_batch(direction: Direction, batch: int) -> Direction:
    """A direction with an example for each of the batch."""

    def repeat(array: Array) -> Array:
        shape_of_example = array.shape[1:]
        return jnp.broadcast_to(array, (batch, *shape_of_example))

    return jax.tree.map(repeat, direction)
