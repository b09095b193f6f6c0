"""The optimizers of `config.optimizer.name`: one row each, or a function like optax's. The paper
uses AdamW."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax
from optax import contrib

from gmlp_flax import registry
from gmlp_flax.errors import ConfigError
from gmlp_flax.models.encoder import STACKED
from gmlp_flax.options import ABOVE_0, AT_LEAST_0, DECAY, RATE, Option

HYPERPARAMETERS = {  # config.optimizer.NAME
    "b1": Option(0.9, "decay of the first moment; of sgd, the momentum", DECAY),
    "b2": Option(
        0.999, "decay of the second moment, or of what the optimizer has in its place", DECAY
    ),
    # Parameters without a gradient so far, such as rows of unseen tokens, are divided by it.
    "eps": Option(1e-6, "epsilon of the optimizers that divide by the second moment", ABOVE_0),
    "weight_decay": Option(
        0.05, "decoupled; not of norms, biases, cls tokens and positions", AT_LEAST_0
    ),
    "nesterov": Option(
        False, "Nesterov's momentum in place of the usual one; of sgd, adam and adamw"
    ),
    "beta": Option(0.95, "of muon: momentum of the matrices", DECAY),
    "consistent_rms": Option(
        0.2, "of muon: root mean square of a step at a rate of 1; 0.2: rates as AdamW's", ABOVE_0
    ),
    "decay_rate": Option(
        0.8, "of adafactor: the second moment decays by 1 - step^-decay_rate", RATE
    ),
    "multiply_by_parameter_scale": Option(
        False, "of adafactor: rates times parameters' root mean squares"
    ),
}


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer.

    Attributes:
        make: makes its transformation from the learning rate, the keys of config.optimizer, and the
            function that gives the mask of the parameters that weight decay changes.
        hyperparameters: the keys of HYPERPARAMETERS that it has.
        averages: whether it is schedule-free: the average that it keeps of the parameters is what
            is used.
        requires: the values that other keys of config.optimizer must have.
    """

    make: Callable[[optax.Schedule, Any, Callable], optax.GradientTransformation]
    hyperparameters: tuple[str, ...]
    averages: bool = False
    requires: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def from_optax(function: Callable[..., Any], **attributes: Any) -> Optimizer:
    """A function like `optax.adamw`: it is called with `learning_rate`, a schedule, and with those
    of HYPERPARAMETERS that are parameters of it. Weight decay needs a `mask` (or
    `weight_decay_mask`), or else norms would be decayed."""
    # which a partial has set
    known = {*inspect.signature(function).parameters} - {*getattr(function, "keywords", ())}
    masks = known & {"mask", "weight_decay_mask"}
    names = tuple(
        name for name in HYPERPARAMETERS if name in known and (masks or name != "weight_decay")
    )

    def make(rate: optax.Schedule, of: Any, mask: Callable) -> optax.GradientTransformation:
        return function(
            learning_rate=rate, **{name: of[name] for name in names}, **dict.fromkeys(masks, mask)
        )

    return Optimizer(make, names, **attributes)


def _decayed(scale: Callable[[Any], optax.GradientTransformation], *then: Callable) -> Callable:
    """`Optimizer.make` of a transformation of the gradients, to which weight decay and the rate are
    added; `then` are (mask) -> a transformation of what is decayed."""

    def make(rate: optax.Schedule, of: Any, mask: Callable) -> optax.GradientTransformation:
        decay = optax.add_decayed_weights(of.weight_decay, mask)
        return optax.chain(
            scale(of), decay, *(step(mask) for step in then), optax.scale_by_learning_rate(rate)
        )

    return make


def _is_stacked(path: tuple) -> bool:
    return jax.tree_util.keystr(path, simple=True, separator="/").startswith(STACKED)


def _by_layer(transformation: optax.GradientTransformation, mask: Callable | None = None) -> Any:
    """Applies a transformation without a state to each parameter alone, and to each layer of a
    stacked one, or to those of a mask; optax would take all layers for one parameter."""

    def scale(update: Any, param: Any) -> Any:
        return transformation.update(update, transformation.init(param), param)[0]

    def scale_leaf(path: Any, update: Any, param: Any, chosen: Any = True) -> Any:
        return (
            (jax.vmap(scale) if _is_stacked(path) else scale)(update, param) if chosen else update
        )

    def update(updates: Any, params: Any) -> Any:
        chosen = [mask(params)] if mask else []
        return jax.tree_util.tree_map_with_path(scale_leaf, updates, params, *chosen)

    return optax.stateless(update)


def _trust_ratio(mask: Callable) -> optax.GradientTransformation:
    """LAMB's (You et al., arXiv 1904.00962). Parameters that are not decayed have none, as in apex
    and timm."""
    return _by_layer(optax.scale_by_trust_ratio(), mask)


