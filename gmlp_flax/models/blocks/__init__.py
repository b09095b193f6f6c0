"""One file per block, and the table that names them.

A block from elsewhere is named by its module and class: `my_package.my_block:MyBlock`.
"""

import dataclasses
from typing import Any

from gmlp_flax import registry
from gmlp_flax.errors import ConfigError
from gmlp_flax.models.blocks.base import Block
from gmlp_flax.models.blocks.bigs import BiGSBlock
from gmlp_flax.models.blocks.convolution import ConvolutionBlock
from gmlp_flax.models.blocks.delta import DeltaBlock
from gmlp_flax.models.blocks.external_attention import ExternalAttentionBlock
from gmlp_flax.models.blocks.feed_forward import FeedForwardBlock
from gmlp_flax.models.blocks.fnet import FNetBlock, FNetHybridBlock
from gmlp_flax.models.blocks.gmlp import GMLPBlock
from gmlp_flax.models.blocks.hydra import HydraBlock
from gmlp_flax.models.blocks.long_conv import LongConvBlock
from gmlp_flax.models.blocks.mixer import MixerBlock
from gmlp_flax.models.blocks.resmlp import ResMLPBlock
from gmlp_flax.models.blocks.synthesizer import SynthesizerBlock
from gmlp_flax.models.blocks.transformer import TransformerBlock
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import options_of

BLOCKS: dict[str, type[Block]] = {
    "gmlp": GMLPBlock,
    "transformer": TransformerBlock,
    "mixer": MixerBlock,
    "resmlp": ResMLPBlock,
    "feed_forward": FeedForwardBlock,
    "fnet": FNetBlock,
    "fnet_hybrid": FNetHybridBlock,
    "synthesizer": SynthesizerBlock,
    "external_attention": ExternalAttentionBlock,
    "convolution": ConvolutionBlock,
    "bigs": BiGSBlock,
    "delta": DeltaBlock,
    "hydra": HydraBlock,
    "long_conv": LongConvBlock,
}


def find(name: str) -> type[Block]:
    """The block of a name in BLOCKS, or `my_package.my_block:MyBlock`.

    Raises:
        ConfigError: there is no such block, it cannot be imported, or its Spec is not one.
    """
    block = registry.find(name, BLOCKS, Block, "model.block")
    if not issubclass(block.Spec, BlockSpec):
        expected = f"{BlockSpec.__module__}.{BlockSpec.__name__}"
        raise ConfigError(f"config.model.block is {name!r}: its Spec must extend {expected}")
    for value in vars(block.Spec).values():
        if isinstance(value, dataclasses.Field):  # an option that the decorator has not read
            raise ConfigError(
                f"config.model.block is {name!r}: decorate its Spec with "
                "@dataclasses.dataclass(frozen=True, kw_only=True)"
            )
    return block


def name_of(block: type[Block]) -> str:
    """The inverse of `find`."""
    for name, known in BLOCKS.items():
        if known is block:
            return name
    return f"{block.__module__}:{block.__name__}"


def settings(spec: BlockSpec) -> dict[str, Any]:
    """A spec's block and options as plain values by name: what config.model says about it."""
    values = {"block": name_of(spec.block)}
    for name in options_of(type(spec)):
        values[name] = getattr(spec, name)
    return values
