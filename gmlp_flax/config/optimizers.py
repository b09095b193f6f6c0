"""The optimizers of `config.optimizer.name`: one row each, or a function like optax's. The paper
uses AdamW."""

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from gmlp_flax import registry
from gmlp_flax.errors import ConfigError
from gmlp_flax.options import ABOVE_0, AT_LEAST_0, DECAY, RATE, Option

_hyperparameter = functools.partial(Option, may_change=True)
HYPERPARAMETERS = {  # config.optimizer.NAME
    "b1": _hyperparameter(0.9, "decay of the first moment; sgd: the momentum", DECAY),
    "b2": _hyperparameter(
        0.999, "decay of the second moment, or of what replaces it in the optimizer", DECAY
    ),
    # Parameters without a gradient so far, such as rows of unseen tokens, are divided by it.
    "eps": _hyperparameter(
        1e-6, "epsilon of the optimizers that divide by the second moment", ABOVE_0
    ),
    "weight_decay": _hyperparameter(
        0.05,
        "decoupled; not for norms, biases, cls tokens and positions",
        AT_LEAST_0,
        short="wd",
    ),
    "lion_b2": _hyperparameter(0.99, "lion: decay of the stored momentum", DECAY),
    "nesterov": _hyperparameter(
        False, "Nesterov's momentum instead of the usual one; for sgd, adam and adamw"
    ),
    "beta": _hyperparameter(0.95, "muon: momentum of the matrices", DECAY),
    "consistent_rms": _hyperparameter(
        0.2, "muon: root mean square of a step at a rate of 1; 0.2 suits AdamW's rates", ABOVE_0
    ),
    "decay_rate": _hyperparameter(
        0.8, "adafactor: the second moment decays by 1 - step^-decay_rate", RATE
    ),
    "multiply_by_parameter_scale": _hyperparameter(
        False, "adafactor: rates are multiplied by the parameters' root mean squares"
    ),
}


Mask = Callable[[Any], Any]  # from a tree of parameters to a tree of booleans


@dataclasses.dataclass(frozen=True)
class Masks:
    """Masks of the model's parameters, for optimizers.

    Attributes:
        decayed: which parameters weight decay changes.
        stacked: which parameters have the layer as their leading axis.
        matrices: which parameters are matrices of the blocks, of channels or tokens: [layers, a,
            b], and not biases, positions or logits of that shape.
    """

    decayed: Mask
    stacked: Mask
    matrices: Mask


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer.

    Attributes:
        make: makes its transformation from the learning rate, the keys of config.optimizer, and the
            masks of the model's parameters.
        hyperparameters: the keys of HYPERPARAMETERS that it has.
        averages: whether it is schedule-free: it keeps an average of the parameters, which is then
            used.
        requires: the values that other keys of config.optimizer must have.
        fixed: the hyperparameters that its state depends on: they must not change in the middle of
            a run.
    """

    make: Callable[[optax.Schedule, Any, Masks], optax.GradientTransformation]
    hyperparameters: tuple[str, ...]
    averages: bool = False
    requires: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: tuple[str, ...] = ()


def from_optax(function: Callable[..., Any], **attributes: Any) -> Optimizer:
    """An optimizer from a function like `optax.adamw`. It is called with `learning_rate`, a
    schedule, and with all HYPERPARAMETERS that it takes. Weight decay needs a `mask` (or
    `weight_decay_mask`), or else norms would be decayed."""
    already_set = {*getattr(function, "keywords", ())}  # by functools.partial
    parameters = {*inspect.signature(function).parameters} - already_set
    mask_names = parameters & {"mask", "weight_decay_mask"}
    names = [name for name in HYPERPARAMETERS if name in parameters]
    if not mask_names and "weight_decay" in names:
        names.remove("weight_decay")

    def make(rate: optax.Schedule, options: Any, masks: Masks) -> optax.GradientTransformation:
        """See `Optimizer.make`."""
        arguments = {name: options[name] for name in names}
        arguments |= dict.fromkeys(mask_names, masks.decayed)
        return function(learning_rate=rate, **arguments)

    return Optimizer(make, tuple(names), **attributes)


# From the keys of config.optimizer and the masks to a part of an optimizer.
Part = Callable[[Any, Masks], optax.GradientTransformation]


def _decayed(scale: Part, after_decay: Part | None = None) -> Callable:
    """`Optimizer.make` of a transformation of the gradients, to which weight decay and the rate are
    added; `after_decay` transforms what is decayed."""

    def make(rate: optax.Schedule, options: Any, masks: Masks) -> optax.GradientTransformation:
        """See `Optimizer.make`."""
        steps = [
            scale(options, masks),
            optax.add_decayed_weights(options.weight_decay, masks.decayed),
        ]
        if after_decay is not None:
            steps.append(after_decay(options, masks))
        steps.append(optax.scale_by_learning_rate(rate))
        return optax.chain(*steps)

    return make


def _by_layer(
    transformation: optax.GradientTransformation, stacked: Mask, scaled: Mask | None = None
) -> Any:
    """Applies a transformation without a state to each parameter separately, and to each layer of a
    stacked one; optax would treat all layers as one parameter.

    Args:
        transformation: the transformation of one parameter.
        stacked: see `Masks`.
        scaled: which parameters are transformed; all by default.
    """

    def scale(update: Any, param: Any) -> Any:
        state = transformation.init(param)
        scaled_update, _ = transformation.update(update, state, param)
        return scaled_update

    def scale_leaf(update: Any, param: Any, is_stacked: bool, is_scaled: bool) -> Any:
        if not is_scaled:
            return update
        if is_stacked:
            return jax.vmap(scale)(update, param)
        return scale(update, param)

    def update(updates: Any, params: Any) -> Any:
        is_stacked = stacked(params)
        is_scaled = jax.tree.map(lambda _: True, params)
        if scaled is not None:
            is_scaled = scaled(params)
        return jax.tree.map(scale_leaf, updates, params, is_stacked, is_scaled)

    return optax.stateless(update)


def _trust_ratio(_options: Any, masks: Masks) -> optax.GradientTransformation:
    """LAMB's trust ratio (You et al., arXiv 1904.00962). Parameters that are not decayed have none,
    as in apex and timm."""
    return _by_layer(optax.scale_by_trust_ratio(), masks.stacked, scaled=masks.decayed)


def _adam(options: Any, _masks: Masks) -> optax.GradientTransformation:
    return optax.scale_by_adam(options.b1, options.b2, options.eps)


def _momentum(options: Any, _masks: Masks) -> optax.GradientTransformation:
    return optax.trace(options.b1, options.nesterov)


def _rms(options: Any, _masks: Masks) -> optax.GradientTransformation:
    return optax.scale_by_rms(options.b2, options.eps, eps_in_sqrt=False, bias_correction=True)


class _Moments(NamedTuple):
    """The second moment of one parameter, in optax's fields: factored, or whole."""

    v_row: Any
    v_col: Any
    v: Any


