"""The optimizer of a run: a row of `config.optimizers` with a schedule, clipping, weight decay of
the parameters that the model marks, learning-rate multipliers, frozen parameters, and LoRA (Hu et
al. 2021, arXiv 2106.09685).

With LoRA a kernel is W0 + alpha / rank * A B. The parameters of a run stay W, its value, so that it
is evaluated, saved and exported like any other; A and B are in the state of the optimizer, which
has moments of them alone. The gradient of the loss by A is alpha / rank * G B^T, and by B it is
alpha / rank * A^T G, where G is that by W.
"""

import dataclasses
import functools
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from flax import traverse_util
from ml_collections import ConfigDict

from gmlp_flax.checkpoints.pytree import leaves_by_path, path_name
from gmlp_flax.config import optimizers, validation
from gmlp_flax.errors import RunError
from gmlp_flax.models.parameters import PLAIN, ParamMetadata

Metadata = Mapping[str, ParamMetadata]  # of the parameters, by path (`Task.param_metadata`)


def learning_rate(config: ConfigDict) -> optax.Schedule:
    """The learning rate over steps: linear warmup from peak / warmup to the peak; then cosine or
    linear decay that would reach 0 one step after the last, a constant rate, one with a linear
    decay in the last steps (wsd, as in MiniCPM, arXiv 2404.06395), or a decay with 1 / sqrt(step),
    whatever the number of steps (Vaswani et al. 2017, section 5.3)."""
    peak = config.optimizer.learning_rate
    warmup = config.optimizer.warmup
    if config.optimizer.schedule != "rsqrt":
        warmup = min(warmup, config.steps)
    decay_steps = max(config.steps - warmup, 1)
    last_steps = min(max(round(config.optimizer.decay_share * config.steps), 1), decay_steps)
    after = {
        "cosine": optax.cosine_decay_schedule(peak, decay_steps),
        "linear": optax.linear_schedule(peak, 0.0, decay_steps),
        "constant": optax.constant_schedule(peak),
        "wsd": optax.linear_schedule(peak, 0.0, last_steps, decay_steps - last_steps),
        "rsqrt": lambda since: (
            peak * jax.lax.rsqrt(1 + jnp.asarray(since, jnp.float32) / max(warmup, 1))
        ),
    }[config.optimizer.schedule]
    if warmup == 0:
        return after
    # The first step uses peak / warmup: a rate of 0 would change nothing.
    ramp = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
    return optax.join_schedules([ramp, after], [warmup])


def factors(params: Any, lines: Iterable[str], metadata: Metadata) -> dict[str, Any]:
    """The factors on the learning rate: for each parameter that of the first of `lines` that
    matches its path, or 1.

    Args:
        params: the parameters or their shapes.
        lines: config.optimizer.lr_multipliers.
        metadata: says which parameters have layers.

    Returns:
        By path, a number, or an array that spreads over the axes of the parameter: [layers, 1, ...]
        if the factor grows with depth.

    Raises:
        RunError: a line matches no parameter, or asks depth of one that has no layers.
    """
    multipliers = validation.lr_multipliers(lines)
    used = set()
    by_path = {}
    for path, leaf in leaves_by_path(params).items():
        multiplier = _first_match(multipliers, path)
        used.add(multiplier)
        if multiplier is None:
            by_path[path] = 1.0
        else:
            by_path[path] = _factor(multiplier, path, leaf, metadata)
    unused = [multiplier for multiplier in multipliers if multiplier not in used]
    if unused:
        raise RunError(
            f"config.optimizer.lr_multipliers: {unused[0].pattern!r} matches no parameter left, "
            f"e.g. {next(iter(by_path))}"
        )
    return by_path


def _first_match(
    multipliers: Iterable[validation.Multiplier], path: str
) -> validation.Multiplier | None:
    for multiplier in multipliers:
        if re.search(multiplier.pattern, path):
            return multiplier
    return None


def _factor(
    multiplier: validation.Multiplier, path: str, leaf: Any, metadata: Metadata
) -> float | np.ndarray:
    """One number or, if the factor grows with depth, an array [layers, 1, ...]."""
    if multiplier.first == multiplier.last:
        return multiplier.first
    layers = metadata.get(path, PLAIN).layers
    if layers is None:
        raise RunError(
            f"config.optimizer.lr_multipliers: {multiplier.pattern!r} matches {path}, which has no "
            "layers: give one factor"
        )
    by_layer = np.geomspace(multiplier.first, multiplier.last, layers.total, dtype=np.float32)
    stacked = by_layer[layers.first : layers.first + leaf.shape[0]]
    other_axes = (1,) * (len(leaf.shape) - 1)
    return stacked.reshape(-1, *other_axes)


