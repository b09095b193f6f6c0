"""Every key of a config, with its default: keys that all runs have, and the options that its task
and block declare.

A task's options are a table in its file, a block's are the fields of its spec. So a config holds
only keys that count: `config.model.heads` exists if the block has heads.
"""

from collections.abc import Mapping
from typing import Any

import ml_collections

from gmlp_flax import tasks
from gmlp_flax.config.optimizers import HYPERPARAMETERS, OPTIMIZERS, find
from gmlp_flax.errors import ConfigError
from gmlp_flax.models import blocks
from gmlp_flax.models.spec import BlockSpec
from gmlp_flax.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    DECAY,
    INNER_SHARE,
    SIZE,
    SIZE_OR_0,
    Option,
    options_of,
)

TASK, BLOCK, OPTIMIZER = "task", "model.block", "optimizer.name"
SCHEDULES = ("cosine", "linear", "constant", "rsqrt", "wsd")

COMMON = {
    TASK: Option(
        "masked_lm", f"what is trained: {', '.join(tasks.TASKS)}, or my_package.my_task:MyTask"
    ),
    "steps": Option(1000, "optimizer steps of the whole run", AT_LEAST_1),
    "seed": Option(
        0,
        "with the step, determines every batch, mask, augmentation and dropped branch",
        AT_LEAST_0,
    ),
    "batch_size": Option(32, "examples per step, over all devices and microbatches", SIZE),
    "init_from": Option(
        "",
        "run, checkpoint, exported folder or hf-hub:OWNER/NAME whose parameters start this run; empty: fresh ones",
    ),
    "init_parameters": Option(
        True, "False: finetuning takes only the model and vocabulary of init_from"
    ),
    BLOCK: Option(
        "gmlp",
        f"the token mixer: {', '.join(blocks.BLOCKS)}, or my_package.my_block:MyBlock",
        architecture=True,
    ),
    "data.train": Option(
        "embedded",
        "a path, tfds:NAME/CONFIG, or embedded: CPython's reference manual, UCI's digits",
    ),
    "data.heldout": Option(
        "", "path of the held-out data; empty: a split or a share of the training data"
    ),
    "data.split": Option(
        "", "the split to train on; empty: `train` if there are splits; `all`: all text"
    ),
    "data.heldout_split": Option(
        "", "the split held out; empty: `validation` if there is one, or (images) `test`"
    ),
    "data.heldout_share": Option(
        0.05, "share of the training data held out if no path is given", INNER_SHARE
    ),
    "data.search": Option(
        False, "hold out another such share in its place, to choose settings by it"
    ),
    "data.max_bad_records": Option(
        0, "unreadable records to skip (images: per process); one more ends the run", AT_LEAST_0
    ),
    "data.cache": Option(
        "", "folder for tokenizers, token ids and indexes; empty: ~/.cache/gmlp_flax"
    ),
    "data.workers": Option(0, "processes that prepare batches; 0: threads of this one", SIZE_OR_0),
    OPTIMIZER: Option("adamw", f"{', '.join(OPTIMIZERS)}, or my_package.my_module:my_function"),
    "optimizer.learning_rate": Option(1e-3, "peak of the schedule", AT_LEAST_0),
    "optimizer.schedule": Option(
        "cosine", "after the warmup; rsqrt: peak * sqrt(warmup / step)", SCHEDULES
    ),
    "optimizer.decay_share": Option(
        0.2, "of wsd: share of the steps that end in a linear decay to 0", INNER_SHARE
    ),
    "optimizer.warmup": Option(100, "steps of linear warmup", AT_LEAST_0),
    **{f"optimizer.{name}": option for name, option in HYPERPARAMETERS.items()},
    "optimizer.decay_all": Option(
        False, "whether weight decay is of all parameters, norms and biases among them"
    ),
    "optimizer.clip": Option(1.0, "global norm of gradients; 0: no clipping", AT_LEAST_0),
    "optimizer.skip_spikes": Option(
        0.0, "skip steps of this many times the usual loss or gradient norm", AT_LEAST_0
    ),
    "optimizer.grad_accum_steps": Option(1, "microbatches per step", SIZE),
    "optimizer.ema": Option(
        0.0,
        "decay of a mean of the parameters, which is then used; at first (1 + step) / (10 + step); 0: none",
        DECAY,
    ),
    "optimizer.freeze": Option(
        (), "regular expressions of parameter paths that keep their initial values"
    ),
    "optimizer.lr_multipliers": Option(
        (), "REGEX=FACTOR on the rate of parameters; FIRST..LAST: growing with depth"
    ),
    "optimizer.lora_rank": Option(
        0, "of LoRA on channel projections, trained with heads alone; 0: none", SIZE_OR_0
    ),
    "optimizer.lora_alpha": Option(
        0.0, "A B counts lora_alpha / lora_rank times; 0: as lora_rank", AT_LEAST_0
    ),
    "mesh.data": Option(
        -1, "groups of devices with a copy of the state each; -1, on one of three axes: the rest"
    ),
    "mesh.fsdp": Option(
        1,
        "devices that share one copy of the state, and the batch; a layer is gathered when it runs",
    ),
    "mesh.tensor": Option(
        1, "devices that share the products of a layer: d_ffn and the vocabulary are split"
    ),
    "mesh.auto": Option(
        False,
        "the planner chooses these three, the fastest that fit; `--config.mesh=auto` is short for it",
    ),
    "mesh.slices": Option(
        1, "TPU slices joined by a network; they divide the data axis", AT_LEAST_1
    ),
    "mesh.rules": Option(
        (), "REGEX=AXIS,...: sharding of parameters by path, before the model's own; -: not sharded"
    ),
    "eval.every": Option(0, "steps between evaluations; 0: only at the end", AT_LEAST_0),
    "eval.batch_size": Option(0, "examples per batch; 0: as in training", SIZE_OR_0),
    "log.every": Option(20, "steps that one line of metrics.jsonl averages", AT_LEAST_1),
    "log.norms": Option(False, "also the norms of gradients, updates and parameters, by layer"),
    "log.tensorboard": Option(False, "also write TensorBoard files (extra: tensorboard)"),
    "log.wandb": Option("", "project on Weights & Biases to log to as well (extra: wandb)"),
    "log.hang_seconds": Option(
        1800.0, "a run without progress ends then (first step: an hour); 0: never", AT_LEAST_0
    ),
    "profile.steps": Option(
        "", "FIRST:LAST, the steps that a profiler traces into RUN/profile; empty: none"
    ),
    "checkpoint.every": Option(
        500, "steps between checkpoints; one is always saved at the end", AT_LEAST_1
    ),
    "checkpoint.keep": Option(2, "newest checkpoints to keep", AT_LEAST_1),
    "checkpoint.keep_best": Option(1, "best checkpoints to keep as well", AT_LEAST_0),
    "checkpoint.metric": Option(
        "", "metric that chooses the best; empty: the task's own, of a running mean if any"
    ),
}

