"""The optimizers of `config.optimizer.name`, from optax: one row each. The paper uses AdamW."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from gmlp_flax.models.encoder import STACKED
from gmlp_flax.options import Option


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of optax.

    Attributes:
        make: makes its transformation from the learning rate, the keys of config.optimizer, and the function that gives
            the mask of the parameters that weight decay changes.
        bounded: whether a step moves a parameter by about the learning rate at most, whatever its gradient.
        options: hyperparameters that only this optimizer has, by name: each becomes a key config.optimizer.NAME.
    """

    make: Callable[[optax.Schedule, Any, Callable], optax.GradientTransformation]
    bounded: bool = False
    options: Mapping[str, Option] = dataclasses.field(default_factory=dict)


def from_optax(make: Callable[..., optax.GradientTransformation], *names: str) -> Callable:
    """`Optimizer.make` of one of optax's optimizers with decoupled weight decay.

    Args:
        make: the optimizer, such as `optax.adamw`.
        names: its hyperparameters, each a key config.optimizer.NAME.
    """

    def transformation(rate: optax.Schedule, of: Any, mask: Callable) -> optax.GradientTransformation:
        return make(rate, **{name: of[name] for name in names}, weight_decay=of.weight_decay, mask=mask)

    return transformation


def _lamb(rate: optax.Schedule, of: Any, mask: Callable) -> optax.GradientTransformation:
    """optax.lamb (You et al., arXiv 1904.00962), but each layer of a stacked parameter has a trust ratio of its own.

    Parameters that are not decayed have none, as in apex, timm and TensorFlow Addons.
    """
    ratio = optax.scale_by_trust_ratio()

    def scale(update: Any, param: Any) -> Any:
        return ratio.update(update, optax.EmptyState(), param)[0]

    def scale_leaf(path: Any, update: Any, param: Any, decayed: Any) -> Any:
        if not decayed:
            return update
        stacked = jax.tree_util.keystr(path, simple=True, separator="/").startswith(STACKED)
        return (jax.vmap(scale) if stacked else scale)(update, param)

    return optax.chain(
        optax.scale_by_adam(of.b1, of.b2, of.eps),
        optax.add_decayed_weights(of.weight_decay, mask),
        optax.stateless(
            lambda updates, params: jax.tree_util.tree_map_with_path(scale_leaf, updates, params, mask(params))
        ),
        optax.scale_by_learning_rate(rate),
    )


def _sgd(rate: optax.Schedule, of: Any, mask: Callable) -> optax.GradientTransformation:
    return optax.chain(
        optax.trace(of.b1, of.nesterov),
        optax.add_decayed_weights(of.weight_decay, mask),
        optax.scale_by_learning_rate(rate),
    )


OPTIMIZERS = {  # config.optimizer.name ->
    "adamw": Optimizer(from_optax(optax.adamw, "b1", "b2", "eps"), bounded=True),
    "nadamw": Optimizer(from_optax(optax.nadamw, "b1", "b2", "eps"), bounded=True),
    "lamb": Optimizer(_lamb),
    "lion": Optimizer(from_optax(optax.lion, "b1", "b2"), bounded=True),
    "sgd": Optimizer(_sgd, options={"nesterov": Option(False, "Nesterov's momentum in place of the usual one")}),
}