def masks(metadata: Metadata, decay_all: bool = False) -> optimizers.Masks:
    """What the model says of its parameters, for the optimizers. `decay_all` has weight decay
    change all of them."""

    def decayed(path: tuple, _: Any) -> bool:
        return decay_all or metadata.get(path_name(path), PLAIN).decayed

    def stacked(path: tuple, _: Any) -> bool:
        return metadata.get(path_name(path), PLAIN).layers is not None

    def matrix(path: tuple, leaf: Any) -> bool:
        parameter = metadata.get(path_name(path), PLAIN)
        return parameter.layers is not None and parameter.decayed and leaf.ndim == 3

    return optimizers.Masks(
        decayed=functools.partial(jax.tree_util.tree_map_with_path, decayed),
        stacked=functools.partial(jax.tree_util.tree_map_with_path, stacked),
        matrices=functools.partial(jax.tree_util.tree_map_with_path, matrix),
    )


def parameter_paths(opt_state: Any, params: Any) -> Any:
    """The path of the parameter that each leaf of an optimizer's state belongs to.

    optax keeps what it knows of each parameter, such as a moment, in a tree of the structure of the
    parameters, in which a parameter that is left out is an `optax.MaskedNode`.

    Args:
        opt_state: the state, or its shapes.
        params: the tree that the optimizer updates, or its shapes (see `trained`).

    Returns:
        A tree like the state of strings, "" for a leaf that belongs to no parameter.
    """
    structure = jax.tree.structure(params)
    paths = jax.tree_util.tree_map_with_path(lambda path, _: path_name(path), params)

    def is_like_params(node: Any) -> bool:
        return jax.tree.structure(node, is_leaf=_is_masked) == structure

    def name(node: Any) -> Any:
        if not is_like_params(node):
            return ""
        return jax.tree.map(_keep_masked, node, paths, is_leaf=_is_masked)

    return jax.tree.map(name, opt_state, is_leaf=is_like_params)


