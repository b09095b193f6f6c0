"""Matrices of products of queries and keys: low rank, which is linear attention if it is computed
from the input, and attention."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from gmlp_flax.models.attention import dot_product
from gmlp_flax.models.matmul import NAME
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


class QueriesAndKeys(MatrixMixer):
    """What low rank and attention share: a query and a key for each token and head, of `d_state`
    numbers each. They are computed from the input, or are the parameters `queries` and `keys`
    [heads, n, d_state]."""

    is_fast = True
    activation: ClassVar[str | None] = None  # of queries and keys that are computed

    def __init__(self, spec: MatrixSpec, rngs: nnx.Rngs):
        if spec.input_dependent:
            self.features = Features(spec, 2 * spec.heads * spec.d_state, rngs)
        else:
            init = nnx.initializers.glorot_normal(batch_axis=0)
            shape = (spec.heads, spec.length, spec.d_state)
            over_tokens = token_logits(-2)

            def make_vectors() -> nnx.Param:
                vectors = init(rngs.params(), shape, spec.param_dtype)
                return parameter(vectors, decayed=False, resize=over_tokens)

            self.queries = make_vectors()
            self.keys = make_vectors()
        self.spec = spec

    def project(self, x: Array) -> dict[str, Array]:
        """See `MatrixMixer`."""
        if not self.spec.input_dependent:
            return {}
        return {"queries_keys": self.features.proj(x)}

    def _queries_and_keys(self, inputs: dict[str, Array], view: View) -> tuple[Array, Array]:
        """The queries and the keys of all tokens, each [batch or 1, heads, keys, d_state] in the
        compute type."""
        if not self.spec.input_dependent:
            return self._learned_queries_and_keys(view.keys)
        projected = inputs["queries_keys"]
        features = self.features.convolve(projected, view, self.activation)
        both = by_head(features, 2 * self.spec.heads)  # [batch, 2 heads, keys, d_state]
        queries, keys = jnp.split(both, 2, axis=1)
        return queries, keys

    def _learned_queries_and_keys(self, tokens: int) -> tuple[Array, Array]:
        """Those of the first tokens, each [1, heads, tokens, d_state] in the compute type."""
        dtype = self.spec.compute_dtype
        queries = self.queries[:, :tokens]
        queries = queries.astype(dtype)
        keys = self.keys[:, :tokens]
        keys = keys.astype(dtype)
        return queries[None], keys[None]

    def _rows_of(self, queries: Array, view: View) -> Array:
        """The queries of the rows, [batch or 1, heads, count, d_state]."""
        if view.count == view.keys:
            return queries
        return jax.lax.dynamic_slice_in_dim(queries, view.first, view.count, axis=2)


class LowRank(QueriesAndKeys):
    """q k^T / sqrt(n d_state), with n the length of the spec: linear attention, if queries and keys
    are computed from the input."""

    activation = "silu"
    divides_by_length = True

    @classmethod
    def fastest_form(cls, spec: MatrixSpec, tokens: int) -> str:
        """See `MatrixMixer`. A causal matrix is scanned, as a quasiseparable one."""
        is_built = spec.causal and tokens <= BUILT_UP_TO
        return "direct" if is_built else "fast"

    def rows(self, inputs: dict[str, Array], view: View) -> Array:
        """See `MatrixMixer`."""
        queries, keys = self._queries_and_keys(inputs, view)
        queries = self._rows_of(queries, view)
        products = jnp.einsum(
            "bhns,bhms->bhnm", queries, keys, preferred_element_type=self.spec.precise_dtype
        )
        weights = products * self._scale
        if self.spec.causal:
            weights = view.hide_future(weights)
        return view.hide_documents(weights)

    def apply_fast(self, inputs: dict[str, Array], v: Array, view: View) -> Array:
        """See `MatrixMixer`: keys and values first; scanned in a causal model and in a window of
        documents."""
        queries, keys = self._queries_and_keys(inputs, view)
        batch = v.shape[0]
        shape_of_example = queries.shape[1:]
        shape = (batch, *shape_of_example)
        queries = jnp.broadcast_to(queries, shape)
        keys = jnp.broadcast_to(keys, shape)
        if self.spec.causal or view.documents is not None:
            scanned = self._scan(queries, keys, v, view.documents)
            return self._scale * scanned
        state = jnp.einsum(
            "bhms,bhmp->bhsp", keys, v, preferred_element_type=self.spec.precise_dtype
        )
        scaled_state = self._scale * state
        rounded_state = scaled_state.astype(v.dtype)
        mixed = jnp.matmul(queries, rounded_state)
        return checkpoint_name(mixed, NAME)

    @property
    def _scale(self) -> float:
        summed = self.spec.length * self.spec.d_state  # terms of an output
        return summed**-0.5

    def _scan(self, queries: Array, keys: Array, v: Array, documents: Array | None) -> Array:
        """q k^T v by a state space model without decay, with k as its B and q as its C."""
        precise_dtype = self.spec.precise_dtype
        batch, heads, tokens, _ = queries.shape
        steps = jnp.ones((batch, heads, tokens), precise_dtype)
        no_decay = jnp.zeros_like(steps)
        model = StateSpaceModel(steps, no_decay, keys, queries)
        from_past = semiseparable.scan(model, v, documents)
        if self.spec.causal:
            return from_past
        flipped_model = model.flipped()
        flipped_documents = semiseparable.flip_documents(documents)
        flipped_v = jnp.flip(v, 2)
        scanned = semiseparable.scan(flipped_model, flipped_v, flipped_documents)
        from_future = jnp.flip(scanned, 2)
        mixed = from_past + from_future
        products = jnp.einsum("bhns,bhns->bhn", queries, keys, preferred_element_type=precise_dtype)
        weights = products[..., None]  # [batch, heads, tokens, 1]
        from_itself = weights * v
        return mixed - from_itself  # both scans have the diagonal


class Attention(QueriesAndKeys):
    """softmax(q k^T / sqrt(d_state)); without the input, the same for all texts."""

    def rows(self, inputs: dict[str, Array], view: View) -> Array:
        """See `MatrixMixer`."""
        scores = self.scores(inputs, view)
        return jax.nn.softmax(scores, axis=-1)

    def scores(self, inputs: dict[str, Array], view: View) -> Array:
        """See `MatrixMixer`."""
        first = view.first
        queries, keys = self._queries_and_keys(inputs, view)
        queries_of_rows = self._rows_of(queries, view)
        logits = dot_product.dot_products(queries_of_rows, keys, self.spec, first)
        scores = logits(0, view.count)
        return dot_product.hide_padding(scores, view.padding_mask, heads=True, first=first)

    def apply_fast(self, inputs: dict[str, Array], v: Array, view: View) -> Array:
        """See `MatrixMixer`: many tokens in blocks of queries."""
        queries, keys = self._queries_and_keys(inputs, view)
        logits = dot_product.dot_products(queries, keys, self.spec)
        return dot_product.attend(logits, v, view.keys, view.padding_mask)
