"""A matrix with a parameter for each pair of tokens."""

import jax
from flax import nnx
from jax import Array

from gmlp_flax.models.matrix_mixers.base import MatrixMixer, MatrixSpec, View
from gmlp_flax.models.parameters import OverPatches, parameter


class Dense(MatrixMixer):
    """`weight` [heads, n, n] / sqrt(n), Glorot-normal at the start: n^2 parameters in each head.
    Fewer tokens have its upper left corner."""

    divides_by_length = True

    def __init__(self, spec: MatrixSpec, rngs: nnx.Rngs):
        n = spec.length
        shape = (spec.heads, n, n)
        init = nnx.initializers.glorot_normal(batch_axis=0)
        weight = init(rngs.params(), shape, spec.param_dtype)
        resize = OverPatches(outputs=-2, inputs=-1)
        self.weight = parameter(weight, resize=resize)
        self.spec = spec

    @classmethod
    def check(cls, spec: MatrixSpec) -> None:
        """See `MatrixMixer`: it is not computed from the input, and has no faster form."""
        if spec.input_dependent:
            raise ValueError(
                "model.input_dependent is True: a dense matrix is learned; set it to False"
            )
        if spec.form == "fast":
            raise ValueError("model.form is 'fast': a dense matrix has no faster form; use 'auto'")

    def rows(self, inputs: dict[str, Array], view: View) -> Array:
        """See `MatrixMixer`."""
        weight = self.weight[:, :, : view.keys]  # [heads, n, keys]
        scale = self.spec.length**-0.5
        scaled = weight * scale
        rows = jax.lax.dynamic_slice_in_dim(scaled, view.first, view.count, axis=1)
        if self.spec.causal:
            rows = view.hide_future(rows)
        return view.hide_documents(rows[None])
