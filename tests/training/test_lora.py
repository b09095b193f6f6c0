"""LoRA: against the gradients of A and B themselves, and as a run."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import gmlp_flax as gf
from gmlp_flax import config as gmlp_config
from gmlp_flax.checkpoints.pytree import leaves_by_path as flat
from gmlp_flax.errors import ConfigError, RunError
from gmlp_flax.models.parameters import Layers, ParamMetadata
from gmlp_flax.training import loop, optimizer, step
from gmlp_flax.training.lora import Lora, lora_kernels
from tests.failures import raised
from tests.training import tiny

KERNEL = "encoder/blocks/proj/kernel"
ALPHA = 6.0
RANK = 3


@dataclasses.dataclass
class Problem:
    """A model of two layers with a norm and a head, and the data that it fits."""

    kernel: jax.Array
    head: jax.Array
    x: jax.Array
    y: jax.Array

    def params(self, kernel, head) -> dict:
        blocks = {"proj": {"kernel": kernel}}
        encoder = {"blocks": blocks, "norm": jnp.ones(5)}
        return {"encoder": encoder, "head": {"kernel": head}}

    def loss(self, params):
        encoder = params["encoder"]
        kernel = encoder["blocks"]["proj"]["kernel"]
        hidden = jnp.tanh(self.x @ kernel)
        normed = hidden * encoder["norm"]
        predicted = normed @ params["head"]["kernel"]
        squares = jnp.square(predicted - self.y)
        return squares.mean()

    def loss_of_adapters(self, adapted):
        """Through W0 + alpha / rank A B."""
        merged = self.kernel + change_of(adapted)
        return self.loss(self.params(merged, adapted["head"]))


def change_of(adapted: dict):
    """The change of the kernel by adapters."""
    return ALPHA / RANK * adapted["a"] @ adapted["b"]


def make_problem() -> Problem:
    key = jax.random.key(0)
    kernel_key, head_key, x_key, y_key = jax.random.split(key, 4)
    return Problem(
        kernel=jax.random.normal(kernel_key, (2, 6, 5)),
        head=jax.random.normal(head_key, (5,)),
        x=jax.random.normal(x_key, (16, 6)),
        y=jax.random.normal(y_key, (2, 16)),
    )


@pytest.mark.slow
def test_merged_kernels_equal_a_model_with_explicit_adapters():
    """Five steps of AdamW on A, B and a head, by autodiff."""
    problem = make_problem()
    adamw = optax.adamw(0.05, weight_decay=0.1)
    lora = Lora([KERNEL], ("head/",), rank=RANK, alpha=ALPHA, seed=7)
    transformation = lora.transformation(lambda _: adamw)
    params = problem.params(problem.kernel, problem.head)
    state = transformation.init(params)
    adapters = state.adapters
    adapted = {
        "a": adapters[f"{KERNEL}/a"],
        "b": adapters[f"{KERNEL}/b"],
        "head": problem.head,
    }
    adapted_state = adamw.init(adapted)
    for _ in range(5):
        gradient = jax.grad(problem.loss)(params)
        updates, state = transformation.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        gradient = jax.grad(problem.loss_of_adapters)(adapted)
        updates, adapted_state = adamw.update(gradient, adapted_state, adapted)
        adapted = optax.apply_updates(adapted, updates)
    kernel = flat(params)[KERNEL]
    change = np.asarray(kernel - problem.kernel)
    assert_allclose(change, change_of(adapted), atol=2e-5)
    head = params["head"]["kernel"]
    assert_allclose(head, adapted["head"], atol=1e-5)
    norm = params["encoder"]["norm"]
    assert_array_equal(norm, np.ones(5))
    assert np.abs(change).max() > 0.05
    assert ranks_of(change, 1e-4) == [3, 3]


def test_kernels_with_adapters():
    """Only kernels over channels, in every layer, have adapters; kernels over tokens do not."""
    leaf = jax.ShapeDtypeStruct((2, 4, 4), jnp.float32)
    blocks = {"proj": {"kernel": leaf}, "tokens": {"kernel": leaf}}
    shapes = {
        "encoder": {"blocks": blocks},
        "stem": {"kernel": leaf},
    }
    layers = Layers(first=0, total=2)
    resized = ParamMetadata(resize=lambda leaf, shape, grids: leaf, layers=layers)
    metadata = {
        KERNEL: ParamMetadata(layers=layers),
        "encoder/blocks/tokens/kernel": resized,
        "stem/kernel": ParamMetadata(),
    }
    assert lora_kernels(shapes, metadata) == [KERNEL]


def changed_names(before: dict, after: dict) -> list[str]:
    """The names whose arrays differ."""
    names = []
    for name, array in before.items():
        if not np.array_equal(array, after[name]):
            names.append(name)
    return names


def ranks_of(change: np.ndarray, tolerance: float) -> list[int]:
    """The rank of each layer's change."""
    return [np.linalg.matrix_rank(layer, tolerance) for layer in change]


