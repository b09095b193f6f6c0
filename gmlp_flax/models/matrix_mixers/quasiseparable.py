"""Quasiseparable matrices: state space models in both directions."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.layers import Linear
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
from gmlp_flax.models.recurrences.semiseparable import StateSpaceModel
from gmlp_flax.models.recurrences.steps import step_bias

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
        bias = step_bias(rngs.params(), shape, spec.param_dtype, STEPS)
        self.step_bias = parameter(bias, decayed=False)
        log_rates = jnp.zeros(shape, spec.param_dtype)
        self.log_rates = parameter(log_rates, decayed=False)
        skip = jnp.ones(shape, spec.param_dtype)
        self.skip = parameter(skip, decayed=False)
        self.spec = spec

    def _add_projections(self, spec: MatrixSpec, rngs: nnx.Rngs) -> None:
        """The layers that compute B, C, the steps and the diagonal."""
        numbers_of_b = spec.groups * spec.d_state  # for each token; C has as many
        numbers_of_direction = 2 * numbers_of_b
        channels = spec.directions * numbers_of_direction
        steps = spec.directions * spec.heads
        self.features = Features(spec, channels, rngs)
        self.steps = Linear(spec, spec.d_model, steps, rngs, bias=False)
        self.skip_proj = Linear(spec, spec.d_inner, spec.heads, rngs, bias=False)

    def _add_states(self, spec: MatrixSpec, rngs: nnx.Rngs) -> None:
        """B and C as parameters."""
        init = nnx.initializers.glorot_normal(batch_axis=(0, 1))
        shape = (spec.directions, spec.groups, spec.length, spec.d_state)
        over_tokens = token_logits(-2)

        def make_states() -> nnx.Param:
            states = init(rngs.params(), shape, spec.param_dtype)
            return parameter(states, decayed=False, resize=over_tokens)

        self.b = make_states()
        self.c = make_states()

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
        forward, backward = self._models(inputs, view)
        rows = semiseparable.rows(forward, backward, view.first, view.count)
        return view.hide_documents(rows)

    def apply_fast(self, inputs: dict[str, Array], v: Array, view: View) -> Array:
        """See `MatrixMixer`: a scan in each direction."""
        forward, backward = self._models(inputs, view)
        batch = v.shape[0]
        forward = _for_batch(forward, batch)
        if backward is not None:
            backward = _for_batch(backward, batch)
        return semiseparable.mix(forward, backward, v, view.documents)

    def diagonal(self, v: Array) -> Array:
        """See `MatrixMixer`: learned or computed from v, not the identity."""
        skip = self.skip[...]
        if not self.spec.input_dependent:
            return skip[None, :, None]
        by_token = v.swapaxes(1, 2)  # [batch, tokens, heads, channels]
        channels = jax.lax.collapse(by_token, 2)
        projected = self.skip_proj(channels)  # [batch, tokens, heads]
        diagonal = projected.astype(skip.dtype) + skip
        return diagonal.swapaxes(1, 2)

    def _models(
        self, inputs: dict[str, Array], view: View
    ) -> tuple[StateSpaceModel, StateSpaceModel | None]:
        """The forward and the backward model of all keys; a causal matrix has no backward one. At
        padding the states neither change nor decay."""
        spec = self.spec
        if spec.input_dependent:
            models = self._computed_models(inputs, view)
        else:
            models = self._learned_models(view)
        if spec.causal:
            return models[0], None
        forward, backward = models
        return forward, backward

    def _computed_models(self, inputs: dict[str, Array], view: View) -> list[StateSpaceModel]:
        """One model for each direction, from what `project` gave."""
        spec = self.spec
        projected = inputs["states"]
        all_states = self.features.convolve(projected, view)
        all_logits = inputs["steps"]
        all_logits = all_logits.astype(spec.precise_dtype)
        states_by_direction = jnp.split(all_states, spec.directions, axis=-1)
        logits_by_direction = jnp.split(all_logits, spec.directions, axis=-1)
        models = []
        for states, logits in zip(states_by_direction, logits_by_direction, strict=True):
            model = self._computed_model(states, logits, view)
            models.append(model)
        return models

    def _computed_model(self, states: Array, logits: Array, view: View) -> StateSpaceModel:
        """The model of one direction.

        Args:
            states: [batch, keys, 2 groups d_state], B and C.
            logits: of the steps, [batch, keys, heads].
            view: hides padding.
        """
        b_and_c = by_head(states, 2 * self.spec.groups)  # [batch, 2 groups, keys, d_state]
        b, c = jnp.split(b_and_c, 2, axis=1)
        biased_logits = logits + self.step_bias[...]
        steps = jax.nn.softplus(biased_logits)
        visible_steps = view.hide(steps)
        steps_of_heads = visible_steps.swapaxes(1, 2)  # [batch, heads, keys]
        return self._model(steps_of_heads, b, c)

    def _learned_models(self, view: View) -> list[StateSpaceModel]:
        """One model for each direction, the same for all inputs except at padding."""
        spec = self.spec
        bias = self.step_bias[...]
        step = jax.nn.softplus(bias)  # [heads]
        step_of_keys = step[:, None]
        shape = (1, spec.heads, view.keys)
        steps = jnp.broadcast_to(step_of_keys, shape)
        visible_steps = view.hide(steps, axis=2)
        models = []
        for number in range(spec.directions):
            b = self.b[number, None, :, : view.keys]  # [1, groups, keys, d_state]
            c = self.c[number, None, :, : view.keys]
            b = b.astype(spec.compute_dtype)
            c = c.astype(spec.compute_dtype)
            model = self._model(visible_steps, b, c)
            models.append(model)
        return models

    def _model(self, steps: Array, b: Array, c: Array) -> StateSpaceModel:
        """The model with these steps [batch or 1, heads, keys], whose log decays are -exp(A)
        times the steps."""
        log_rates = self.log_rates[...]
        rates = jnp.exp(log_rates)
        rates_of_keys = rates[:, None]  # [heads, 1]
        log_decays = -rates_of_keys * steps
        return StateSpaceModel(steps, log_decays, b, c)


def _for_batch(model: StateSpaceModel, batch: int) -> StateSpaceModel:
    """A model [batch or 1, ...], repeated to [batch, ...]."""

    def repeat(array: Array) -> Array:
        shape_of_example = array.shape[1:]
        shape = (batch, *shape_of_example)
        return jnp.broadcast_to(array, shape)

    return jax.tree.map(repeat, model)
