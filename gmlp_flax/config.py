"""The schema: every key of a run, its default, one comment. Also: load, validate, did-you-mean.

A config file is Python with `get_config(arg="")` that returns `config.default()` with some keys set. This module is
itself such a file for the `config.json` that each run writes: `--config=RUN/config.json` reads it back.
"""

from __future__ import annotations

import difflib
import json
import re
import runpy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ml_collections


class ConfigError(ValueError):
    """A config or a command line that cannot be run; the message is one line that says what to do."""


class Key(NamedTuple):
    """One key: its default, what it means, and, where few values make sense, which."""

    default: Any
    comment: str
    choices: tuple = ()


SCHEMA = {
    "task": Key("masked_lm", "what is trained", ("masked_lm", "image_classification")),
    "steps": Key(1000, "optimizer steps of the whole run"),
    "seed": Key(0, "with the step, determines every batch, mask, augmentation and dropped branch"),
    "batch_size": Key(32, "examples a step, over all devices and microbatches"),
    "init_from": Key("", "run folder or checkpoint whose parameters start this run; empty: fresh"),
    "model": {
        "block": Key("gmlp", "the token mixer", ("gmlp", "transformer", "mixer")),
        "layers": Key(6, "number of blocks (the paper's L)"),
        "d_model": Key(128, "width of the residual stream"),
        "d_ffn": Key(768, "width inside a block; of gMLP, both halves of the gate counted"),
        "gate": Key("split", "Table 3's gate; split is the Spatial Gating Unit",
                    ("linear", "additive", "multiplicative", "split")),
        "spatial": Key("toeplitz", "the spatial projection: [n, n], or 2n - 1 taps", ("toeplitz", "dense")),
        "toeplitz": Key("direct", "how taps are applied; README says where fft overtakes", ("direct", "fft")),
        "spatial_init_std": Key(1e-6, "standard deviation of spatial weights at the start (paper: near zero)"),
        "d_attn": Key(0, "head size of tiny attention: 0 for gMLP, 64 or 128 for aMLP"),
        "positions": Key("none", "learned table, or the Transformer's bias on its logits or in their place",
                         ("none", "absolute", "relative", "relative_only")),
        "heads": Key(4, "Transformer: attention heads"),
        "relative_buckets": Key(0, "Transformer: T5's logarithmic buckets of offsets (T5: 32); 0: one an offset"),
        "d_spatial": Key(64, "Mixer: width of the MLP over tokens"),
        "activation": Key("gelu", "the exact GELU, or its tanh form", ("gelu", "gelu_tanh")),
        "norm_eps": Key(1e-6, "epsilon of the layer norms"),
        "survival": Key(1.0, "probability that stochastic depth keeps a residual branch of a sample"),
        "survival_schedule": Key("constant", "the same for all layers, or linear in depth", ("constant", "linear")),
        "dropout": Key(0.0, "rate of dropout on embeddings and residual branches"),
        "dtype": Key("float32", "type of activations and matrix products", ("float32", "bfloat16")),
        "remat": Key("matmuls", "what backward recomputes: nothing, all but matrix products, or all",
                     ("none", "matmuls", "full")),
        "length": Key(128, "text: tokens a sequence (the paper's n)"),
        "vocab_size": Key(2000, "text: rows of the embedding table, and the size of a tokenizer trained here"),
        "transform": Key(False, "text: BERT's transform layer before the logits (the paper's counts have none)"),
        "image_size": Key((224, 224), "images: height and width"),
        "patch_size": Key((16, 16), "images: height and width of a patch"),
        "channels": Key(3, "images: 3 for RGB, 1 for grey", (1, 3)),
        "pool": Key("mean", "images: mean of the tokens, or a cls token with a pre-logits layer", ("mean", "cls")),
    },
    "data": {
        "train": Key("embedded", "a path, `tfds:NAME/CONFIG`, or `embedded`: CPython's reference manual, UCI's digits"),
        "heldout": Key("", "path of the held-out data; empty: a split or a share of the training data"),
        "split": Key("", "text: the split to train on; empty: `train` where the corpus has splits"),
        "heldout_split": Key("", "text: the split held out; empty: `validation` where the corpus has it"),
        "heldout_share": Key(0.05, "share of the training data held out where no path is given"),
        "tokenizer": Key("", "a SentencePiece model or a WordPiece vocabulary; empty: trained on the training text"),
        "packing": Key("concatenated", "text: windows over all documents in a row, or over each one alone",
                       ("concatenated", "documents")),
        "max_bad_records": Key(0, "text: records that do not parse are skipped, as many in all; one more stops the run"),
        "cache": Key("", "folder for tokenizers and token ids; empty: ~/.cache/gmlp_flax"),
        "min_scale": Key(0.08, "images: least share of the picture that a training crop covers; 1: no crop"),
        "eval_crop": Key(0.875, "images: share of the resized picture's side that evaluation crops; 1: all of it"),
        "flip": Key(True, "images: mirror half of the training pictures"),
        "mean": Key((0.5, 0.5, 0.5), "images: subtracted from each channel of pixels in 0 to 1"),
        "std": Key((0.5, 0.5, 0.5), "images: divides each channel afterwards"),
        "workers": Key(0, "processes that prepare batches; 0: threads of this one"),
    },
    "masking": {
        "rate": Key(0.15, "share of a sequence's tokens to predict"),
        "max_predictions": Key(20, "at most this many a sequence (BERT: 20 at length 128)"),
        "mask_share": Key(0.8, "share of the predicted that [MASK] replaces"),
        "random_share": Key(0.1, "share of the predicted that a random token replaces; the rest stays"),
        "static": Key(False, "mask each sequence once, instead of anew each time that it is seen"),
    },
    "optimizer": {
        "learning_rate": Key(1e-3, "peak of the schedule"),
        "schedule": Key("cosine", "after the warmup", ("cosine", "linear", "constant")),
        "warmup": Key(100, "steps of linear warmup from 0"),
        "b1": Key(0.9, "AdamW's decay of the first moment"),
        "b2": Key(0.999, "AdamW's decay of the second moment"),
        "eps": Key(1e-6, "AdamW's epsilon"),
        "weight_decay": Key(0.05, "decoupled; norms, biases and spatial biases are left out"),
        "clip": Key(1.0, "global norm of gradients; 0: no clipping"),
        "accumulate": Key(1, "microbatches a step"),
        "ema": Key(0.0, "decay of a running mean of the parameters, evaluated beside them; 0: none"),
        "freeze": Key((), "regular expressions of parameter paths that stay as they started"),
        "label_smoothing": Key(0.0, "images: share of the target spread over all classes"),
    },
    "eval": {
        "every": Key(0, "steps between evaluations; 0: at the end alone"),
        "batch_size": Key(0, "examples a batch; 0: as in training"),
        "seed": Key(0, "fixes which held-out tokens are masked, for all runs alike"),
    },
    "log": {
        "every": Key(20, "steps that one line of metrics.jsonl averages"),
        "tensorboard": Key(False, "also write TensorBoard files (extra: tensorboard)"),
        "wandb": Key("", "project on Weights & Biases to log to as well (extra: wandb)"),
    },
    "checkpoint": {
        "every": Key(500, "steps between checkpoints; one is always saved at the end"),
        "keep": Key(2, "newest checkpoints to keep"),
        "keep_best": Key(1, "best checkpoints to keep as well"),
        "metric": Key("", "evaluation metric that says which is best; empty: the task's own"),
    },
}


