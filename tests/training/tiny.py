"""The smallest runs: a corpus, configs that train in a second, and a task without a model."""

import json
import math
import random
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.models.parameters import ParamMetadata
from gmlp_flax.tasks.base import Task, weighted_sum
from gmlp_flax.tasks.data.base import Files, RunFiles, TaskData
from gmlp_flax.training.partition import AXES, Partition

WORDS = """
the a of and to in is that it for on with as was at by this from which have not are or be one all their there when
more will would about other into time some could them then only its new over after also two way may
""".split()


def write_corpus(path: Path, documents: int = 60) -> str:
    """Writes documents of random words as JSON lines, unless the file exists. Returns the path."""
    if path.exists():
        return str(path)
    rng = random.Random(0)
    lines = []
    for _ in range(documents):
        count = rng.randint(10, 60)
        text = " ".join(rng.choices(WORDS, k=count))
        lines.append(json.dumps({"text": text}) + "\n")
    path.write_text("".join(lines))
    return str(path)


def text_config(folder: Path, **model):
    """A config of a masked language model of 2 layers on a corpus in `folder`, 6 steps."""
    config = gmlp_config.default(block=model.get("block", "gmlp"))
    config.steps = 6
    config.batch_size = 8
    config.model.update(layers=2, d_model=8, d_ffn=16, length=16, vocab_size=320)
    if "spatial_init_std" in config.model:
        config.model.spatial_init_std = 0.02
    config.model.update(model)
    config.data.train = write_corpus(folder / "corpus.jsonl")
    config.data.heldout_share = 0.2
    config.data.cache = str(folder / "cache")
    config.optimizer.warmup = 2
    return config


def image_config(**model):
    """A config of a classifier of the embedded digits, 6 steps."""
    config = gmlp_config.default(task="image_classification", block=model.get("block", "gmlp"))
    config.steps = 6
    config.batch_size = 8
    config.model.update(layers=2, d_model=8, d_ffn=16)
    config.model.update(image_size=(8, 8), patch_size=(4, 4), channels=1)
    if "spatial" in config.model:
        config.model.spatial = "dense"
    config.model.update(model)
    config.optimizer.warmup = 2
    return config


def open_task(
    config, folder: Path, inherited: Files = MappingProxyType({})
) -> tuple[Task, TaskData]:
    """The task of a config and its data, as in a run in a folder.

    Args:
        config: of the run.
        folder: of the run, which need not exist.
        inherited: files of the pretrained run.
    """
    kind = tasks.find(config.task)
    data = kind.Data(config, RunFiles(str(folder), inherited=inherited))
    return kind(config, data.assets()), data


def with_mesh(config, sizes: tuple[int, int, int]):
    """The config with a mesh of these sizes of data, fsdp and tensor."""
    config.mesh.update(dict(zip(AXES, sizes, strict=True)))
    return config


def partition(config) -> Partition:
    """A partition over as many devices as the mesh of a config needs."""
    sizes = [config.mesh[axis] for axis in AXES]
    devices = jax.devices()[: math.prod(sizes)]
    return Partition.make(config.mesh, devices)


def random_params(shapes, std: float = 0.3, seed: int = 0):
    """Random normal parameters, because initial ones have equal outputs, which hides errors."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        numbers = rng.normal(0, std, leaf.shape)
        return numbers.astype(leaf.dtype)

    return jax.tree.map(draw, shapes)


LINE_METADATA = {"line/bias": ParamMetadata(decayed=False)}


class Line(Task):
    """Fits y = x kernel + bias by the squared error. Examples have weights, as masked tokens have in
    sequences."""

    metrics = ("loss", "noise")
    best = ("loss", "min")
    unit = "examples"
    eval_metrics = ("loss",)

    module = example_shapes = None  # not called

    def init(self, key):
        kernel = jax.random.normal(key, (3,))
        return {"line": {"kernel": kernel, "bias": jnp.zeros(())}}

    def loss(self, params, batch):
        line = params["line"]
        predicted = batch["x"] @ line["kernel"] + line["bias"]
        errors = jnp.square(predicted - batch["y"])
        noise = jax.vmap(jax.random.normal)(batch["key"])
        sums = {
            "loss": weighted_sum(errors, batch["weight"]),
            "noise": weighted_sum(noise, jnp.ones_like(errors)),
        }
        total, _ = sums["loss"]
        return total, sums

    def evaluate(self, params, batch):
        keys = jax.random.split(jax.random.key(0), len(batch["x"]))
        _, sums = self.loss(params, batch | {"key": keys})
        weights = batch["weight"]
        examples = weighted_sum(jnp.ones_like(weights), weights)
        return {"loss": sums["loss"], "examples": examples}, {}

    def summarize(self, sums, outputs, data):
        total, weight = sums["loss"]
        return {"loss": total / weight}

    def param_metadata(self):
        return LINE_METADATA


def line_batch(seed: int, size: int = 8) -> dict[str, np.ndarray]:
    """A batch of `Line`, whose weights differ between examples."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3))
    y = rng.normal(size=size)
    return {
        "x": x.astype(np.float32),
        "y": y.astype(np.float32),
        "weight": np.arange(1, size + 1, dtype=np.float32),
    }
