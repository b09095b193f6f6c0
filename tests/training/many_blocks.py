"""Loss and gradients of models of every block, under meshes of 8 fake devices: python
many_blocks.py OUT.npz [all]

Without `all`, blocks that read both directions are not repeated as causal ones, and each model has
one of the split meshes, in turn. That takes half of the time."""

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
# many_devices and many_hosts train the first
OLDER = {"gmlp", "transformer", "mixer", "resmlp", "feed_forward"}
BLOCKS = {  # every other block, and every causal one
    **{name: {"block": name} for name in blocks.BLOCKS if name not in OLDER},
    **{
        f"causal {name}": {"block": name, "causal": True}
        for name in blocks.BLOCKS
        if blocks.find(name).can_be_causal
    },
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


# The causal form of these runs one of the two directions that their own form runs.
BOTH_DIRECTIONS = {"bigs", "delta", "hydra", "long_conv"}


def names(every: bool) -> list[str]:
    """The names in BLOCKS that are run."""
    if every:
        return list(BLOCKS)
    repeated = {f"causal {name}" for name in BOTH_DIRECTIONS}
    return [name for name in BLOCKS if name not in repeated]


def split_meshes(number: int, every: bool) -> tuple[tuple[int, int, int], ...]:
    """The meshes with several parts of the model at a number in `names`: all, or one of them."""
    split = MESHES[1:]
    return split if every else (split[number % len(split)],)


def make(options, sizes) -> Task:
    """The task of a small model with a block, dropout and padding, for a mesh."""
    name = "causal_lm" if options.get("causal") else "masked_lm"
    config = gmlp_config.default(task=name, block=options["block"])
    small = {name: value for name, value in SMALL.items() if name in config.model}
    sizes_of_model = {
        "layers": 2,
        "d_model": 16,
        "d_ffn": 32,
        "length": TOKENS,
        "vocab_size": 64,
        "dropout": 0.1,
    }
    config.model.update(small | options | sizes_of_model | {"mask_padding": True})
    return tasks.find(name)(tiny.with_mesh(config, sizes))


def results(task, fresh) -> dict[str, np.ndarray]:
    """The loss and all gradients of one batch, at given parameters."""
    partition = tiny.partition(task.config).for_model(task.param_metadata())
    partition.check_parameters(task.shapes())
    params = jax.device_put(fresh, partition.shardings(task.shapes()))
    (size,), _ = task.example_shapes()["tokens"]
    tokens = jax.random.randint(jax.random.key(1), (BATCH, size), 0, 64)
    padded = tokens.at[:, 20:].set(0)
    keys = jax.random.split(jax.random.key(2), BATCH)
    batch = jax.device_put({"tokens": padded, "key": keys}, partition.over_batch)

    def share(params, batch):
        (_, sums), gradient = jax.value_and_grad(task.loss, has_aux=True)(params, batch)
        return gradient, sums["loss"][0]

    on_each_shard = quick_jit(partition.on_each_shard(share))
    gradient, loss = on_each_shard(params, batch)
    return leaves_by_path(jax.device_get({"gradient": gradient, "loss": loss}))


def fft_gathers() -> bool:
    """Whether devices that share a batch by fsdp gather it for a Fourier transform."""
    partition = Partition.make({"data": 1, "fsdp": 8, "tensor": 1})
    x = jax.ShapeDtypeStruct((BATCH, TOKENS, 16), np.float32, sharding=partition.over_batch)
    transform = partition.on_each_shard(lambda _, x: ({}, fnet.fourier(x, "fft").sum()))
    program = jax.jit(transform).lower({}, x).compile().as_text()
    assert " fft(" in program
    return "all-gather" in program


def transformed_in_evaluation(sizes: tuple[int, int, int]) -> set[int]:
    """How many examples each Fourier transform of an evaluation step works on."""
    task = make(BLOCKS["fnet by fft"], sizes)
    partition = Partition.make(task.config.mesh).for_model(task.param_metadata())
    batch = {
        "tokens": np.zeros((BATCH, TOKENS), np.int32),
        "index": np.arange(BATCH),
        "weight": np.ones(BATCH, np.float32),
    }
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=partition.over_batch), batch
    )
    evaluator = evaluation.Evaluator(task, TaskData(task.config), partition)
    lowered = evaluator.step.lower(partition.describe(task.shapes()), batch)
    program = lowered.compile().as_text()
    return {int(number) for number in re.findall(r"= c64\[(\d+),\S* fft\(", program)}


def main(out: str, every: str = "") -> None:
    assert not fft_gathers()
    for sizes in ((8, 1, 1), (1, 8, 1), (2, 2, 2)):
        assert transformed_in_evaluation(sizes) == {BATCH // (sizes[0] * sizes[1])}, sizes
    dot_product.WHOLE = 16
    dot_product.BLOCK = 10  # queries in three blocks
    arrays = {}
    for number, name in enumerate(names(every == "all")):
        options = BLOCKS[name]
        fresh = quick_jit(make(options, MESHES[0]).init)(jax.random.key(0))
        for sizes in (MESHES[0], *split_meshes(number, every == "all")):
            mesh = "x".join(map(str, sizes))
            for path, leaf in results(make(options, sizes), fresh).items():
                arrays[f"{name}:{mesh}:{path}"] = leaf
    assert all(np.isfinite(leaf).all() for leaf in arrays.values())
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
