"""What models share: linear layers, the MLPs of Transformers and Mixers, norms, activations,
learned positions, residual sums with dropout and stochastic depth, and the cache of generation."""

from gmlp_flax.models.layers.activations import activation
from gmlp_flax.models.layers.decode_cache import CacheArrays, DecodeCache
from gmlp_flax.models.layers.embeddings import LearnedPositions, LearnedSegments
from gmlp_flax.models.layers.linear import Linear
from gmlp_flax.models.layers.mlps import (
    ChannelMLP,
    ChannelMLPSpec,
    GatedMLP,
    TokenLinear,
    TokenMLP,
    TokenMLPSpec,
    check_tokens,
)
from gmlp_flax.models.layers.norms import (
    LayerNorm,
    layer_norm,
    moments,
    moments_in_one_pass,
    rms_norm,
)
from gmlp_flax.models.layers.residual import (
    EVALUATION,
    Branch,
    LayerRng,
    add_branch,
    add_normed,
    drop_path,
    dropout,
    fold_in,
    split_keys,
)

__all__ = [
    "EVALUATION",
    "Branch",
    "CacheArrays",
    "ChannelMLP",
    "ChannelMLPSpec",
    "DecodeCache",
    "GatedMLP",
    "LayerNorm",
    "LayerRng",
    "LearnedPositions",
    "LearnedSegments",
    "Linear",
    "TokenLinear",
    "TokenMLP",
    "TokenMLPSpec",
    "activation",
    "add_branch",
    "add_normed",
    "check_tokens",
    "drop_path",
    "dropout",
    "fold_in",
    "layer_norm",
    "moments",
    "moments_in_one_pass",
    "rms_norm",
    "split_keys",
]
