"""Every key of a config, with its default: the keys of all runs, and the options that a task and a
block declare.

A task's options are a table in its file, a block's are the fields of its spec. So a config has only
keys with an effect: `config.model.heads` exists if the block has heads.
"""

import functools
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
    NO_RUNS,
    RUNS_OF_A_ROW,
    SIZE,
    SIZE_OR_0,
    Option,
    options_of,
)

TASK = "task"
BLOCK = "model.block"
OPTIMIZER = "optimizer.name"
# Keys in which runs that one program trains may differ (`training.together`).
MEMBER_KEYS = ("seed", "optimizer.learning_rate")
SCHEDULES = ("cosine", "linear", "constant", "rsqrt", "wsd")

# Options for how a run is logged, saved and placed on devices, without an effect on what it learns.
_operational = functools.partial(Option, may_change=True, compared=NO_RUNS)

COMMON = {
    TASK: Option(
        "masked_lm", f"what is trained: {', '.join(tasks.TASKS)}, or my_package.my_task:MyTask"
    ),
    "steps": Option(
        1000,
        "optimizer steps of the whole run",
        AT_LEAST_1,
        may_change=True,
        scaled=True,
        aliases=("max_steps", "num_steps", "train_steps"),
    ),
    "seed": Option(
        0,
        "with the step, determines every batch, mask, augmentation and dropped branch",
        AT_LEAST_0,
        compared=NO_RUNS,
    ),
    "batch_size": Option(
        32, "examples per step, over all devices and microbatches", SIZE, scaled=True
    ),
    "init_from": Option(
        "",
        "run, checkpoint, exported folder or hf-hub:OWNER/NAME whose parameters start this run; "
        "empty: newly initialized",
        reads=True,
    ),
    "init_parameters": Option(
        True, "False: finetuning inherits only the model and vocabulary of init_from"
    ),
    BLOCK: Option(
        "gmlp",
        f"the token mixer: {', '.join(blocks.BLOCKS)}, or my_package.my_block:MyBlock",
        architecture=True,
    ),
    "data.train": Option(
        "embedded",
        "a path, tfds:NAME/CONFIG, or embedded: CPython's reference manual, UCI's digits",
        selects_data=True,
        may_move=True,
        reads=True,
        scaled=True,
    ),
    "data.heldout": Option(
        "",
        "path of the held-out data; empty: a split or a share of the training data",
        selects_data=True,
        may_move=True,
        reads=True,
        aliases=("dev", "val", "valid", "validation", "eval_data"),
    ),
    "data.split": Option(
        "",
        "the split to train on; empty: `train` if there are splits; `all`: all text",
        selects_data=True,
    ),
    "data.heldout_split": Option(
        "",
        "the split held out; empty: `validation` if there is one, or (images) `test`",
        selects_data=True,
    ),
    "data.heldout_share": Option(
        0.05,
        "share of the training data held out if data.heldout is empty",
        INNER_SHARE,
        selects_data=True,
    ),
    "data.search": Option(
        False,
        "hold out another such share of the training data instead, to choose settings",
        selects_data=True,
    ),
    "data.max_bad_records": Option(
        0,
        "how many unreadable records to skip (images: per process); one more ends the run",
        AT_LEAST_0,
        may_change=True,
    ),
    "data.cache": _operational(
        "", "folder for tokenizers, token ids and indexes; empty: ~/.cache/gmlp_flax"
    ),
    "data.workers": _operational(
        0, "processes that prepare batches; 0: threads of this process", SIZE_OR_0
    ),
    OPTIMIZER: Option("adamw", f"{', '.join(OPTIMIZERS)}, or my_package.my_module:my_function"),
    "optimizer.learning_rate": Option(
        1e-3,
        "peak of the schedule",
        AT_LEAST_0,
        may_change=True,
        compared=RUNS_OF_A_ROW,
        short="lr",
    ),
    "optimizer.schedule": Option(
        "cosine",
        "after the warmup; rsqrt: peak * sqrt(warmup / step)",
        SCHEDULES,
        may_change=True,
    ),
    "optimizer.decay_share": Option(
        0.2,
        "wsd: share of the steps, at the end, with a linear decay to 0",
        INNER_SHARE,
        may_change=True,
    ),
    "optimizer.warmup": Option(100, "steps of linear warmup", AT_LEAST_0, may_change=True),
    **{f"optimizer.{name}": option for name, option in HYPERPARAMETERS.items()},
    "optimizer.decay_all": Option(
        False,
        "whether weight decay applies to all parameters, including norms and biases",
        may_change=True,
    ),
    "optimizer.clip": Option(
        1.0, "global norm of gradients; 0: no clipping", AT_LEAST_0, may_change=True
    ),
    "optimizer.skip_spikes": Option(
        0.0,
        "skip steps whose loss or gradient norm is this many times the usual one; 0: none",
        AT_LEAST_0,
    ),
    "optimizer.grad_accum_steps": Option(
        1,
        "microbatches per step",
        SIZE,
        may_change=True,
        aliases=("gradient_accumulation_steps", "accumulate"),
        former_name="optimizer.accumulate",
    ),
    "optimizer.ema": Option(
        0.0,
        "decay of a mean of the parameters, which is then used; at first (1 + step) / (10 + step); "
        "0: none",
        DECAY,
    ),
    "optimizer.freeze": Option(
        (), "regular expressions for the paths of parameters that keep their initial values"
    ),
    "optimizer.lr_multipliers": Option(
        (),
        "REGEX=FACTOR multiplies the rate of parameters; FIRST..LAST: growing with depth",
        may_change=True,
        compared=RUNS_OF_A_ROW,
        former_name="optimizer.rates",
    ),
    "optimizer.lora_rank": Option(
        0,
        "rank of LoRA on channel projections; only it and the heads are trained; 0: none",
        SIZE_OR_0,
    ),
    "optimizer.lora_alpha": Option(
        0.0, "A B is multiplied by lora_alpha / lora_rank; 0: lora_alpha is lora_rank", AT_LEAST_0
    ),
    "mesh.data": _operational(
        -1,
        "groups of devices, each with a copy of the state; -1, on one of the three axes: the remaining devices",
    ),
    "mesh.fsdp": _operational(
        1,
        "devices that share one copy of the state and the batch; a layer is gathered when it runs",
    ),
    "mesh.tensor": _operational(
        1, "devices that share the products of a layer: d_ffn and the vocabulary are split"
    ),
    "mesh.auto": _operational(
        False,
        "the planner chooses these three, as the fastest mesh that fits; short form: `--config.mesh=auto`",
    ),
    "mesh.slices": _operational(
        1, "TPU slices connected by a network; they divide the data axis", AT_LEAST_1
    ),
    "mesh.rules": _operational(
        (),
        "REGEX=AXIS,...: sharding of parameters by path, before the model's own rules; -: not sharded",
    ),
    "eval.every": _operational(0, "steps between evaluations; 0: only at the end", AT_LEAST_0),
    "eval.batch_size": Option(
        0, "examples per batch; 0: as in training", SIZE_OR_0, may_change=True
    ),
    "eval.stop_at": Option(
        0.0,
        "ends the run once the metric that chooses the best checkpoint is as good as this; 0: never",
        AT_LEAST_0,
        may_change=True,
    ),
    "log.every": _operational(20, "steps averaged in one line of metrics.jsonl", AT_LEAST_1),
    # The state holds the sums of these norms, so the key must not change.
    "log.norms": Option(
        False,
        "also log the norms of gradients, updates and parameters, by layer",
        compared=NO_RUNS,
    ),
    "log.tensorboard": _operational(False, "also write TensorBoard files (extra: tensorboard)"),
    "log.wandb": _operational(
        "", "Weights & Biases project that also gets the logs (extra: wandb)"
    ),
    "log.hang_seconds": _operational(
        1800.0,
        "seconds without progress after which a run ends (first step: an hour); 0: never",
        AT_LEAST_0,
    ),
    "profile.steps": _operational(
        "", "FIRST:LAST, the steps that a profiler traces into RUN/profile; empty: none"
    ),
    "checkpoint.every": _operational(
        500, "steps between checkpoints; one is always saved at the end", AT_LEAST_1
    ),
    "checkpoint.keep": _operational(2, "newest checkpoints to keep", AT_LEAST_1),
    "checkpoint.keep_best": _operational(1, "best checkpoints to keep in addition", AT_LEAST_0),
    "checkpoint.metric": _operational(
        "",
        "metric that chooses the best; empty: the task's own, of the running mean if there is one",
    ),
}