class _Scaled(NamedTuple):
    """The scaled update of one parameter, and its new second moment."""

    update: Any
    moments: _Moments


def _factored_rms(decay_rate: float, stacked: Mask) -> optax.GradientTransformation:
    """optax.scale_by_factored_rms of each layer of a stacked parameter; optax would factor the axis
    of layers if there are many. The state is optax's, its fields have the structure of the
    parameters."""
    of_parameter = optax.scale_by_factored_rms(decay_rate=decay_rate)

    def init_leaf(param: Any, is_stacked: bool) -> _Moments:
        init = jax.vmap(of_parameter.init) if is_stacked else of_parameter.init
        state: Any = init(param)
        return _Moments(state.v_row, state.v_col, state.v)

    def is_moments(node: Any) -> bool:
        return isinstance(node, _Moments)

    def is_scaled(node: Any) -> bool:
        return isinstance(node, _Scaled)

    def join(moments: Any, count: Any) -> optax.FactoredState:
        """The state from the moments of all parameters."""

        def field(name: str) -> Any:
            return jax.tree.map(operator.attrgetter(name), moments, is_leaf=is_moments)

        return optax.FactoredState(count, field("v_row"), field("v_col"), field("v"))

    def init(params: Any) -> optax.FactoredState:
        moments = jax.tree.map(init_leaf, params, stacked(params))
        return join(moments, jnp.zeros((), jnp.int32))

    def update(
        updates: Any, state: optax.FactoredState, params: Any = None
    ) -> tuple[Any, optax.FactoredState]:
        """See optax.GradientTransformation."""

        def scale(update: Any, param: Any, moments: _Moments) -> _Scaled:
            """For one layer, or for a parameter without layers."""
            old_state = optax.FactoredState(state.count, *moments)
            new_state: Any
            scaled_update, new_state = of_parameter.update(update, old_state, param)
            new_moments = _Moments(new_state.v_row, new_state.v_col, new_state.v)
            return _Scaled(scaled_update, new_moments)

        def update_leaf(update: Any, param: Any, is_stacked: bool, *moments: Any) -> _Scaled:
            by_layer = jax.vmap(scale) if is_stacked else scale
            return by_layer(update, param, _Moments(*moments))

        is_stacked = stacked(params)
        scaled = jax.tree.map(
            update_leaf, updates, params, is_stacked, state.v_row, state.v_col, state.v
        )
        new_updates = jax.tree.map(lambda leaf: leaf.update, scaled, is_leaf=is_scaled)
        moments = jax.tree.map(lambda leaf: leaf.moments, scaled, is_leaf=is_scaled)
        return new_updates, join(moments, optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)  # type: ignore[reportArgumentType]  # it needs the parameters


