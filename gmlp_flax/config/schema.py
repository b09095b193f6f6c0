"""Every key of a config: the keys that all runs have, and the options that its task and its block declare.

A task's options are a table in its file, a block's are the fields of its spec. So a config holds only keys that count:
`config.model.heads` exists if the block has heads.
"""

from __future__ import annotations

import dataclasses

from gmlp_flax import tasks
from gmlp_flax.config.optimizers import OPTIMIZERS
from gmlp_flax.models import blocks
from gmlp_flax.options import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    DECAY,
    INNER_SHARE,
    SIZE,
    SIZE_OR_0,
    YEAR,
    Option,
    Range,
    options_of,
)

TASK, BLOCK = "task", "model.block"

COMMON = {
    TASK: Option("masked_lm", f"what is trained: {', '.join(tasks.TASKS)}, or my_package.my_task:MyTask"),
    "steps": Option(1000, "optimizer steps of the whole run", AT_LEAST_1),
    "seed": Option(0, "with the step, determines every batch, mask, augmentation and dropped branch", AT_LEAST_0),
    "batch_size": Option(32, "examples per step, over all devices and microbatches", SIZE),
    "init_from": Option("", "run folder or checkpoint whose parameters start this run; empty: fresh ones"),
    "init_parameters": Option(
        True, "False: finetuning takes only the model and vocabulary of init_from, as a baseline"
    ),
    BLOCK: Option(
        "gmlp", f"the token mixer: {', '.join(blocks.BLOCKS)}, or my_package.my_block:MyBlock", architecture=True
    ),
    "data.train": Option(
        "embedded", "a path, `tfds:NAME/CONFIG`, or `embedded`: CPython's reference manual, UCI's digits"
    ),
    "data.heldout": Option("", "path of the held-out data; empty: a split or a share of the training data"),
    "data.split": Option("", "the split to train on; empty: `train` if the data have splits"),
    "data.heldout_split": Option("", "the split held out; empty: `validation` if there is one, or (images) `test`"),
    "data.heldout_share": Option(0.05, "share of the training data held out if no path is given", INNER_SHARE),
    "data.max_bad_records": Option(
        0, "unreadable records that are skipped (images: per host); one more stops the run", AT_LEAST_0
    ),
    "data.cache": Option("", "folder for tokenizers, token ids and indexes; empty: ~/.cache/gmlp_flax"),
    "data.workers": Option(
        0, "processes that prepare batches; 0: threads of this one", Range("from 0 to 1,024", 0, 1024)
    ),
    "optimizer.name": Option("adamw", "the optimizer; the paper's is AdamW", tuple(OPTIMIZERS)),
    "optimizer.learning_rate": Option(1e-3, "peak of the schedule", AT_LEAST_0),
    "optimizer.schedule": Option(
        "cosine", "after the warmup; rsqrt: peak * sqrt(warmup / step)", ("cosine", "linear", "constant", "rsqrt")
    ),
    "optimizer.warmup": Option(100, "steps of linear warmup", AT_LEAST_0),
    "optimizer.b1": Option(0.9, "decay of the first moment; of sgd, the momentum", DECAY),
    "optimizer.b2": Option(0.999, "decay of the second moment, or of what the optimizer has in its place", DECAY),
    # Parameters without a gradient so far, such as rows of unseen tokens, are divided by it.
    "optimizer.eps": Option(1e-6, "epsilon of the optimizers that divide by the second moment", ABOVE_0),
    **{
        f"optimizer.{name}": dataclasses.replace(option, comment=f"{option.comment}; only of {row}")
        for row, optimizer in OPTIMIZERS.items()
        for name, option in optimizer.options.items()
    },
    "optimizer.weight_decay": Option(
        0.05, "decoupled; not for norms, biases, cls tokens and learned positions", AT_LEAST_0
    ),
    "optimizer.clip": Option(1.0, "global norm of gradients; 0: no clipping", AT_LEAST_0),
    "optimizer.grad_accum_steps": Option(1, "microbatches per step", SIZE),
    "optimizer.ema": Option(
        0.0, "decay of a running mean of the parameters, which then predicts and starts others; 0: none", DECAY
    ),
    "optimizer.freeze": Option((), "regular expressions of parameter paths that keep their initial values"),
    "optimizer.lr_multipliers": Option(
        (), "REGEX=FACTOR: factors on the rate of parameters by their paths; FIRST..LAST: growing with depth"
    ),
    "mesh.data": Option(
        -1, "groups of devices that each hold a copy of the state; -1, on one of the three axes: the rest"
    ),
    "mesh.fsdp": Option(1, "devices that share one copy of the state, and the batch; a layer is gathered when it runs"),
    "mesh.tensor": Option(1, "devices that share the products of a layer: d_ffn and the vocabulary are split"),
    "mesh.slices": Option(1, "TPU slices joined by a network; they divide the data axis", AT_LEAST_1),
    "mesh.rules": Option(
        (), "REGEX=AXIS,...: how parameters with such paths are cut, before the model's own; -: not cut"
    ),
    "eval.every": Option(0, "steps between evaluations; 0: only at the end", AT_LEAST_0),
    "eval.batch_size": Option(0, "examples per batch; 0: as in training", SIZE_OR_0),
    "log.every": Option(20, "steps that one line of metrics.jsonl averages", AT_LEAST_1),
    "log.tensorboard": Option(False, "also write TensorBoard files (extra: tensorboard)"),
    "log.wandb": Option("", "project on Weights & Biases to log to as well (extra: wandb)"),
    "log.hang_seconds": Option(
        1800.0,
        "a run ends after so many seconds without a finished step, evaluation or checkpoint, an hour at least before the "
        "first step; 0: never",
        YEAR,
    ),
    "profile.steps": Option("", "FIRST:LAST, the steps that a profiler traces into RUN/profile; empty: none"),
    "checkpoint.every": Option(500, "steps between checkpoints; one is always saved at the end", AT_LEAST_1),
    "checkpoint.keep": Option(2, "newest checkpoints to keep", AT_LEAST_1),
    "checkpoint.keep_best": Option(1, "best checkpoints to keep as well", AT_LEAST_0),
    "checkpoint.metric": Option(
        "", "evaluation metric that says which is best; empty: the task's own, of the running mean if there is one"
    ),
}

