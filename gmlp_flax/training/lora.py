"""LoRA (Hu et al. 2021, arXiv 2106.09685): training of low-rank adapters of kernels.

With LoRA a kernel is W0 + alpha / rank * A B. The parameters of a run stay W, its value, so that it
is evaluated, saved and exported like any other. A and B are in the state of the optimizer, which
has moments of them alone. With G the gradient of the loss by W, its gradient by A is alpha / rank *
G B^T, and by B it is alpha / rank * A^T G.
"""

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.errors import RunError
from gmlp_flax.models.parameters import PLAIN, ParamMetadata
from gmlp_flax.training.partition import Metadata

T = TypeVar("T")
Arrays = Mapping[str, jax.Array]  # by path


class LoraState(NamedTuple):
    """The state of the optimizer with LoRA.

    Attributes:
        adapters: by path, A, [layers, inputs, rank], as `.../kernel/a`, and B, [layers, rank,
            outputs], as `.../kernel/b`.
        inner: the state of the optimizer that trains the adapters and the heads.
    """

    adapters: dict[str, jax.Array]
    inner: Any


def make_lora(
    config: ConfigDict, params: Any, metadata: Metadata, heads: tuple[str, ...]
) -> "Lora | None":
    """The adapters that a config asks for, if any. The arguments are those of `optimizer.make`.
    Raises RunError if no parameter can have an adapter."""
    rank = config.optimizer.lora_rank
    if not rank:
        return None
    kernels = lora_kernels(params, metadata)
    if not kernels:
        raise RunError(
            f"config.optimizer.lora_rank is {rank}: {config.model.block} has no channel "
            "projections; give 0"
        )
    alpha = config.optimizer.lora_alpha or float(rank)
    return Lora(kernels, heads, rank, alpha, config.seed)


def lora_kernels(shapes: Any, metadata: Metadata) -> list[str]:
    """The paths of the kernels that get adapters: the channel projections of the encoder, [layers,
    inputs, outputs]. What mixes tokens is not a channel projection: its shape depends on the number of
    tokens."""
    kernels = []
    for path, leaf in leaves_by_path(shapes).items():
        parameter = metadata.get(path, PLAIN)
        is_kernel = path.endswith("/kernel")
        is_matrix = is_kernel and leaf.ndim == 3
        has_layers = parameter.layers is not None
        mixes_tokens = parameter.resize is not None
        if is_matrix and has_layers and not mixes_tokens:
            kernels.append(path)
    return kernels


