"""A stack of any block: one program for all layers, scanned over stacked parameters."""

from __future__ import annotations

import chex
import jax
from flax import nnx

from gmlp_flax.models import layout, products
from gmlp_flax.models.layers import dropout, split_keys
from gmlp_flax.models.spec import BlockSpec

STACKED = "encoder/blocks/"  # beginning of the paths of parameters whose leading axis is the layer

REMAT_POLICIES = {
    "matmuls": jax.checkpoint_policies.save_only_these_names(products.NAME),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Residual:
    """Adds a block's branches to their shortcuts: dropout, then stochastic depth, each branch with keys of its own.

    Stochastic depth drops a whole branch for a sample and scales the kept ones by 1 / survival, so that the expected
    value is the one in evaluation, which keeps all.
    """

    def __init__(self, spec: BlockSpec, survival: jax.Array, keys: jax.Array | None):
        """`keys` [two per branch, batch], or None for evaluation."""
        self.spec, self.survival, self.keys = spec, survival, None if keys is None else iter(keys)

    def __call__(self, shortcut: jax.Array, branch: jax.Array) -> jax.Array:
        """Both [batch, tokens, d_model]."""
        if self.keys is not None:
            drop_keys, depth_keys = next(self.keys, None), next(self.keys, None)
            if drop_keys is None or depth_keys is None:
                block = self.spec.block
                raise ValueError(f"{block.__name__} adds more branches than its `branches`, {block.branches}: raise it")
            branch = dropout(branch, self.spec.dropout, drop_keys)
            if self.spec.survival < 1:
                kept = jax.vmap(lambda key: jax.random.bernoulli(key, self.survival))(depth_keys)
                branch = branch * (kept / self.survival).astype(branch.dtype)[:, None, None]
        return layout.cut(shortcut + branch, layout.BATCH)


class Encoder(nnx.Module):
    """`spec.layers` blocks, their parameters stacked along a leading axis, and the block's final norm.

    The paper does not name the final norm; a stack of pre-norm blocks needs one before its head.
    """

    def __init__(self, spec: BlockSpec, rngs: nnx.Rngs):
        make = nnx.vmap(lambda rngs: spec.block(spec, rngs), in_axes=0, out_axes=0)
        self.blocks = make(rngs.split(spec.layers))
        self.norm = spec.block.final_norm(spec, spec.d_model)
        self.spec = spec

    def __call__(self, x: jax.Array, key: jax.Array | None = None, seen: jax.Array | None = None) -> jax.Array:
        """Runs the stack.

        Args:
            x: [batch, tokens, d_model] in the compute type.
            key: a random key per example, [batch], for training (stochastic depth, dropout); None for evaluation.
            seen: bool [batch, tokens], False for padding, which attention then ignores; None if there is none.

        Returns:
            [batch, tokens, d_model], normalised.
        """
        spec = self.spec
        chex.assert_shape(x, (None, None, spec.d_model))
        if seen is not None:
            chex.assert_equal_shape_prefix([x, seen], 2)
        if not spec.draws:
            key = None
        definition, stacked = nnx.split(self.blocks)
        keys = None if key is None else split_keys(key, spec.layers + 1)
        if keys is not None:
            x = dropout(x, spec.dropout, keys[-1])
        x = layout.cut(x, layout.BATCH)

        def layer(x, inputs):
            params, survival, key = inputs
            layer_keys = None if key is None else split_keys(key, 1 + 2 * spec.block.branches)
            attention_key = None if layer_keys is None else layer_keys[0]
            residual = Residual(spec, survival, None if layer_keys is None else layer_keys[1:])
            return nnx.merge(definition, params)(x, residual, seen, attention_key), None

        if spec.remat != "none":
            # Inside a scan the compiler cannot undo the recomputation, so no barrier is needed against it.
            layer = jax.checkpoint(layer, policy=REMAT_POLICIES[spec.remat], prevent_cse=False)
        x, _ = jax.lax.scan(layer, x, (stacked, spec.survival_by_layer(), None if keys is None else keys[:-1]))
        return self.norm(x)
