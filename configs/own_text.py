"""A masked language model of your own text, no code needed.

    gmlp train --config=own_text:PATH --workdir=runs/mine
    gmlp train --config=own_text:SIZE --workdir=runs/mine \\
        --config.data.train=PATH [--config.data.heldout=PATH | --config.data.heldout_share=0.05]

PATH is a text file, a folder of .txt files, or .jsonl, .jsonl.gz or .jsonl.zst with a `text` field.
The tokenizer is trained on the training text at the first run and cached. The amount of text
decides the size (compressed text counts four times), and a line says what was chosen and why: tiny
below 10 MB, small otherwise. Keys that you set take precedence. SIZE is

    tiny             a minute or two: 4 layers of 128 channels, 64 tokens, 2,000 pieces, 500 steps,
                     as quickstart_text
    small            (default) 6 layers of 128 channels, 128 tokens, 8,000 pieces, 2,000 steps
    base, amlp_base  the paper's widths and depths at n = 128 (Table 5 runs them at 512); for an
                     accelerator

The rate of small suits much text: on 130 books (65 MB) it ended at a held-out perplexity of 56.8,
at 2e-3 at 62.2. It memorizes a small text: on WikiText-2's validation part (1.1 MB) it ended
at 41.1, and at 37.3 with `--config.optimizer.learning_rate=2e-3`. One seed each.
"""

import sys

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.summary import readable_size
from gmlp_flax.io import compression, files
from gmlp_flax.paper import recipes

SIZES = ("small", "tiny", "base", "amlp_base")
SMALL = dict(layers=6, d_model=128, d_ffn=768, vocab_size=8000)
LARGE = {"base": "gmlp_base", "amlp_base": "amlp_base"}  # size -> model of Table 5
ENOUGH = 10e6  # bytes of text for `small`


def is_path(arg: str) -> bool:
    """Whether the argument is a path to text and not a size."""
    return bool(arg) and arg not in SIZES and files.exists(arg)


def text_bytes(path: str) -> int:
    """About how many bytes of text there are in a file or a folder."""
    total = 0
    for file in files.find_files(path):
        is_compressed = file.name.endswith(compression.COMPRESSIONS)
        total += 4 * file.size if is_compressed else file.size
    return total


def size_for(path: str) -> str:
    """The size that suits the text in a file or a folder; says why."""
    total = text_bytes(path)
    if total < ENOUGH:
        size = "tiny"
        why = (
            "in less than 10 MB rare pieces are not learned, and a larger model memorizes the text"
        )
    else:
        size = "small"
        why = "it suits 10 MB and more"
    amount = readable_size(total) if total < 1e6 else f"{total / 1e6:,.1f} MB"
    print(f"own_text:{size} for {amount} of text in {path}: {why}", file=sys.stderr)
    return size


def small_text():
    """The config of small, for a CPU."""
    config = gmlp_config.default()
    set_common(config)
    config.model.update(SMALL)
    config.steps = 2000
    config.batch_size = 32
    config.optimizer.update(learning_rate=5e-3, warmup=100)
    config.checkpoint.every = config.eval.every = 500
    return config


def large_text(model: str):
    """The config of a model of Table 5 at 128 tokens, for an accelerator."""
    config = recipes.language_model(model)
    set_common(config)
    config.model.update(length=128, vocab_size=32_000, dtype="bfloat16")
    config.steps = 100_000
    config.batch_size = 256
    config.optimizer.update(learning_rate=7e-4, warmup=10_000)
    config.checkpoint.every = config.eval.every = 5000
    return config


def set_common(config) -> None:
    """Sets what small and the larger sizes share."""
    config.data.train = ""  # to be given
    config.optimizer.update(weight_decay=0.01, schedule="linear")


def of_size(size: str):
    """The config of a size."""
    if size == "tiny":
        config = gmlp_config.from_file("quickstart_text")
        config.data.train = ""  # to be given
        return config
    if size == "small":
        return small_text()
    return large_text(LARGE[size])


def get_config(arg: str = "small"):
    """See the module's docstring."""
    if is_path(arg):
        config = of_size(size_for(arg))
        config.data.train = arg
        return config
    gmlp_config.note_path("own_text", arg)
    (size,) = gmlp_config.arguments(arg or "small", (*SIZES, "a file or a folder of text"))
    return of_size(size)
