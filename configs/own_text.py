"""A masked language model of your own text, no code needed.

    gmlp train --config=own_text:PATH --workdir=runs/mine
    gmlp train --config=own_text:SIZE --workdir=runs/mine \\
        --config.data.train=PATH [--config.data.heldout=PATH | --config.data.heldout_share=0.05]

PATH is a text file, a folder of .txt files, or .jsonl, .jsonl.gz or .jsonl.zst with a `text` field.
The tokenizer is trained on the training text at the first run and cached. Of a PATH, the size is
chosen by how much text there is (compressed text counts four times), and a line says which and why:
tiny below 10 MB, else small. SIZE is

    tiny             a minute or two: 4 layers of 128 channels, 64 tokens, 2,000 pieces, 500 steps,
                     as quickstart_text
    small            (default) 6 layers of 128 channels, 128 tokens, 8,000 pieces, 2,000 steps
    base, amlp_base  the paper's widths and depths at n = 128 (Table 5 runs them at 512); for an
                     accelerator

The rate of small suits much text: on 130 books (65 MB) it ended at a held-out perplexity of 56.8,
at 2e-3 at 62.2. It memorises a small text: on WikiText-2's validation part (1.1 MB) it ended
at 41.1, and at 37.3 with `--config.optimizer.learning_rate=2e-3`. One seed each.
"""

import sys

from gmlp_flax import config as gmlp_config
from gmlp_flax.io import compression, files
from gmlp_flax.paper import recipes

SIZES = ("small", "tiny", "base", "amlp_base")
SMALL = dict(layers=6, d_model=128, d_ffn=768, vocab_size=8000)
ENOUGH = 10e6  # bytes of text for `small`


def size_for(path: str) -> str:
    """The size that suits the text in a file or a folder; says why."""
    found = files.find_files(path)
    total = sum(
        file.size * (4 if file.name.endswith(compression.COMPRESSIONS) else 1) for file in found
    )
    size = "small"
    why = "it suits 10 MB and more"
    if total < ENOUGH:
        size = "tiny"
        why = (
            "in less than 10 MB rare pieces are not learned, and a larger model memorises the text"
        )
    print(f"own_text:{size} for {total / 1e6:,.1f} MB of text in {path}: {why}", file=sys.stderr)
    return size


def get_config(arg: str = "small"):
    """See the module's docstring."""
    path = arg if arg not in SIZES and arg and files.exists(arg) else ""
    (arg,) = gmlp_config.arguments(
        size_for(path) if path else arg or "small", (*SIZES, "a file or a folder of text")
    )
    if arg == "tiny":
        config = gmlp_config.from_file("quickstart_text")
        config.data.train = path
        return config
    config = (
        gmlp_config.default()
        if arg == "small"
        else recipes.language_model("gmlp_base" if arg == "base" else arg)
    )
    config.data.train = path  # if it is empty, to be given
    config.steps = 2000
    config.batch_size = 32
    config.optimizer.update(learning_rate=5e-3, warmup=100, weight_decay=0.01, schedule="linear")
    config.checkpoint.every = config.eval.every = 500
    if arg == "small":
        config.model.update(SMALL)
        return config
    config.model.update(length=128, vocab_size=32_000, dtype="bfloat16")
    config.batch_size = 256
    config.steps = 100_000
    config.optimizer.update(learning_rate=7e-4, warmup=10_000)
    config.eval.every = config.checkpoint.every = 5000
    return config