def _is_masked(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


def _keep_masked(node: Any, path: str) -> Any:
    return node if _is_masked(node) else path


def eval_params(opt_state: Any, params: Any) -> Any:
    """The parameters that a schedule-free optimizer evaluates; frozen ones as they are."""

    def is_state(node: Any) -> bool:
        return isinstance(node, optax.contrib.ScheduleFreeState)

    def average(y: Any, z: Any) -> Any:
        if _is_masked(z):
            return y
        return optax.contrib.schedule_free_eval_params(state._replace(z=z), y)

    (state,) = filter(is_state, jax.tree.leaves(opt_state, is_leaf=is_state))
    return jax.tree.map(average, params, state.z)


# The counts of steps that schedules read, in the states that have them.
SCHEDULE_FIELDS: dict[type, tuple[str, ...]] = {
    optax.ScaleByScheduleState: ("count",),
    optax.InjectStatefulHyperparamsState: ("count", "hyperparams", "hyperparams_states"),
    optax.contrib.ScheduleFreeState: ("step_count",),
}


def after_skipped_step(before: Any, after: Any) -> Any:
    """The state of an optimizer after a step that is left out.

    Args:
        before: the state before the step.
        after: the state after it, had it been taken.

    Returns:
        `before`, but for what schedules read: rates depend on the number of the step, whether or
        not the steps before it were left out.
    """

    def is_scheduled(node: Any) -> bool:
        return type(node) in SCHEDULE_FIELDS

    def merge(old: Any, new: Any) -> Any:
        """The old state, with the new count of a schedule."""
        if not is_scheduled(old):
            return old
        fields = {}
        for name, value in old._asdict().items():
            if name in SCHEDULE_FIELDS[type(old)]:
                fields[name] = getattr(new, name)
            else:
                fields[name] = after_skipped_step(value, getattr(new, name))
        return type(old)(**fields)

    return jax.tree.map(merge, before, after, is_leaf=is_scheduled)


def make(
    config: ConfigDict, params: Any, metadata: Metadata, heads: tuple[str, ...] = ()
) -> optax.GradientTransformation:
    """The transformation from gradients to updates.

    Args:
        config: of the run.
        params: the parameters or their shapes.
        metadata: what the model says of its parameters.
        heads: with config.optimizer.lora_rank, how the paths begin of what is trained beside the
            adapters.

    Raises:
        RunError: a pattern of config.optimizer.freeze or lr_multipliers does not fit the
            parameters, or none of them can have a LoRA.
    """
    lora = make_lora(config, params, metadata, heads)
    if lora is None:
        return _make(config, params, metadata)
    with_adapters = {**metadata, **lora.metadata(metadata)}
    make_inner = functools.partial(_make, config, metadata=with_adapters)
    transformation = lora.transformation(make_inner)
    jax.eval_shape(transformation.init, params)  # names patterns that do not fit
    return transformation


def trained(
    config: ConfigDict, params: Any, metadata: Metadata, heads: tuple[str, ...] = ()
) -> Any:
    """The shapes of the tree that the optimizer of `make` updates: the parameters or, with LoRA,
    the adapters and the heads. The arguments are those of `make`."""
    lora = make_lora(config, params, metadata, heads)
    if lora is None:
        return params
    return jax.eval_shape(lambda params: lora.trained(lora.adapters(params), params), params)


def _make(config: ConfigDict, params: Any, metadata: Metadata) -> optax.GradientTransformation:
    """`make` without LoRA."""
    options = config.optimizer
    rate = learning_rate(config)
    optimizer = optimizers.find(options.name)
    # The state has the same names with and without clipping and multipliers, so a run can resume
    # with others.
    clip = optax.clip_by_global_norm(options.clip) if options.clip else optax.identity()
    by_path = factors(params, options.lr_multipliers, metadata)
    multiply = _multiply(by_path) if options.lr_multipliers else optax.identity()
    update = optimizer.make(rate, options, masks(metadata, options.decay_all))
    transformation = optax.chain(clip, update, multiply)
    if optimizer.averages:  # of the multiplied updates
        # optax counts the steps of the average's weights from 1, and those of schedules from 0.
        transformation = optax.contrib.schedule_free(
            transformation, lambda count: rate(count - 1), options.b1
        )
    if not options.freeze:
        return transformation
    return _freeze(transformation, params, options.freeze)


def _multiply(by_path: Mapping[str, Any]) -> Any:
    """Multiplies each update by a factor, by path."""

    def multiply(path: tuple, update: Any) -> Any:
        return update * by_path[path_name(path)]

    def multiply_all(updates: Any, _: Any) -> Any:
        return jax.tree_util.tree_map_with_path(multiply, updates)

    return optax.stateless(multiply_all)


def _freeze(
    transformation: optax.GradientTransformation, params: Any, patterns: Iterable[str]
) -> optax.GradientTransformation:
    """Leaves the parameters as they are whose paths match one of the patterns. Raises RunError at a
    pattern that matches none."""
    names = [*leaves_by_path(params)]
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in names):
            raise RunError(
                f"config.optimizer.freeze: {pattern!r} matches no parameter, e.g. {names[0]}"
            )

    def label(path: tuple, _: Any) -> str:
        name = path_name(path)
        is_frozen = any(re.search(pattern, name) for pattern in patterns)
        return "frozen" if is_frozen else "trained"

    labels = jax.tree_util.tree_map_with_path(label, params)
    return optax.multi_transform({"trained": transformation, "frozen": optax.set_to_zero()}, labels)


class LoraState(NamedTuple):
    """`adapters`: flat dict of A, [layers, inputs, rank], and B, [layers, rank, outputs], as
    `kernel/a` and `kernel/b` behind the path; `inner`: the state of the optimizer that trains them,
    and the heads."""

    adapters: dict[str, jax.Array]
    inner: Any


def make_lora(
    config: ConfigDict, params: Any, metadata: Metadata, heads: tuple[str, ...]
) -> "Lora | None":
    """The adapters that a config asks for, if any; the arguments are those of `make`. Raises
    RunError if no parameter can have one."""
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
    """The paths of the kernels that get a rank: the channel projections of the encoder, [layers,
    inputs, outputs]. What mixes tokens is no channel projection: its shape depends on their
    number."""
    kernels = []
    for path, leaf in leaves_by_path(shapes).items():
        parameter = metadata.get(path, PLAIN)
        is_matrix = path.endswith("/kernel") and leaf.ndim == 3
        if is_matrix and parameter.layers is not None and not parameter.resize:
            kernels.append(path)
    return kernels