# Keys that were removed since the last release, with the values with which the config.json of a run
# can still be read.
REMOVED = {"data.packing": ("concatenated",)}


def may_change(name: str, config: ml_collections.ConfigDict) -> bool:
    """Whether a key may change in the middle of a run that now has this config."""
    option = keys(config).get(name)
    if option is None:  # of another block or task
        return False
    hyperparameter = name.removeprefix("optimizer.")
    return option.may_change and hyperparameter not in find(config.optimizer.name).fixed


def of_block(block: str) -> dict[str, Option]:
    """The keys that a block declares; raises ConfigError if there is no such block."""
    options = options_of(blocks.find(block).Spec)
    return {f"model.{name}": option for name, option in options.items()}


def of_task(task: str) -> dict[str, Option]:
    """The keys that a task declares; raises ConfigError if there is no such task."""
    return dict(tasks.find(task).options)


def all_keys() -> dict[str, Option]:
    """The keys of all tasks and blocks of this package, with their options."""
    options = dict(COMMON)
    for block in blocks.BLOCKS:
        options |= of_block(block)
    for task in tasks.TASKS:
        options |= of_task(task)
    return options


def keys_of(
    task: str = COMMON[TASK].default, block: str = COMMON[BLOCK].default
) -> dict[str, Option]:
    """Every dotted name of a config with a task and a block, with its option, in groups. Raises as
    `default`."""
    options = COMMON | of_block(block) | of_task(task)
    groups: dict[str, dict[str, Option]] = {}
    for name, option in options.items():
        group_name, _, _ = name.rpartition(".")
        group = groups.setdefault(group_name, {})
        group[name] = option
    grouped = {}
    for group in groups.values():
        grouped |= group
    return grouped