AT_LEAST = {
    0: ("seed", "eval.every", "eval.batch_size", "data.max_bad_records", "optimizer.warmup", "optimizer.clip", "checkpoint.keep_best"),
    1: ("steps", "batch_size", "log.every", "checkpoint.every", "checkpoint.keep", "optimizer.accumulate",
        "masking.max_predictions"),
}


def keys() -> Iterator[tuple[str, Key]]:
    """Every dotted name with its key."""
    for name, entry in SCHEMA.items():
        if isinstance(entry, Key):
            yield name, entry
        else:
            for inner, key in entry.items():
                yield f"{name}.{inner}", key


def default() -> ml_collections.ConfigDict:
    """A config with every key at its default; a key that does not exist cannot be set on it."""
    config = ml_collections.ConfigDict(
        {
            name: entry.default if isinstance(entry, Key) else {inner: key.default for inner, key in entry.items()}
            for name, entry in SCHEMA.items()
        }
    )
    return config.lock()


def help_text() -> str:
    """The schema for reading: `name = default  # comment`, a line each."""
    lines = []
    for name, key in keys():
        choices = f" ({', '.join(map(str, key.choices))})" if key.choices else ""
        lines.append(f"{f'config.{name} = {key.default!r}':<46}  # {key.comment}{choices}")
    return "\n".join(lines)


def check_name(name: str, where: str) -> None:
    """Refuses a dotted name that the schema does not hold.

    Raises:
        ConfigError: naming it and the nearest valid one.
    """
    names = [known for known, _ in keys()]
    if name in names:
        return
    if name in SCHEMA:
        raise ConfigError(f"{where}: {name} is a group of keys; set one of {', '.join(SCHEMA[name])}")
    raise ConfigError(f"{where}: there is no config key {name!r}{nearest(name, names)}")


def nearest(name: str, names: list[str]) -> str:
    """A question that names the most similar of `names`, by the whole or by its last part; empty if none is."""
    last = {known.rpartition(".")[2]: known for known in reversed(names)}
    close = difflib.get_close_matches(name, names, 1, 0.7)
    close = close or [last[hit] for hit in difflib.get_close_matches(name.rpartition(".")[2], list(last), 1, 0.6)]
    close = close or difflib.get_close_matches(name, names, 1, 0.4)
    return f"; did you mean {close[0]!r}?" if close else "; --help_config lists them all"