@dataclasses.dataclass(frozen=True)
class Lora:
    """A and B of each kernel, which are trained, and the parameters whose paths begin with one of
    `heads`; all other parameters keep their values.

    Attributes:
        kernels: paths, as of `lora_kernels`.
        heads: beginnings of paths.
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
            adapter = ParamMetadata(layers=metadata[kernel].layers)
            adapters[f"{kernel}/a"] = adapter
            adapters[f"{kernel}/b"] = adapter
        return adapters

    def adapters(self, params: Any) -> dict[str, jax.Array]:
        """A and B before the first step, by path."""
        leaves = leaves_by_path(params)
        adapters = {}
        run_key = jax.random.key(self.seed)
        for kernel in self.kernels:
            layers, inputs, outputs = leaves[kernel].shape
            number = zlib.crc32(kernel.encode())
            key = jax.random.fold_in(run_key, number)
            normal = jax.random.normal(key, (layers, inputs, self.rank))
            adapters[f"{kernel}/a"] = normal / inputs**0.5
            adapters[f"{kernel}/b"] = jnp.zeros((layers, self.rank, outputs))
        return adapters

    def trained(self, adapters: Mapping[str, Any], tree: Any) -> Any:
        """What the inner optimizer sees: the adapters, and the heads of a tree of parameters or
        gradients."""
        heads = {}
        if self.heads:
            leaves = leaves_by_path(tree)
            heads = {path: leaf for path, leaf in leaves.items() if path.startswith(self.heads)}
        return traverse_util.unflatten_dict({**adapters, **heads}, sep="/")

    def transformation(
        self, make: Callable[[Any], optax.GradientTransformation]
    ) -> optax.GradientTransformation:
        """The optimizer of the parameters; `make` makes that of the trees that are trained, from
        their shapes."""

        def init(params: Any) -> LoraState:
            adapters = self.adapters(params)
            tree = self.trained(adapters, params)
            return LoraState(adapters, make(_shapes(tree)).init(tree))

        def update(grads: Any, state: LoraState, params: Any) -> tuple[Any, LoraState]:
            """As optax's: the adapters' own updates, and what they change in the kernels."""
            old = state.adapters
            tree = self.trained(old, params)
            adapter_grads = self._gradients(grads, old)
            tree_grads = self.trained(adapter_grads, grads)
            optimizer = make(_shapes(tree))
            updates, inner = optimizer.update(tree_grads, state.inner, tree)
            moved: dict[str, Any] = traverse_util.flatten_dict(updates, sep="/")
            new = {path: leaf + moved[path] for path, leaf in old.items()}
            moved |= self._kernel_updates(old, new)
            merged = {}
            for path, leaf in leaves_by_path(grads).items():
                merged[path] = moved[path] if path in moved else jnp.zeros_like(leaf)
            all_updates = traverse_util.unflatten_dict(merged, sep="/")
            return all_updates, LoraState(new, inner)

        return optax.GradientTransformation(init, update)  # type: ignore[reportArgumentType]  # it needs the parameters

    def _gradients(self, grads: Any, adapters: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """The gradients by A and B, from those by the kernels."""
        flat = leaves_by_path(grads)
        gradients = {}
        for kernel in self.kernels:
            a = adapters[f"{kernel}/a"]
            b = adapters[f"{kernel}/b"]
            gradient = flat[kernel]
            gradients[f"{kernel}/a"] = self.factor * gradient @ b.mT
            gradients[f"{kernel}/b"] = self.factor * a.mT @ gradient
        return gradients

    def _kernel_updates(
        self, old: Mapping[str, jax.Array], new: Mapping[str, jax.Array]
    ) -> dict[str, jax.Array]:
        """What a change of the adapters changes in the kernels."""
        updates = {}
        for kernel in self.kernels:
            before = old[f"{kernel}/a"] @ old[f"{kernel}/b"]
            after = new[f"{kernel}/a"] @ new[f"{kernel}/b"]
            updates[kernel] = self.factor * (after - before)
        return updates


def _shapes(tree: Any) -> Any:
    return jax.eval_shape(lambda: tree)