@pytest.fixture
def adapted(tmp_path):
    """A task with adapters of rank 2, and its data."""
    config = tiny.text_config(tmp_path)
    config.optimizer.update(lora_rank=2, warmup=0, learning_rate=0.1)
    return tiny.open_task(config, tmp_path)


def test_state_has_only_adapters(adapted, partition):
    task, _ = adapted
    training = step.Training(task, partition)
    state = training.init(jax.random.key(0))
    # A and B of rank 2 in 2 layers
    proj_in = 2 * 2 * (8 + 16)
    proj_out = 2 * 2 * (8 + 8)
    leaves = jax.tree.leaves(state.opt_state)
    sizes = [leaf.size for leaf in leaves]
    moments_and_params = 3 * (proj_in + proj_out)
    counters = 2
    assert sum(sizes) == moments_and_params + counters


@pytest.mark.slow
def test_step_changes_only_kernels(adapted, partition):
    task, data = adapted
    training = step.Training(task, partition)
    state = training.init(jax.random.key(0))
    before = flat(jax.device_get(state.params))
    with data.train_batches(0, 0, 1) as batches:
        for _ in range(2):
            batch = partition.put_batch(next(batches))
            state, _ = training.step(state, batch)
    after = flat(jax.device_get(state.params))
    changed = changed_names(before, after)
    assert changed == ["encoder/blocks/proj_in/kernel", "encoder/blocks/proj_out/kernel"]
    for name in changed:
        change = after[name] - before[name]
        assert ranks_of(change, 1e-5) == [2, 2]


@pytest.fixture
def from_run(text_run):
    """A config of two steps with adapters that starts from a run."""
    config = gmlp_config.load(str(text_run / "config.json"))
    config.init_from = str(text_run)
    config.steps = 2
    config.optimizer.update(lora_rank=2, warmup=0)
    return config


@pytest.mark.slow
def test_complete_run(from_run, text_run, tmp_path):
    """The exported model is a plain one."""
    run = tmp_path / "run"
    result = loop.train(from_run, str(run))
    assert result["step"] == 2
    loaded = gf.load(str(text_run))
    old = flat(loaded.params)
    tuned = gf.load(str(run))
    new = flat(tuned.params)
    changed = changed_names(old, new)
    last_parts = {name.rpartition("/")[2] for name in changed}
    assert last_parts == {"kernel"}
    written = json.loads((run / "config.json").read_text())
    assert written["optimizer"]["lora_rank"] == 2


def test_run_without_a_pretrained_model_is_refused(from_run, tmp_path):
    from_run.init_from = ""
    with pytest.raises(RunError, match="lora_rank is 2, and there is nothing to adapt"):
        loop.train(from_run, str(tmp_path / "other"))


def test_averaging_optimizer_is_refused(from_run, tmp_path):
    from_run.init_from = ""
    from_run.optimizer.update(name="schedule_free", schedule="constant")
    message = raised(ConfigError, loop.train, from_run, str(tmp_path / "other"))
    assert "optimizer.lora_rank is 2" in message


def test_models_without_channel_projections_are_refused(config):
    config.optimizer.lora_rank = 4
    params = {"line": {"kernel": jnp.ones(3), "bias": jnp.ones(())}}
    message = raised(RunError, optimizer.make, config, params, tiny.LINE_METADATA)
    assert "lora_rank is 4" in message
