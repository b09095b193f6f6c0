"""Fits a model to the number of parameters of another one, so that the two can be compared."""

from flax import nnx
from ml_collections import ConfigDict

from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks, parameters
from gmlp_flax.models.encoder import Encoder
from gmlp_flax.models.image import token_count
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import options_of

STEP = 8  # the widths of MLPs are multiples of this
ROUNDS = 8  # of interpolation; two are enough if the parameters are linear in the width


def fitted_width(config: ConfigDict, budget: int) -> int:
    """The d_ffn that gives the encoder about this many parameters. It is a multiple of STEP, and at
    least half of d_model.

    Raises:
        ConfigError: the parameters do not grow with d_ffn.
    """
    least = max(STEP, config.model.d_model // 2)
    first = config.model.d_model
    second = 2 * first
    first_size = encoder_size(config, d_ffn=first)
    for _ in range(ROUNDS):
        second_size = encoder_size(config, d_ffn=second)
        slope = (second_size - first_size) / (second - first)
        if slope <= 0:
            raise ConfigError(
                f"{config.model.block}: its parameters do not grow with d_ffn: match them by "
                "layers (--match=layers), or give its Spec no d_ffn"
            )
        width = first + (budget - first_size) / slope
        fitted = max(STEP * round(width / STEP), least)
        if fitted == second:
            break
        first = second
        first_size = second_size
        second = fitted
    return second


def fitted_layers(config: ConfigDict, budget: int) -> int:
    """The number of layers that gives the encoder about this many parameters, at least one."""
    first_layer = encoder_size(config, layers=1)
    per_layer = encoder_size(config, layers=2) - first_layer
    further_layers = (budget - first_layer) / max(1, per_layer)
    return 1 + max(0, round(further_layers))


def encoder_size(config: ConfigDict, **changes: int) -> int:
    """The number of parameters in the encoder of a config, without embeddings and positions.

    Args:
        config: the config; it is not changed.
        changes: values of keys of config.model that replace the config's.
    """
    spec = encoder_spec(config, **changes)
    encoder = nnx.eval_shape(lambda: Encoder(spec, nnx.Rngs(0)))
    return parameters.count(nnx.state(encoder, nnx.Param))


def encoder_spec(config: ConfigDict, **changes: int) -> BlockSpec:
    """The spec of the blocks of a config; the arguments are those of `encoder_size`."""
    block = blocks.find(config.model.block)
    options = {name: config.model[name] for name in options_of(block.Spec)}
    options |= changes
    return block.spec(length=_tokens(config), **options)


def _tokens(config: ConfigDict) -> int:
    """The number of tokens that the encoder of a config reads."""
    model = config.model
    if "image_size" in model:
        return token_count(model.image_size, model.patch_size, model.pool)
    return model.length
