"""One file a block, and the table that names them.

A block is built as `Block(spec, rngs)` and called as `block(x, residual, seen, key)`: x [batch, tokens, d_model], a
function that adds a branch to its shortcut (`encoder.Residual`: stochastic depth and dropout live there, once for all
blocks), and two that are for attention alone: bool [batch, tokens], False for padding, or none, and a random key for
dropout on its weights, or none. What mixes tokens by weights of its own ignores both.
`Block.final_norm` is the norm, built as `final_norm(spec, d_model)`, that ends a stack of them.
"""

from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from gmlp_flax.models.blocks.gmlp import GMLPBlock
from gmlp_flax.models.blocks.mixer import MixerBlock
from gmlp_flax.models.blocks.resmlp import ResMLPBlock
from gmlp_flax.models.blocks.transformer import TransformerBlock

BLOCKS = {
    "gmlp": GMLPBlock,
    "transformer": TransformerBlock,
    "mixer": MixerBlock,
    "resmlp": ResMLPBlock,
    "feed_forward": FeedForwardBlock,
}
