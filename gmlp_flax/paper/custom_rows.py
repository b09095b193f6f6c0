"""Rows for your own blocks, named by their class: `my_package.my_module:MyBlock`.

Such a row is a Transformer with your block in each layer. It has the same frame, training and data,
and as many parameters in the encoder.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict

from gmlp_flax import config as gmlp_config
from gmlp_flax.config import validation
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks
from gmlp_flax.options import options_of
from gmlp_flax.paper import matching

# How a block gets as many parameters as the Transformer: by the width of its MLPs, or by its
# layers if it has no `d_ffn`; by its layers; or not at all.
MATCHES = ("params", "layers", "none")
FRAME = ("layers", "d_model")  # the options of the architecture that come from the Transformer


def is_custom(row: str) -> bool:
    """Whether a row is a class rather than the name of a published model."""
    return ":" in row


def with_match(row: str, match: str) -> str:
    """The row and one of MATCHES as config files take them: CLASS,match=MATCH, or only CLASS for
    the default, which is the first.

    Raises:
        ConfigError: the row is a published model, and the match is not the default.
    """
    if match == MATCHES[0]:
        return row
    if not is_custom(row):
        raise ConfigError(
            f"match={match} is for your own block, my_package.my_module:MyBlock; {row} has published "
            "sizes"
        )
    return f"{row},match={match}"


def parts(row: str) -> tuple[str, str]:
    """Splits what `with_match` returns: the class, and one of MATCHES, or "" if it names none."""
    block, _, match = row.partition(",match=")
    return block, match


def label(row: str) -> str:
    """The label of a row in figures: the name of its class, without the module."""
    block, _ = parts(row)
    _, _, name = block.rpartition(":")
    return name


def modules(rows: Sequence[str]) -> list[str]:
    """The modules of the rows that are classes, as --trust takes them, without duplicates."""
    names: dict[str, None] = {}
    for row in rows:
        if is_custom(row):
            module, _, _ = row.partition(":")
            names[module] = None
    return list(names)


def arguments(arg: str, names: Sequence[str], **options: Sequence[str]) -> tuple[str, ...]:
    """`config.arguments` of a config file whose models may be classes, with the option `match`.

    Returns:
        The row, as `with_match` gives it, and the values of the other options.

    Raises:
        ConfigError: as `config.arguments` and `with_match`.
    """
    name, match, *values = gmlp_config.arguments(
        arg, names, takes_classes=True, match=MATCHES, **options
    )
    return (with_match(name, match), *values)


def in_place_of(transformer: ConfigDict, row: str) -> ConfigDict:
    """The config of a Transformer with another block in each layer.

    The options of the block's architecture keep the defaults of its `Spec`, with two exceptions:
    d_model is the Transformer's, and d_ffn or the number of layers is fitted, so that the encoder
    has about as many parameters as the Transformer's.

    Args:
        transformer: the config to compare with; it is not changed.
        row: the class of the block and one of MATCHES, as `with_match` returns them.

    Raises:
        ConfigError: the block does not exist, or it cannot be made in this frame.
    """
    block, match = parts(row)
    config = gmlp_config.default(task=transformer.task, block=block)
    for key, value in transformer.items():
        if key != "model":
            config[key] = value
    custom = blocks.find(block)
    own_keys = {"block"}
    for key, option in options_of(custom.Spec).items():
        if option.architecture and key not in FRAME:
            own_keys.add(key)
    for key, value in transformer.model.items():
        if key in config.model and key not in own_keys:
            config.model[key] = value
    if "scale_embeddings" in config.model:
        config.model.scale_embeddings = custom.mixes_at_start
    validation.require_callable(block, matching.encoder_spec(config))
    budget = matching.encoder_size(transformer)
    match = match or MATCHES[0]
    if match == "params" and "d_ffn" in config.model:
        config.model.d_ffn = matching.fitted_width(config, budget)
    elif match != "none":
        config.model.layers = matching.fitted_layers(config, budget)
    return config