def keys(config: ml_collections.ConfigDict) -> dict[str, Option]:
    """Every dotted name of a config, with its option."""
    return keys_of(config.task, config.model.block)


def short_names() -> dict[str, str]:
    """The short name of a key -> the key."""
    return {option.short: name for name, option in COMMON.items() if option.short}


def former_names(options: Mapping[str, Option]) -> dict[str, str]:
    """The name of a key before the last release -> the key."""
    return {option.former_name: name for name, option in options.items() if option.former_name}


def default(task: str = "masked_lm", block: str = "gmlp") -> ml_collections.ConfigDict:
    """A config of a task and a block with every key at its default; no other key can be set on it.

    Raises:
        ConfigError: there is no such task or block, or one of its keys would hide a method of a
            config.
    """
    values: dict[str, Any] = {}
    options = keys_of(task, block)
    for name, option in options.items():
        group, _, last = name.rpartition(".")
        if hasattr(ml_collections.ConfigDict, last):
            raise ConfigError(
                f"the key {name} has the name of a method of ConfigDict: give it another"
            )
        of_group = values.setdefault(group, {}) if group else values
        of_group[last] = option.default
    values["task"] = task
    values["model"]["block"] = block
    return ml_collections.ConfigDict(values).lock()


def mutable_copy(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
    """A copy whose keys can be set, also of a frozen config."""
    return ml_collections.ConfigDict(config.to_dict()).lock()


def flat(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The values by dotted name."""
    return {name: config[name] for name in keys(config)}


def read_paths(config: ml_collections.ConfigDict) -> dict[str, tuple[str, ...]]:
    """Key -> what a run of a config reads there: paths, URLs, or names such as tfds:NAME. Keys
    without a value are left out."""
    paths = {}
    for name, option in keys(config).items():
        value = config[name]
        if not option.reads or not value:
            continue
        if isinstance(value, str):
            paths[name] = (value,)
        else:
            paths[name] = tuple(line.rpartition("=")[0] for line in value)
    return paths


def differences(
    before: ml_collections.ConfigDict, after: ml_collections.ConfigDict
) -> dict[str, tuple[Any, Any]]:
    """The keys in which two configs differ, with both values; None stands for a key that a config
    does not have."""
    old = flat(before)
    new = flat(after)
    pairs = {}
    for name in old | new:
        old_value = old.get(name)
        new_value = new.get(name)
        if old_value != new_value:
            pairs[name] = (old_value, new_value)
    return pairs


def changed(
    config: ml_collections.ConfigDict, task: str = "", block: str = ""
) -> ml_collections.ConfigDict:
    """A copy with another task or block: shared keys keep their values, new keys get their
    defaults.

    Raises ConfigError: there is no such task or block.
    """
    new = default(task or config.task, block or config.model.block)
    old_keys = keys(config)
    values = {}
    for name in keys(new):
        if name in old_keys and name not in (TASK, BLOCK):
            values[name] = config[name]
    new.update_from_flattened_dict(values)
    return new


def help_text(config: ml_collections.ConfigDict | None = None) -> str:
    """The keys for reading, `name = value  # comment`: of a config, or of every task and block with
    their defaults."""
    if config is not None:
        title = f"config.task={config.task}, config.model.block={config.model.block}"
        return _help_section(title, keys(config), flat(config))
    every_block = {f"model.{name}": option for name, option in options_of(BlockSpec).items()}
    sections = {"every run": COMMON, "every block": every_block}
    for block in blocks.BLOCKS:
        specific = {}
        for name, option in of_block(block).items():
            if option != every_block.get(name):
                specific[name] = option
        sections[f"config.model.block={block}"] = specific
    for task in tasks.TASKS:
        sections[f"config.task={task}"] = of_task(task)
    texts = [_help_section(title, options, {}) for title, options in sections.items()]
    return "\n\n".join(texts)


def _help_section(title: str, options: Mapping[str, Option], values: Mapping[str, Any]) -> str:
    lines = [f"{title}:"]
    for name, option in options.items():
        value = values.get(name, option.default)
        setting = f"config.{name} = {value!r}"
        lines.append(f"{setting:<46}  # {option.meaning}")
    return "\n".join(lines)