# Keys, and groups of keys, that may change on a run that has taken steps: how long it goes on, how it is watched and saved,
# on what it runs, and rates. Of a block's options, `numerics_only` says so. All others say what the run is.
MAY_CHANGE = (
    "steps",
    "log.",
    "profile.",
    "checkpoint.",
    "mesh.",
    "eval.every",
    "eval.batch_size",
    "data.cache",
    "data.workers",
    "data.max_bad_records",
    "optimizer.grad_accum_steps",
    "optimizer.learning_rate",
    "optimizer.schedule",
    "optimizer.warmup",
    "optimizer.b1",
    "optimizer.b2",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.clip",
    "optimizer.lr_multipliers",
    *(f"optimizer.{name}" for optimizer in OPTIMIZERS.values() for name in optimizer.options),
)


def may_change(name: str, block: str) -> bool:
    """Whether a key may have another value in the middle of a run with this block. Raises ConfigError as `of_block`."""
    declared = of_block(block).get(name)
    common = any(name == each or (each.endswith(".") and name.startswith(each)) for each in MAY_CHANGE)
    return common or (declared is not None and declared.numerics_only)


def of_block(block: str) -> dict[str, Option]:
    """The keys that a block declares.

    Raises:
        ConfigError: there is no such block.
    """
    return {f"model.{name}": found for name, found in options_of(blocks.find(block).Spec).items()}


def of_task(task: str) -> dict[str, Option]:
    """The keys that a task declares.

    Raises:
        ConfigError: there is no such task.
    """
    return dict(tasks.find(task).options)


def keys(task: str = COMMON[TASK].default, block: str = COMMON[BLOCK].default) -> dict[str, Option]:
    """Every dotted name of a config, with its option, in groups.

    Raises:
        ConfigError: there is no such task or block.
    """
    found = COMMON | of_block(block) | of_task(task)
    groups = list(dict.fromkeys(name.rpartition(".")[0] for name in found))
    return {name: found[name] for group in groups for name in found if name.rpartition(".")[0] == group}
