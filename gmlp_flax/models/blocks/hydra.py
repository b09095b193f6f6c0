"""Hydra (arXiv 2407.09941): a matrix over the tokens of one of five structures, between a short
convolution and a gate. By default it is quasiseparable, a state space model in both directions.

`models.matrix_mixers` has the structures. Where the paper leaves a constant open, it is that of its
code, goombalab/hydra.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from gmlp_flax.models.blocks.base import PreNormBlock
from gmlp_flax.models.layers import DecodeCache, LayerRng, Linear, activation, rms_norm
from gmlp_flax.models.matrix_mixers import MATRICES
from gmlp_flax.models.matrix_mixers.base import MatrixSpec, ShortConvolution, View, apply, by_head
from gmlp_flax.models.parameters import parameter
from gmlp_flax.models.sharding import FSDP
from gmlp_flax.options import option

NORM_EPS = 1e-5  # of the norm before the gate


@dataclasses.dataclass(frozen=True, kw_only=True)
class HydraSpec(MatrixSpec):
    """Options of Hydra: the structure of its matrix, and those of all structures."""

    matrix: str = option(
        "quasiseparable",
        "the structure of the matrix over the tokens",
        tuple(MATRICES),
        architecture=True,
    )

    def check(self) -> None:
        """Raises ValueError for options that the matrix does not have."""
        super().check()
        MATRICES[self.matrix].check(self)

    @property
    def mixes_by_length(self) -> bool:
        """See `BlockSpec`: some matrices are divided by the root of n."""
        return MATRICES[self.matrix].divides_by_length

    def applied_form(self, tokens: int) -> str:
        """How the matrix of so many tokens is applied, "direct" or "fast"."""
        if self.form != "auto":
            return self.form
        return MATRICES[self.matrix].fastest_form(self, tokens)


class HydraMixer(nnx.Module):
    """out(norm(M v) * silu(gate(x))) with v = silu(convolution(values(x))), and M a matrix over the
    tokens for each head. The norm divides by the root of the mean square. No linear layer has a
    bias."""

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        d_model = spec.d_model
        d_inner = spec.d_inner
        self.gate = Linear(spec, d_model, d_inner, rngs, bias=False, activation="silu")
        self.values = Linear(spec, d_model, d_inner, rngs, bias=False)
        self.convolution = ShortConvolution(spec, d_inner, rngs)
        make_matrix = MATRICES[spec.matrix]
        self.matrix = make_matrix(spec, rngs)
        ones = jnp.ones((d_inner,), spec.param_dtype)
        self.norm_scale = parameter(ones, decayed=False)
        self.out = Linear(spec, d_inner, d_model, rngs, sharding=(None, FSDP), bias=False)
        self.spec = spec

    def __call__(
        self,
        x: Array,
        padding_mask: Array | None = None,
        cache: DecodeCache | None = None,
    ) -> Array:
        """[batch, tokens, d_model] to the same; arguments as in `Block`. Raises ValueError for a
        number of tokens that `spec.supports_length` refuses."""
        tokens = x.shape[1]
        self._check_length(tokens)
        v, inputs, view = self._inputs(x, padding_mask, cache)
        if cache is None and self.spec.applied_form(tokens) == "fast":
            mixed = self.matrix.apply_fast(inputs, v, view)
        else:
            rows = self.matrix.rows(inputs, view)
            mixed = apply(rows, v)
        diagonal = self.matrix.diagonal(v)[..., None]
        kept = diagonal * v  # [batch, heads, keys, channels]
        if cache is not None:
            kept = jax.lax.dynamic_slice_in_dim(kept, view.first, tokens, axis=2)
        mixed = mixed + kept
        by_token = mixed.swapaxes(1, 2)  # [batch, tokens, heads, channels]
        channels = jax.lax.collapse(by_token, 2)
        normed = rms_norm(channels, self.norm_scale[...], NORM_EPS, x.dtype)
        gated = normed * self.gate(x)
        return self.out(gated)

    def matrices(self, x: Array, padding_mask: Array | None = None) -> Array:
        """M, diagonal included, [batch or 1, heads, tokens, tokens] in the precise type."""
        v, inputs, view = self._inputs(x, padding_mask, None)
        precise = self.spec.precise_dtype
        rows = self.matrix.rows(inputs, view)
        weights = rows.astype(precise)
        diagonal = self.matrix.diagonal(v)
        diagonal = diagonal.astype(precise)
        entries = diagonal[..., None]  # [batch or 1, heads, tokens or 1, 1]
        identity = jnp.eye(view.keys, dtype=precise)
        diagonal_matrix = entries * identity
        return weights + diagonal_matrix

    def scores(self, x: Array) -> Array:
        """[batch, tokens, d_model] to [batch or 1, heads, tokens, tokens]: the logits of attention, or
        log |M| for other matrices. Their softmax gives the share of each token (a column) in another
        (a row)."""
        _, inputs, view = self._inputs(x, None, None)
        scores = self.matrix.scores(inputs, view)
        if scores is not None:
            return scores
        matrices = self.matrices(x)
        return jnp.log(jnp.abs(matrices))

    def _inputs(
        self, x: Array, padding_mask: Array | None, cache: DecodeCache | None
    ) -> tuple[Array, dict[str, Array], View]:
        """v [batch, heads, keys, channels], what the matrix is computed from, and which of its rows
        are computed."""
        tokens = x.shape[1]
        view = View(0, tokens, tokens, padding_mask)
        x = view.hide(x)
        values = self.values(x)
        projected = self.matrix.project(x)
        inputs = {"values": values, **projected}
        if cache is not None:
            for name, array in inputs.items():
                inputs[name] = cache.update(name, array)
            view = View(cache.first, tokens, cache.length)
        convolved = self.convolution(inputs["values"], view.documents)
        activated = activation("silu", convolved)
        channels = view.hide(activated)
        v = by_head(channels, self.spec.heads)
        return v, inputs, view

    def _check_length(self, tokens: int) -> None:
        if not self.spec.supports_length(tokens):
            kind = self.spec.matrix
            raise ValueError(
                f"the matrix ({kind}) was made for at most {self.spec.length} tokens and was given "
                f"{tokens}"
            )


class HydraBlock(PreNormBlock):
    """x + hydra(norm(x)), then x + mlp(norm(x))."""

    Spec = HydraSpec
    can_be_causal = True
    hides_padding = True
    masks_documents = True

    def __init__(self, spec: HydraSpec, rngs: nnx.Rngs):
        self.hydra = HydraMixer(spec, rngs)
        super().__init__(spec, rngs)

    def mix(
        self, x: Array, rng: LayerRng, padding_mask: Array | None, cache: DecodeCache | None
    ) -> Array:
        """See `PreNormBlock`."""
        return self.hydra(x, padding_mask, cache)

    @classmethod
    def has_spatial_matrix(cls, options: HydraSpec) -> bool:
        """See `Block`."""
        return not options.input_dependent

    def spatial_matrix(self) -> Array | None:
        """See `Block`: the mean of the heads' learned matrices."""
        spec = self.hydra.spec
        if spec.input_dependent:
            return None
        any_input = jnp.zeros((1, spec.length, spec.d_model), spec.compute_dtype)
        matrices = self.hydra.matrices(any_input)
        return matrices[0].mean(axis=0)

    def attention_scores(self, x: Array) -> Array:
        """See `Block`; for other matrices than attention, the logarithm of the absolute weights."""
        normed = self.mixing_norm(x)
        return self.hydra.scores(normed)