def _adafactor(options: Any, masks: Masks) -> optax.GradientTransformation:
    """optax.adafactor (Shazeer and Stern, arXiv 1804.04235) without momentum, but by layer. optax
    does not multiply its weight decay by the rate."""
    steps = [
        _factored_rms(options.decay_rate, masks.stacked),
        _by_layer(optax.clip_by_block_rms(1.0), masks.stacked),
    ]
    if options.multiply_by_parameter_scale:
        steps.append(_by_layer(optax.scale_by_param_block_rms(), masks.stacked))
    return optax.chain(*steps)


def _lion(options: Any, _masks: Masks) -> optax.GradientTransformation:
    return optax.scale_by_lion(options.b1, options.lion_b2)


def _muon(options: Any, masks: Masks) -> optax.GradientTransformation:
    """optax.contrib.muon for which each layer of the blocks' stacked matrices is a matrix. All other
    parameters, such as embeddings, biases and the head, get NAdam's updates. The scale of updates
    is that of Liu et al., arXiv 2502.16982."""

    def dimensions(is_matrix: bool) -> contrib.MuonDimensionNumbers | None:
        return contrib.MuonDimensionNumbers(1, 2) if is_matrix else None

    def weight_dimensions(params: Any) -> Any:
        return jax.tree.map(dimensions, masks.matrices(params))

    return contrib.muon(
        -1.0,  # the rate comes after it
        beta=options.beta,
        eps=options.eps,
        adam_b1=options.b1,
        adam_b2=options.b2,
        consistent_rms=options.consistent_rms,
        muon_weight_dimension_numbers=weight_dimensions,
    )


_ADAM = ("b1", "b2", "eps", "weight_decay")
OPTIMIZERS = {  # config.optimizer.name ->
    "adamw": from_optax(optax.adamw),
    "nadamw": from_optax(optax.nadamw),
    "adam": from_optax(optax.adam),
    "lamb": Optimizer(_decayed(_adam, _trust_ratio), _ADAM),
    "lion": Optimizer(_decayed(_lion), ("b1", "lion_b2", "weight_decay")),
    "sgd": Optimizer(_decayed(_momentum), ("b1", "nesterov", "weight_decay")),
    "adafactor": Optimizer(
        _decayed(_adafactor), ("decay_rate", "multiply_by_parameter_scale", "weight_decay")
    ),
    "muon": Optimizer(_decayed(_muon), (*_ADAM, "beta", "consistent_rms")),
    "schedule_free": Optimizer(  # AdamW's, with b1 = 0 inside (Defazio et al., arXiv 2405.15682)
        _decayed(_rms),
        _ADAM,
        averages=True,
        requires={"schedule": "constant", "ema": 0.0, "lora_rank": 0},
        fixed=("b1",),
    ),
}


def find(name: str) -> Optimizer:
    """The optimizer of a name in OPTIMIZERS, or of `my_package.my_module:my_function` (see
    `from_optax`).

    Raises:
        ConfigError: there is none, it cannot be imported, or it is not a function of a
            `learning_rate`.
    """
    advice = "a function of your own, like optax.adamw, is named my_package.my_module:my_function"
    optimizer = registry.lookup(name, OPTIMIZERS, "optimizer.name", advice)
    if isinstance(optimizer, Optimizer):
        return optimizer
    if not callable(optimizer) or "learning_rate" not in inspect.signature(optimizer).parameters:
        raise ConfigError(
            f"config.optimizer.name is {name!r}, which is not a function with a parameter `learning_rate`: "
            f"{advice}"
        )
    return from_optax(optimizer)


def keeps_mean(options: Any) -> bool:
    """Whether a run with these keys of config.optimizer keeps a mean of its parameters, which is
    then used."""
    return bool(options.ema) or find(options.name).averages


def check(options: Any) -> None:
    """Refuses keys of config.optimizer that its optimizer does not have, or for which it needs
    another value.

    Raises:
        ConfigError: names the key, its value, and the optimizers that have it.
    """
    needed = _needed(find(options.name), options)
    for name, value in needed.items():
        if options[name] == value:
            continue
        having = [row for row, known in OPTIMIZERS.items() if name in known.hyperparameters]
        why = "which needs another value"
        if having:
            why = f"which does not have it ({', '.join(having)} have)"
        raise ConfigError(
            f"config.optimizer.{name} is {options[name]!r}: config.optimizer.name is "
            f"{options.name!r}, {why}: give --config.optimizer.{name}={value}"
        )


def _needed(optimizer: Optimizer, options: Any) -> dict[str, Any]:
    """The values that keys must have: the defaults of those that the optimizer does not have, but 0
    for weight decay; and what the optimizer requires."""
    needed: dict[str, Any] = {}
    for name, option in HYPERPARAMETERS.items():
        if name not in optimizer.hyperparameters:
            needed[name] = 0.0 if name == "weight_decay" else option.default
    needed.update(optimizer.requires)
    if optimizer.averages and not options.b1:
        needed["b1"] = HYPERPARAMETERS["b1"].default  # it divides by it
    return needed