def check_overrides(argv: list[str]) -> None:
    """Checks the names of all `--config.a.b` in a command line, before absl parses it.

    Raises:
        ConfigError: a name is unknown.
    """
    for argument in argv:
        if match := re.match(r"--?config\.([^=]+)", argument):
            check_name(match[1], argument)


def explain(error: Exception, where: str) -> ConfigError:
    """One line for an exception that came out of evaluating a config file or an override."""
    message = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return ConfigError(f"{where}: {message}")
    if missing := re.search(r'Key "([^"]+)" does not exist', message):
        return ConfigError(f"{where}: there is no config key {missing[1]!r}{nearest(missing[1], [n for n, _ in keys()])}")
    return ConfigError(f"{where}: {type(error).__name__}: {message}")


def validate(config: ml_collections.ConfigDict) -> None:
    """Checks values against the schema, before any data is read.

    Raises:
        ConfigError: the first value that makes no sense.
    """
    for name, key in keys():
        try:
            value = config[name]
        except (KeyError, TypeError):
            raise ConfigError(f"the config has no {name}: begin with gmlp_flax.config.default()") from None
        if key.choices and value not in key.choices:
            raise ConfigError(f"config.{name} is {value!r}: expected one of {', '.join(map(str, key.choices))}")
    for least, names in AT_LEAST.items():
        for name in names:
            if config[name] < least:
                raise ConfigError(f"config.{name} is {config[name]}: expected at least {least}")
    for name in ("data.heldout_share", "masking.rate"):
        if not 0 < config[name] < 1:
            raise ConfigError(f"config.{name} is {config[name]}: expected a share above 0 and below 1")
    if not 0 <= config.optimizer.ema < 1:
        raise ConfigError(f"config.optimizer.ema is {config.optimizer.ema}: expected a decay from 0 to below 1")
    if config.masking.mask_share + config.masking.random_share > 1:
        raise ConfigError("config.masking.mask_share and random_share add up to more than 1")
    if config.batch_size % config.optimizer.accumulate:
        raise ConfigError(
            f"config.batch_size is {config.batch_size}: it must divide into {config.optimizer.accumulate} microbatches "
            "(config.optimizer.accumulate)"
        )
    for pattern in config.optimizer.freeze:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"config.optimizer.freeze: {pattern!r} is no regular expression ({error})") from None


def to_json(config: ml_collections.ConfigDict) -> str:
    """The full resolved config, as it is written to the run folder."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def from_dict(values: dict, where: str) -> ml_collections.ConfigDict:
    """A config from nested values, as `to_json` writes them; keys that are left out take their defaults.

    Raises:
        ConfigError: a key is unknown or a value has another type.
    """
    config = default()
    flat = {
        f"{group}.{name}" if isinstance(entry, dict) else group: value
        for group, entry in values.items()
        for name, value in (entry.items() if isinstance(entry, dict) else [("", entry)])
    }
    known = dict(keys())
    for name, value in flat.items():
        check_name(name, where)
        value = tuple(value) if isinstance(known[name].default, tuple) else value
        try:
            group, _, last = name.rpartition(".")
            setattr(config[group] if group else config, last, value)
        except (TypeError, ValueError) as error:
            raise explain(error, where) from None
    return config


def load(path: str) -> ml_collections.ConfigDict:
    """Reads a run's config.json.

    Raises:
        ConfigError: the file is missing, is not JSON, or holds an unknown key.
    """
    try:
        with open(path) as file:
            values = json.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the config {path}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, not the config of a run")
    return from_dict(values, path)


def from_file(path: str, arg: str = "") -> ml_collections.ConfigDict:
    """Evaluates a config file as `--config=path:arg` does."""
    return runpy.run_path(path)["get_config"](arg)


def arguments(arg: str, names: Sequence[str], **options: Sequence[str]) -> tuple[str, ...]:
    """Splits a config file's argument, NAME or NAME,option=value,..., into the name and the options' values.

    Args:
        arg: what follows the colon in --config=FILE:ARG.
        names: the names that may stand first.
        options: the values that each option may take; the first is its default.

    Raises:
        ConfigError: a name, an option or a value is unknown.
    """
    name, *rest = arg.split(",")
    if name not in names:
        raise ConfigError(f"the config's argument is {name!r}{_among(name, names)}")
    chosen = {option: values[0] for option, values in options.items()}
    for word in rest:
        option, _, value = word.partition("=")
        if option not in options:
            expected = ", ".join(f"{known}=..." for known in options) or "nothing after the name"
            raise ConfigError(f"the config's argument has {word!r}: expected {expected}")
        if value not in options[option]:
            raise ConfigError(f"the config's argument has {word!r}: {option} is one of {', '.join(options[option])}")
        chosen[option] = value
    return name, *chosen.values()


def _among(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else f": expected one of {', '.join(names)}"


get_config = load  # This module, as a config file whose argument is the path of a config.json.
