"""A matrix whose weights depend on the distance between two tokens."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models import toeplitz
from gmlp_flax.models.matrix_mixers.base import Features, MatrixMixer, MatrixSpec, View, apply
from gmlp_flax.models.padding import pad_axis
from gmlp_flax.models.parameters import PAST_TAPS, TAPS, parameter


class Toeplitz(MatrixMixer):
    """One weight for each offset between two tokens, divided by 2 sqrt(n): `taps` [heads, 2n - 1] as
    in `models.toeplitz` (causal: [heads, n]), or computed from the tokens.

    If they are computed, token k gives the weights of distance k: one for earlier keys and, unless
    the matrix is causal, one for later keys. The released code instead reads the weight of distance
    k + 1 below the diagonal, and that of k - 1 above it. In a window of documents, tokens are counted
    from the start of their document.
    """

    divides_by_length = True

    def __init__(self, spec: MatrixSpec, rngs: nnx.Rngs):
        if spec.input_dependent:
            self.features = Features(spec, spec.directions * spec.heads, rngs)
        else:
            if spec.causal:
                count = spec.length
                resize = PAST_TAPS
            else:
                count = 2 * spec.length - 1
                resize = TAPS
            init = nnx.initializers.glorot_uniform()
            taps = init(rngs.params(), (spec.heads, count), spec.param_dtype)
            self.taps = parameter(taps, resize=resize)
        self.spec = spec

    @classmethod
    def check(cls, spec: MatrixSpec) -> None:
        """See `MatrixMixer`: a causal matrix has no faster form."""
        if spec.form == "fast" and spec.causal:
            raise ValueError(
                "model.form is 'fast', whose rounding depends on later tokens for a Toeplitz "
                "matrix: use 'auto'"
            )

    @classmethod
    def fastest_form(cls, spec: MatrixSpec, tokens: int) -> str:
        """See `MatrixMixer`. The rounding of the faster form depends on later tokens."""
        if spec.causal or toeplitz.fastest_form(tokens) == "direct":
            return "direct"
        return "fast"

    def project(self, x: Array) -> dict[str, Array]:
        """See `MatrixMixer`."""
        if not self.spec.input_dependent:
            return {}
        return {"weights": self.features.proj(x)}

    def rows(self, inputs: dict[str, Array], view: View) -> Array:
        """See `MatrixMixer`."""
        if self.spec.input_dependent and view.documents is not None:
            return self._rows_of_documents(inputs, view)

        def rows_of_head(taps: Array) -> Array:
            return toeplitz.rows(taps, view.first, view.count)

        rows_of_heads = jax.vmap(rows_of_head)
        rows_of_batch = jax.vmap(rows_of_heads)
        taps = self._all_taps(inputs, view)
        rows = rows_of_batch(taps)
        return view.hide_documents(rows)

    def apply_fast(self, inputs: dict[str, Array], v: Array, view: View) -> Array:
        """See `MatrixMixer`: by the platform's form for many tokens, except between documents."""
        if view.documents is not None:
            rows = self.rows(inputs, view)
            return apply(rows, v)
        taps = self._all_taps(inputs, view)
        batch = v.shape[0]
        _, heads, count = taps.shape
        taps = jnp.broadcast_to(taps, (batch, heads, count))
        form = toeplitz.fastest_form(view.keys)
        if form == "direct":
            form = "fft"
        apply_taps = toeplitz.FORMS[form]
        apply_to_heads = jax.vmap(apply_taps)
        apply_to_batch = jax.vmap(apply_to_heads)
        return apply_to_batch(taps, v)

    def _all_taps(self, inputs: dict[str, Array], view: View) -> Array:
        """The scaled taps, as in `models.toeplitz`: [batch or 1, heads, 2 keys - 1]."""
        if not self.spec.input_dependent:
            taps = self.taps[...] * self._scale
            if self.spec.causal:
                taps = toeplitz.pad_future(taps)
            cropped = toeplitz.crop(taps, view.keys)
            return cropped[None]
        below, above = self._by_distance(inputs, view)
        past = jnp.flip(below, axis=-1)  # the largest distance first
        if above is None:
            return toeplitz.pad_future(past)
        future = above[..., 1:]  # from distance 1 on
        return jnp.concatenate([past, future], axis=-1)

    @property
    def _scale(self) -> float:
        """1 / (2 sqrt(n))."""
        return 0.5 * self.spec.length**-0.5

    def _by_distance(self, inputs: dict[str, Array], view: View) -> tuple[Array, Array | None]:
        """The scaled weights that each token gives, [batch, heads, keys]: those for earlier keys,
        and those for later keys (None in a causal model)."""
        spec = self.spec
        projected = inputs["weights"]
        features = self.features.convolve(projected, view)
        precise = features.astype(spec.precise_dtype)
        weights = precise * self._scale
        weights = weights.swapaxes(1, 2)  # [batch, directions heads, keys]
        if spec.causal:
            return weights, None
        below, above = jnp.split(weights, 2, axis=1)
        return below, above

    def _rows_of_documents(self, inputs: dict[str, Array], view: View) -> Array:
        """All rows in a window of documents, [batch, heads, keys, keys]: an entry of distance k has
        the weight that the k-th token of the row's document gives, counted from 0."""
        documents = view.documents
        assert documents is not None
        positions = jnp.arange(view.keys)
        giving_tokens = _giving_tokens(documents, positions)
        below, above = self._by_distance(inputs, view)
        entries = _given_weights(below, giving_tokens)
        if above is None:
            entries = view.hide_future(entries)
        else:
            is_past = positions <= positions[:, None]
            entries_above = _given_weights(above, giving_tokens)
            entries = jnp.where(is_past, entries, entries_above)
        return view.hide_documents(entries)


def _giving_tokens(documents: Array, positions: Array) -> Array:
    """For each row and column of a matrix, the position of the token that gives the weight of their
    distance: int [batch, 1, keys, keys], for all heads, from documents [batch, keys] and the positions
    of all keys."""
    starts = _starts(documents, positions)
    starts_of_rows = starts[:, :, None]  # [batch, keys, 1]
    offsets = positions[:, None] - positions  # [keys, keys]
    distances = jnp.abs(offsets)
    giving_tokens = starts_of_rows + distances
    # Only pairs of tokens of different documents, which are hidden, are farther apart.
    last = len(positions) - 1
    within_window = jnp.minimum(giving_tokens, last)  # [batch, keys, keys]
    return within_window[:, None]


def _given_weights(weights: Array, giving_tokens: Array) -> Array:
    """The weights [batch, heads, keys] that the tokens in `giving_tokens` give: [batch, heads, keys,
    keys]."""
    weights_of_rows = weights[:, :, None]  # [batch, heads, 1, keys]
    return jnp.take_along_axis(weights_of_rows, giving_tokens, axis=-1)


def _starts(documents: Array, positions: Array) -> Array:
    """The position of the first token of each token's document, [batch, keys]."""
    padded = pad_axis(documents, 1, 1, 0)
    documents_before = padded[:, :-1]
    is_start = documents != documents_before
    # The last start up to a token is the largest of these, and other tokens count as 0.
    start_or_0 = jnp.where(is_start, positions, 0)
    return jax.lax.cummax(start_or_0, axis=1)
