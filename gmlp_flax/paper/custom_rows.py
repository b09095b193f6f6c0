"""Rows that are blocks of your own, named by their class: `my_package.my_module:MyBlock`.

Such a block stands in the place of a Transformer: it has the same frame, training and data, and as
many parameters in the encoder.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks
from gmlp_flax.options import options_of
from gmlp_flax.paper import matching

# How a block gets as many parameters as the Transformer: by the width of its MLPs, or by its
# layers if it has no `d_ffn`; by its layers; or not at all.
MATCHES = ("params", "layers", "none")
FRAME = ("layers", "d_model")  # of the architecture, what the block takes over from the Transformer


def is_custom(row: str) -> bool:
    """Whether a row is a class, and not the name of a published model."""
    return ":" in row


def with_match(row: str, match: str) -> str:
    """The row with one of MATCHES, as config files take it: CLASS,match=MATCH, or CLASS for the
    first.

    Raises:
        ConfigError: the row is a published model and the match is not the first.
    """
    if match == MATCHES[0]:
        return row
    if not is_custom(row):
        raise ConfigError(
            f"match={match} is for a block of your own, my_package.my_module:MyBlock; {row} has "
            "published sizes"
        )
    return f"{row},match={match}"


def parts(row: str) -> tuple[str, str]:
    """The class of a row that `with_match` gives, and which of MATCHES it names; "" for none."""
    block, _, match = row.partition(",match=")
    return block, match


def label(row: str) -> str:
    """What a figure calls a row: the name of its class, without the module."""
    block, _ = parts(row)
    _, _, name = block.rpartition(":")
    return name


def modules(rows: Sequence[str]) -> list[str]:
    """The modules of the rows that are classes, as --trust takes them; each once."""
    found: dict[str, None] = {}
    for row in rows:
        if is_custom(row):
            module, _, _ = row.partition(":")
            found[module] = None
    return list(found)


def in_place_of(transformer: ConfigDict, row: str) -> ConfigDict:
    """The config of a Transformer with another block in each layer.

    What makes the block's architecture keeps the defaults of its `Spec`, except d_model and either
    d_ffn or the number of layers, with which the encoder has about as many parameters as the
    Transformer's.

    Args:
        transformer: the config to compare with; it is not changed.
        row: the class of the block, with one of MATCHES as `with_match` gives it.

    Raises:
        ConfigError: there is no such block, or it cannot be made in this frame.
    """
    block, match = parts(row)
    config = gmlp_config.default(task=transformer.task, block=block)
    for key, value in transformer.items():
        if key != "model":
            config[key] = value
    found = blocks.find(block)
    own_keys = {"block"}
    for key, option in options_of(found.Spec).items():
        if option.architecture and key not in FRAME:
            own_keys.add(key)
    for key, value in transformer.model.items():
        if key in config.model and key not in own_keys:
            config.model[key] = value
    if "scale_embeddings" in config.model:
        config.model.scale_embeddings = found.mixes_at_start
    budget = matching.encoder_size(transformer)
    match = match or MATCHES[0]
    if match == "params" and "d_ffn" in config.model:
        config.model.d_ffn = matching.fitted_width(config, budget)
    elif match != "none":
        config.model.layers = matching.fitted_layers(config, budget)
    return config
