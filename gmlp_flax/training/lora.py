"""LoRA (Hu et al. 2021, arXiv 2106.09685), as a transformation of gradients.

A kernel is W0 + alpha / rank * A B. The parameters of a run stay W, its value, so that it is evaluated, saved and
exported like any other; A and B are in the state of the optimizer, which has moments of them alone. The gradient of the
loss by A is alpha / rank * G B^T, and by B it is alpha / rank * A^T G, where G is that by W.
"""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util

from gmlp_flax.checkpoints.pytree import path_name
from gmlp_flax.models.encoder import STACKED
from gmlp_flax.models.parameters import ParamMetadata


class LoraState(NamedTuple):
    """`adapters`: flat dict of A, [layers, inputs, rank], and B, [layers, rank, outputs], as `kernel/a` and `kernel/b`
    behind the path; `inner`: the state of the optimizer that trains them, and the heads."""

    adapters: dict[str, jax.Array]
    inner: Any


def adapted(shapes: Any, metadata: Mapping[str, ParamMetadata]) -> list[str]:
    """The paths of the kernels that get a rank: the channel projections of the encoder, [layers, inputs, outputs]. What
    mixes tokens is no channel projection: its shape depends on their number."""
    return [
        name
        for name, leaf in _flat(shapes).items()
        if name.startswith(STACKED) and name.endswith("/kernel") and leaf.ndim == 3 and not metadata[name].resize
    ]


def wrap(
    make: Callable[[Any], optax.GradientTransformation],
    kernels: list[str],
    heads: tuple[str, ...],
    *,
    rank: int,
    alpha: float,
    seed: int,
) -> optax.GradientTransformation:
    """Trains A and B of each kernel, and the parameters whose paths begin with one of `heads`; all others keep their
    values.

    Args:
        make: makes the optimizer of the trees that are trained, from their shapes.
        kernels: paths, as of `adapted`.
        rank: of A B, the size between inputs and outputs.
        alpha: A B counts alpha / rank times.
        seed: of A, which is normal with standard deviation 1 / sqrt(inputs); B is 0.
    """
    factor = alpha / rank

    def adapters_of(params: Any) -> dict[str, jax.Array]:
        flat, made = _flat(params), {}
        for name in kernels:
            layers, inputs, outputs = flat[name].shape
            key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
            made[f"{name}/a"] = jax.random.normal(key, (layers, inputs, rank)) / inputs**0.5
            made[f"{name}/b"] = jnp.zeros((layers, rank, outputs))
        return made

    def trained(adapters: Mapping[str, Any], tree: Any) -> Any:
        """What the inner optimizer sees: the adapters, and the heads of a tree of parameters or gradients."""
        own = {name: leaf for name, leaf in _flat(tree).items() if name.startswith(heads)} if heads else {}
        return traverse_util.unflatten_dict({**adapters, **own}, sep="/")

    def init(params: Any) -> LoraState:
        adapters = adapters_of(params)
        tree = trained(adapters, params)
        return LoraState(adapters, make(jax.eval_shape(lambda: tree)).init(tree))

    def update(grads: Any, state: LoraState, params: Any) -> tuple[Any, LoraState]:
        """As optax's: the adapters' own updates, and what they change in the kernels."""
        old, flat, by_factor = state.adapters, _flat(grads), {}
        for name in kernels:
            by_factor[f"{name}/a"] = factor * flat[name] @ old[f"{name}/b"].mT
            by_factor[f"{name}/b"] = factor * old[f"{name}/a"].mT @ flat[name]
        tree = trained(old, params)
        updates, inner = make(jax.eval_shape(lambda: tree)).update(trained(by_factor, grads), state.inner, tree)
        moved: dict[str, Any] = traverse_util.flatten_dict(updates, sep="/")
        new = {name: leaf + moved[name] for name, leaf in old.items()}
        for name in kernels:
            before, after = (at[f"{name}/a"] @ at[f"{name}/b"] for at in (old, new))
            moved[name] = factor * (after - before)
        merged = {name: moved.get(name, jnp.zeros_like(leaf)) for name, leaf in flat.items()}
        return traverse_util.unflatten_dict(merged, sep="/"), LoraState(new, inner)

    return optax.GradientTransformation(init, update)  # type: ignore[reportArgumentType]  # it needs the parameters


def _flat(tree: Any) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