# Keys with another name in earlier releases, until 1.0: refused with the new name, but read in the
# config.json of runs.
RENAMED = {
    "optimizer.accumulate": "optimizer.grad_accum_steps",
    "optimizer.rates": "optimizer.lr_multipliers",
}

# Keys of earlier releases that are gone, with the values at which the config.json of a run is still
# read.
REMOVED = {"data.packing": ("concatenated",)}

# What users call some keys, taken by --sweep.NAME=..., and what unknown keys of these and other
# names are said to mean.
SHORT = {"lr": "optimizer.learning_rate", "wd": "optimizer.weight_decay"}
MEANT = SHORT | {
    **dict.fromkeys(("dev", "val", "valid", "validation", "eval_data"), "data.heldout"),
    **dict.fromkeys(("max_steps", "num_steps", "train_steps"), "steps"),
    **dict.fromkeys(("max_length", "seq_len", "sequence_length"), "model.length"),
    **dict.fromkeys(("hidden_size", "dim", "width"), "model.d_model"),
    **dict.fromkeys(("depth", "num_layers"), "model.layers"),
    **dict.fromkeys(("gradient_accumulation_steps", "accumulate"), "optimizer.grad_accum_steps"),
}

# What may change on a run that has taken steps: how long it goes on, how it is watched and saved,
# on what it runs, and its rates. Of a block's options, `numerics_only` says so. All other keys say
# what the run is.
_CHANGING_GROUPS = ("log", "profile", "checkpoint", "mesh", "optimizer")
_CHANGING_KEYS = (
    "steps",
    "eval.every",
    "eval.batch_size",
    "data.cache",
    "data.workers",
    "data.max_bad_records",
)
_FIXED_KEYS = (
    *(OPTIMIZER, "optimizer.ema", "optimizer.freeze", "optimizer.skip_spikes", "log.norms"),
    *("optimizer.lora_rank", "optimizer.lora_alpha"),
)