def _adam(of: Any) -> optax.GradientTransformation:
    return optax.scale_by_adam(of.b1, of.b2, of.eps)


def _adafactor(of: Any) -> optax.GradientTransformation:
    """As optax.adafactor (Shazeer and Stern, arXiv 1804.04235) without momentum, but by layer;
    there, weight decay is not multiplied by the rate."""
    scales = [optax.clip_by_block_rms(1.0)] + [
        optax.scale_by_param_block_rms()
    ] * of.multiply_by_parameter_scale
    return optax.chain(
        optax.scale_by_factored_rms(decay_rate=of.decay_rate), *map(_by_layer, scales)
    )


def _muon(of: Any) -> optax.GradientTransformation:
    """As optax.contrib.muon, but each layer of the blocks' stacked matrices, of channels or tokens,
    is a matrix. All other parameters, such as embeddings and the head, have NAdam's updates. The
    scale of updates is that of Liu et al., arXiv 2502.16982."""

    def axes(params: Any) -> Any:
        of_matrix = contrib.MuonDimensionNumbers(1, 2)
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: of_matrix if leaf.ndim == 3 and _is_stacked(path) else None, params
        )

    adam = {"adam_b1": of.b1, "adam_b2": of.b2, "eps": of.eps}
    own = {
        "beta": of.beta,
        "consistent_rms": of.consistent_rms,
        "muon_weight_dimension_numbers": axes,
    }
    return contrib.muon(-1.0, **adam, **own)  # the rate comes after it


_ADAM = ("b1", "b2", "eps", "weight_decay")
OPTIMIZERS = {  # config.optimizer.name ->
    "adamw": from_optax(optax.adamw),
    "nadamw": from_optax(optax.nadamw),
    "adam": from_optax(optax.adam),
    "lamb": Optimizer(_decayed(_adam, _trust_ratio), _ADAM),
    "lion": from_optax(optax.lion),
    "sgd": Optimizer(
        _decayed(lambda of: optax.trace(of.b1, of.nesterov)), ("b1", "nesterov", "weight_decay")
    ),
    "adafactor": Optimizer(
        _decayed(_adafactor), ("decay_rate", "multiply_by_parameter_scale", "weight_decay")
    ),
    "muon": Optimizer(_decayed(_muon), (*_ADAM, "beta", "consistent_rms")),
    "schedule_free": Optimizer(  # AdamW's, with b1 = 0 inside (Defazio et al., arXiv 2405.15682)
        _decayed(
            lambda of: optax.scale_by_rms(of.b2, of.eps, eps_in_sqrt=False, bias_correction=True)
        ),
        _ADAM,
        averages=True,
        requires={"schedule": "constant", "ema": 0.0, "lora_rank": 0},
    ),
}


def find(name: str) -> Optimizer:
    """The optimizer of a name in OPTIMIZERS, or of `my_package.my_module:my_function` (see
    `from_optax`).

    Raises:
        ConfigError: there is none, it cannot be imported, or it is no function of a
            `learning_rate`.
    """
    own = "a function of your own, like optax.adamw, is named my_package.my_module:my_function"
    named = registry.lookup(name, OPTIMIZERS, "optimizer.name", own)
    if isinstance(named, Optimizer):
        return named
    if not callable(named) or "learning_rate" not in inspect.signature(named).parameters:
        raise ConfigError(
            f"config.optimizer.name is {name!r}, no function with a parameter `learning_rate`: {own}"
        )
    return from_optax(named)


def keeps_mean(options: Any) -> bool:
    """Whether a run with these keys of config.optimizer has a mean of its parameters, which is then
    what is used."""
    return bool(options.ema) or find(options.name).averages


def check(options: Any) -> None:
    """Refuses keys of config.optimizer that its optimizer does not have, or needs to have another
    value.

    Raises:
        ConfigError: names the key, its value, and the optimizers that have it.
    """
    optimizer = find(options.name)
    unused = {name: option.default for name, option in HYPERPARAMETERS.items()} | {
        "weight_decay": 0.0
    }
    needed = {name: unused[name] for name in unused if name not in optimizer.hyperparameters} | {
        **optimizer.requires
    }
    needed |= {"b1": 0.9} if optimizer.averages and not options.b1 else {}  # it divides by it
    for name, value in needed.items():
        if options[name] != value:
            having = ", ".join(
                row for row, known in OPTIMIZERS.items() if name in known.hyperparameters
            )
            why = (
                f"which does not have it ({having} have)" if having else "which needs another value"
            )
            raise ConfigError(
                f"config.optimizer.{name} is {options[name]!r}: config.optimizer.name is {options.name!r}, {why}: give "
                f"--config.optimizer.{name}={value}"
            )
