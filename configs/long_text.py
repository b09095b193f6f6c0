"""A Toeplitz gMLP on long inputs: 4,096 or 16,384 tokens.

    gmlp train --config=long_text:16384,scale=small --workdir=runs/long

ARGUMENT: LENGTH or LENGTH,scale=SCALE; LENGTH is any of 512, 1024, 2048, 4096, 8192, 16384.
    base   (default) the widths and depth of gMLP-base, bfloat16; --config.data.train=CORPUS. Never
           run here.
    small  4 layers of 64 channels, 100 steps, for CPUs: on the embedded text up to 8192 tokens; its
           held-out part is shorter than 16,384, which needs a --config.data.train=CORPUS too.
No table of the paper has such lengths. W is applied by FFT on a CPU, in blocks on accelerators:
memory grows as n. `gmlp benchmark long` shows it beside the materialised matrix
(`--config.model.toeplitz=direct`).
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import VOCAB_SIZE

LENGTHS = ("4096", "512", "1024", "2048", "8192", "16384")


def get_config(arg: str = "4096"):
    """See the module's docstring."""
    length, scale = gmlp_config.arguments(arg or "4096", LENGTHS, scale=("base", "small"))
    config = recipes.language_model("gmlp_base")
    config.model.length = int(length)
    config.masking.max_predictions = round(0.15 * int(length))
    config.optimizer.update(schedule="linear", weight_decay=0.01)
    if scale == "base" or int(length) > 8192:
        config.data.train = ""  # to be given
    if scale == "small":
        config.model.update(layers=4, d_model=64, d_ffn=256, vocab_size=2000)
        config.batch_size = max(1, 8192 // int(length))
        config.steps = 100
        config.optimizer.update(learning_rate=5e-3, warmup=10)
        return config
    config.model.update(vocab_size=VOCAB_SIZE, dtype="bfloat16")
    config.batch_size = max(1, 131_072 // int(length))
    config.steps = 100_000
    config.optimizer.update(learning_rate=1e-4, warmup=10_000, clip=1.0)
    config.eval.every = config.checkpoint.every = 5000
    return config