def may_change(name: str, block: str, optimizer: str = "adamw") -> bool:
    """Whether a key may change in the middle of a run with these kinds. Raises ConfigError as
    `of_block`."""
    if name in COMMON:
        fixed = (*_FIXED_KEYS, "optimizer.b1") if find(optimizer).averages else _FIXED_KEYS
        return name in _CHANGING_KEYS or (
            name.partition(".")[0] in _CHANGING_GROUPS and name not in fixed
        )
    declared = of_block(block).get(name)
    return declared is not None and declared.numerics_only


def of_block(block: str) -> dict[str, Option]:
    """The keys that a block declares. Raises ConfigError: there is no such block."""
    return {f"model.{name}": option for name, option in options_of(blocks.find(block).Spec).items()}


def of_task(task: str) -> dict[str, Option]:
    """The keys that a task declares. Raises ConfigError: there is no such task."""
    return dict(tasks.find(task).options)


def all_keys() -> list[str]:
    """The names of all keys, of whatever task and block."""
    options = [COMMON, *map(of_block, blocks.BLOCKS), *map(of_task, tasks.TASKS)]
    return list(dict.fromkeys(name for table in options for name in table))


def keys_of(
    task: str = COMMON[TASK].default, block: str = COMMON[BLOCK].default
) -> dict[str, Option]:
    """Every dotted name of a config with a task and a block, with its option, in groups. Raises as
    `default`."""
    options = COMMON | of_block(block) | of_task(task)
    groups = list(dict.fromkeys(name.rpartition(".")[0] for name in options))
    return {
        name: options[name]
        for group in groups
        for name in options
        if name.rpartition(".")[0] == group
    }


def keys(config: ml_collections.ConfigDict) -> dict[str, Option]:
    """Every dotted name of a config, with its option."""
    return keys_of(config.task, config.model.block)


def default(task: str = "masked_lm", block: str = "gmlp") -> ml_collections.ConfigDict:
    """A config of a task and a block with every key at its default; no other key can be set on it.

    Raises:
        ConfigError: there is no such task or block, or a key of it would hide a method of a config.
    """
    values: dict[str, Any] = {}
    for name, option in keys_of(task, block).items():
        group, _, last = name.rpartition(".")
        if hasattr(ml_collections.ConfigDict, last):
            raise ConfigError(
                f"the key {name} has the name of a method of ConfigDict: give it another"
            )
        (values.setdefault(group, {}) if group else values)[last] = option.default
    values["task"], values["model"]["block"] = task, block
    return ml_collections.ConfigDict(values).lock()


def flat(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The values by dotted name."""
    return {name: config[name] for name in keys(config)}


def differences(
    one: ml_collections.ConfigDict, other: ml_collections.ConfigDict
) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with both values; None stands for a key that a config
    does not have."""
    first, second = flat(one), flat(other)
    names = dict.fromkeys((*first, *second))
    return {
        name: (first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    }


def changed(
    config: ml_collections.ConfigDict, task: str = "", block: str = ""
) -> ml_collections.ConfigDict:
    """A copy with another task or block: keys that both have keep their values, the new ones take
    their defaults.

    Raises ConfigError: there is no such task or block.
    """
    new = default(task or config.task, block or config.model.block)
    known = keys(new)
    kept = {
        name: value
        for name, value in flat(config).items()
        if name in known and name not in (TASK, BLOCK)
    }
    new.update_from_flattened_dict(kept)
    return new


def help_text(config: ml_collections.ConfigDict | None = None) -> str:
    """The keys for reading, `name = value  # comment`: of a config, or of every task and block with
    their defaults."""
    values = {} if config is None else flat(config)

    def lines(title: str, options: Mapping[str, Option]) -> str:
        settings = {
            name: f"config.{name} = {values.get(name, option.default)!r}"
            for name, option in options.items()
        }
        return "\n".join(
            [f"{title}:", *(f"{settings[name]:<46}  # {options[name].meaning}" for name in options)]
        )

    if config is not None:
        return lines(
            f"config.task={config.task}, config.model.block={config.model.block}", keys(config)
        )
    shared = {f"model.{name}": option for name, option in options_of(BlockSpec).items()}
    parts = {"every run": COMMON, "every block": shared}
    for name in blocks.BLOCKS:
        own = {key: option for key, option in of_block(name).items() if option != shared.get(key)}
        parts[f"config.model.block={name}"] = own
    parts |= {f"config.task={name}": of_task(name) for name in tasks.TASKS}
    return "\n\n".join(lines(title, options) for title, options in parts.items())