@dataclasses.dataclass(frozen=True)
class Lora:
    """Trains A and B of each kernel, and the parameters whose paths begin with one of `heads`. All
    other parameters keep their values.

    Attributes:
        kernels: paths, from `lora_kernels`.
        heads: the first parts of paths.
        rank: of A B, the size between inputs and outputs.
        alpha: A B counts alpha / rank times.
        seed: of A, which is normal with standard deviation 1 / sqrt(inputs); B is 0.
    """

    kernels: list[str]
    heads: tuple[str, ...]
    rank: int
    alpha: float
    seed: int

    @property
    def factor(self) -> float:
        return self.alpha / self.rank

    def metadata(self, metadata: Metadata) -> dict[str, ParamMetadata]:
        """The metadata of A and B: they have the layers of their kernels, and are not sharded."""
        adapters = {}
        for kernel in self.kernels:
            layers = metadata[kernel].layers
            adapter = ParamMetadata(layers=layers)
            adapters |= _by_path(kernel, adapter, adapter)
        return adapters

    def adapters(self, params: Any) -> dict[str, jax.Array]:
        """A and B before the first step, by path."""
        leaves = leaves_by_path(params)
        adapters = {}
        run_key = jax.random.key(self.seed)
        for kernel in self.kernels:
            layers, inputs, outputs = leaves[kernel].shape
            a_shape = (layers, inputs, self.rank)
            b_shape = (layers, self.rank, outputs)
            number = zlib.crc32(kernel.encode())
            key = jax.random.fold_in(run_key, number)
            standard_normal = jax.random.normal(key, a_shape)
            a = standard_normal / inputs**0.5
            b = jnp.zeros(b_shape)
            adapters |= _by_path(kernel, a, b)
        return adapters

    def trained(self, adapters: Mapping[str, Any], tree: Any) -> Any:
        """What the inner optimizer sees: the adapters, and the heads of a tree of parameters or
        gradients."""
        by_path = dict(adapters)
        for path, leaf in leaves_by_path(tree).items():
            is_of_head = path.startswith(self.heads)
            if is_of_head:
                by_path[path] = leaf
        return traverse_util.unflatten_dict(by_path, sep="/")

    def transformation(
        self, make: Callable[[Any], optax.GradientTransformation]
    ) -> optax.GradientTransformation:
        """The optimizer of the parameters. `make` returns the optimizer of a tree that is trained,
        from its shapes."""

        def init(params: Any) -> LoraState:
            adapters = self.adapters(params)
            tree = self.trained(adapters, params)
            shapes = _shapes(tree)
            optimizer = make(shapes)
            inner = optimizer.init(tree)
            return LoraState(adapters, inner)

        def update(grads: Any, state: LoraState, params: Any) -> tuple[Any, LoraState]:
            """Updates the adapters, and returns what that changes in the kernels."""
            adapters = state.adapters
            tree = self.trained(adapters, params)
            adapter_grads = self._gradients(grads, adapters)
            tree_grads = self.trained(adapter_grads, grads)
            shapes = _shapes(tree)
            optimizer = make(shapes)
            tree_updates, inner = optimizer.update(tree_grads, state.inner, tree)
            updates: dict[str, Any] = traverse_util.flatten_dict(tree_updates, sep="/")
            new_adapters = {}
            for path, adapter in adapters.items():
                new_adapters[path] = adapter + updates[path]
            kernel_updates = self._kernel_updates(adapters, new_adapters)
            by_path = {**updates, **kernel_updates}
            all_updates = _zero_elsewhere(by_path, grads)
            new_state = LoraState(new_adapters, inner)
            return all_updates, new_state

        return optax.GradientTransformation(init, update)  # type: ignore[reportArgumentType]  # it needs the parameters

    def _gradients(self, grads: Any, adapters: Arrays) -> dict[str, jax.Array]:
        """The gradients by A and B, from those by the kernels."""
        by_path = leaves_by_path(grads)
        gradients = {}
        for kernel in self.kernels:
            a, b = _of_kernel(adapters, kernel)
            gradient = by_path[kernel]
            scaled_gradient = self.factor * gradient
            scaled_a = self.factor * a.mT
            by_a = scaled_gradient @ b.mT
            by_b = scaled_a @ gradient
            gradients |= _by_path(kernel, by_a, by_b)
        return gradients

    def _kernel_updates(self, old: Arrays, new: Arrays) -> dict[str, jax.Array]:
        """What a change of the adapters changes in the kernels."""
        updates = {}
        for kernel in self.kernels:
            old_a, old_b = _of_kernel(old, kernel)
            new_a, new_b = _of_kernel(new, kernel)
            new_product = new_a @ new_b
            old_product = old_a @ old_b
            difference = new_product - old_product
            updates[kernel] = self.factor * difference
        return updates


def _by_path(kernel: str, a: T, b: T) -> dict[str, T]:
    """What belongs to A and B of a kernel, by their paths."""
    return {f"{kernel}/a": a, f"{kernel}/b": b}


def _of_kernel(adapters: Arrays, kernel: str) -> tuple[jax.Array, jax.Array]:
    """A and B of a kernel."""
    a = adapters[f"{kernel}/a"]
    b = adapters[f"{kernel}/b"]
    return a, b


def _zero_elsewhere(updates: Arrays, grads: Any) -> Any:
    """A tree like the gradients: the updates, by path, and zeros for parameters without one."""
    merged = {}
    for path, grad in leaves_by_path(grads).items():
        if path in updates:
            merged[path] = updates[path]
        else:
            merged[path] = jnp.zeros_like(grad)
    return traverse_util.unflatten_dict(merged, sep="/")


def _shapes(tree: Any) -> Any:
    return jax.eval_shape(lambda: tree)
