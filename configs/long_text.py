"""A Toeplitz gMLP on long inputs: 4,096 or 16,384 tokens.

    gmlp train --config=long_text:16384,scale=small --workdir=runs/long

ARGUMENT: LENGTH, followed by ,scale=SCALE.

LENGTH: 512, 1024, 2048, 4096 (default), 8192 or 16384. No table of the paper has such lengths.
SCALE:
    base   (default) The widths and depth of gMLP-base, in bfloat16. Give
           `--config.data.train=CORPUS`. Never run here.
    small  For CPUs: 4 layers of 64 channels and 100 steps. Up to 8,192 tokens it reads the embedded
           text. Its held-out part is shorter than 16,384 tokens, which need a
           `--config.data.train=CORPUS` too.

W is applied by FFT on a CPU, and in blocks on accelerators, so memory grows as n.
`gmlp benchmark long` compares it with the materialized matrix (`--config.model.toeplitz=direct`).
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import VOCAB_SIZE

LENGTHS = ("4096", "512", "1024", "2048", "8192", "16384")


def get_config(arg: str = "4096"):
    """See the module's docstring."""
    name, scale = gmlp_config.arguments(arg or "4096", LENGTHS, scale=("base", "small"))
    length = int(name)
    config = recipes.language_model("gmlp_base")
    config.model.length = length
    config.masking.max_predictions = round(0.15 * length)
    config.optimizer.update(schedule="linear", weight_decay=0.01)
    if scale == "base" or length > 8192:
        config.data.train = ""  # to be given
    if scale == "small":
        config.model.update(layers=4, d_model=64, d_ffn=256, vocab_size=2000)
        config.batch_size = max(1, 8192 // length)
        config.steps = 100
        config.optimizer.update(learning_rate=5e-3, warmup=10)
        return config
    config.model.update(vocab_size=VOCAB_SIZE, dtype="bfloat16")
    config.batch_size = 131_072 // length
    config.steps = 100_000
    config.optimizer.update(learning_rate=1e-4, warmup=10_000, clip=1.0)
    config.eval.every = config.checkpoint.every = 5000
    return config
