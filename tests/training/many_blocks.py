"""Loss and gradients of models of every block, on meshes of 8 fake devices: python many_blocks.py
OUT.npz [all]

Without `all`, the blocks of REPEATED are left out, and each model runs on only one of the split
meshes, in turn. That takes less than half of the time."""

import re
import sys

import jax
import numpy as np

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.checkpoints.pytree import leaves_by_path
from gmlp_flax.models import blocks
from gmlp_flax.models.attention import dot_product
from gmlp_flax.models.blocks import fnet
from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.data.base import TaskData
from gmlp_flax.training import evaluation
from gmlp_flax.training.partition import Partition
from tests.models.reference import quick_jit
from tests.training import tiny

BATCH = 16
TOKENS = 24
# tests.training.many_devices has each axis alone as well
MESHES = ((1, 1, 1), (2, 4, 1), (2, 2, 2))
SMALL = {
    "heads": 2,
    "memory": 6,
    "attention_layers": 1,
    "kernel_widths": (3, 5),
    "spatial_init_std": 0.02,
}
# many_devices and many_hosts train these
OLDER = {"gmlp", "transformer", "mixer", "resmlp", "feed_forward"}
VARIANTS = {
    "fnet by fft": {"block": "fnet", "dft": "fft", "norm": "pre"},
    "synthesizer, one half": {
        "block": "synthesizer",
        "synthesizer": "random+factorized_random+dense",
    },
    "synthesizer, the other": {
        "block": "synthesizer",
        "synthesizer": "fixed_random+factorized_dense+attention",
    },
    "dynamic convolution": {"block": "convolution", "convolution": "dynamic"},
    "causal amlp": {"block": "gmlp", "causal": True, "d_attn": 4},
    "causal dense": {"block": "gmlp", "causal": True, "spatial": "dense"},
    "causal transformer, relative": {
        "block": "transformer",
        "causal": True,
        "positions": "relative",
    },
}


def options_by_name() -> dict[str, dict]:
    """Every block that is not in OLDER, every causal block, and VARIANTS."""
    options = {}
    for name in blocks.BLOCKS:
        if name not in OLDER:
            options[name] = {"block": name}
        if blocks.find(name).can_be_causal:
            options[f"causal {name}"] = {"block": name, "causal": True}
    return options | VARIANTS


BLOCKS = options_by_name()


# The causal form of the first four runs one of the two directions that the bidirectional form runs.
# Variants have all that the others do.
REPEATED = {
    "causal bigs",
    "causal delta",
    "causal hydra",
    "causal long_conv",
    "causal gmlp",
    "causal transformer",
    "synthesizer",
}


def names(every: bool) -> list[str]:
    """The names in BLOCKS that are run."""
    if every:
        return list(BLOCKS)
    return [name for name in BLOCKS if name not in REPEATED]


def split_meshes(number: int, every: bool) -> tuple[tuple[int, int, int], ...]:
    """The meshes that split the model of a number in `names`: all of them, or one."""
    split = MESHES[1:]
    if every:
        return split
    return (split[number % len(split)],)


def make(options, sizes) -> Task:
    """The task of a small model with a block, dropout and padding, for a mesh."""
    task = "causal_lm" if options.get("causal") else "masked_lm"
    block = options["block"]
    config = gmlp_config.default(task=task, block=block)
    for name, value in SMALL.items():
        if name in config.model:
            config.model[name] = value
    config.model.update(options)
    config.model.update(layers=2, d_model=16, d_ffn=32, length=TOKENS, vocab_size=64)
    config.model.update(dropout=0.1, mask_padding=True)
    kind = tasks.find(config.task)
    return kind(tiny.with_mesh(config, sizes))


def results(task, fresh) -> dict[str, np.ndarray]:
    """The loss and all gradients of one batch, at given parameters."""
    shapes = task.shapes()
    metadata = task.param_metadata()
    partition = tiny.partition(task.config).for_model(metadata)
    partition.check_parameters(shapes)
    shardings = partition.shardings(shapes)
    params = jax.device_put(fresh, shardings)
    [size], _ = task.example_shapes()["tokens"]
    token_key = jax.random.key(1)
    tokens = jax.random.randint(token_key, (BATCH, size), 0, 64)
    padded = tokens.at[:, 20:].set(0)
    example_key = jax.random.key(2)
    keys = jax.random.split(example_key, BATCH)
    host_batch = {"tokens": padded, "key": keys}
    batch = jax.device_put(host_batch, partition.over_batch)

    def share(params, batch):
        value_and_gradient = jax.value_and_grad(task.loss, has_aux=True)
        (_, sums), gradient = value_and_gradient(params, batch)
        loss, _ = sums["loss"]
        return gradient, loss

    on_each_shard = quick_jit(partition.on_each_shard(share))
    gradient, loss = on_each_shard(params, batch)
    arrays = jax.device_get({"gradient": gradient, "loss": loss})
    return leaves_by_path(arrays)


def fft_gathers() -> bool:
    """Whether devices that share a batch by fsdp gather it for a Fourier transform."""
    partition = Partition.make({"data": 1, "fsdp": 8, "tensor": 1})
    x = jax.ShapeDtypeStruct((BATCH, TOKENS, 16), np.float32, sharding=partition.over_batch)

    def transform(_, x):
        return {}, fnet.fourier(x, "fft").sum()

    lowered = jax.jit(partition.on_each_shard(transform)).lower({}, x)
    compiled = lowered.compile()
    program = compiled.as_text()
    assert " fft(" in program
    return "all-gather" in program


def transformed_in_evaluation(sizes: tuple[int, int, int]) -> set[int]:
    """The number of examples in each Fourier transform of an evaluation step."""
    task = make(BLOCKS["fnet by fft"], sizes)
    metadata = task.param_metadata()
    partition = Partition.make(task.config.mesh).for_model(metadata)
    batch = {
        "tokens": np.zeros((BATCH, TOKENS), np.int32),
        "index": np.arange(BATCH),
        "weight": np.ones(BATCH, np.float32),
    }

    def described(array):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=partition.over_batch)

    batch = jax.tree.map(described, batch)
    data = TaskData(task.config)
    evaluator = evaluation.Evaluator(task, data, partition)
    params = partition.describe(task.shapes())
    lowered = evaluator.step.lower(params, batch)
    program = lowered.compile().as_text()
    numbers = re.findall(r"= c64\[(\d+),\S* fft\(", program)
    return {int(number) for number in numbers}


def main(out: str, every: str = "") -> None:
    assert not fft_gathers()
    mesh_shapes = ((8, 1, 1), (1, 8, 1), (2, 2, 2))
    for sizes in mesh_shapes:
        data, fsdp, _ = sizes
        share = BATCH // (data * fsdp)
        assert transformed_in_evaluation(sizes) == {share}, sizes
    dot_product.WHOLE = 16
    dot_product.BLOCK = 10  # queries in three blocks
    runs_all = every == "all"
    arrays = {}
    for number, name in enumerate(names(runs_all)):
        options = BLOCKS[name]
        task = make(options, MESHES[0])
        init = quick_jit(task.init)
        fresh = init(jax.random.key(0))
        all_sizes = (MESHES[0], *split_meshes(number, runs_all))
        for sizes in all_sizes:
            mesh = "x".join(map(str, sizes))
            found = results(make(options, sizes), fresh)
            for path, leaf in found.items():
                assert np.isfinite(leaf).all(), (name, mesh, path)
                arrays[f"{name}:{mesh}:{path}"] = leaf
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
