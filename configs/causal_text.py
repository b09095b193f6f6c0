"""A causal language model, which continues texts: of CPython's reference manual, or of your own
text.

    gmlp train --config=causal_text:gmlp --workdir=runs/story --config.data.train=books/data
    echo "It was a dark night" | gmlp predict --workdir=runs/story --tokens=200 --temperature=0.8 \\
        --top_p=0.9

`--config.data.train` takes what own_text takes. Without it, the embedded manual is read.

ARGUMENT: MODEL, followed by ,scale=SCALE and ,tokenizer=KIND.

MODEL: gmlp (default), amlp, transformer (with relative positions) or modern_causal (Llama's block).
SCALE:
    small       (default) n = 128, 6 layers of 128 channels or as many parameters (0.9 M besides the
                vocabulary), 8,000 pieces, 2,000 steps
    quickstart  n = 64, two thirds of the layers, 2,000 pieces, 500 steps: minutes on 2 CPU cores,
                on the embedded text
KIND:
    pieces      (default) a SentencePiece model trained on the text
    bytes       a vocabulary of 261 bytes and symbols, at twice the length

The rates are those of masked models of this size. They were not searched for causal ones.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper.published import LLAMA

MODELS = {
    "gmlp": dict(layers=6, d_ffn=768),
    "amlp": dict(layers=5, d_ffn=672, d_attn=64),
    "transformer": dict(layers=4, d_ffn=608, heads=4, positions="relative", scale_embeddings=True),
    "modern_causal": dict(layers=4, d_ffn=408, heads=4, scale_embeddings=True, **LLAMA),
}
RATES = {"gmlp": 5e-3, "amlp": 4e-3, "transformer": 4e-3, "modern_causal": 4e-3}


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    name, scale, kind = gmlp_config.arguments(
        arg or "gmlp", tuple(MODELS), scale=("small", "quickstart"), tokenizer=("pieces", "bytes")
    )
    sizes = MODELS[name]
    block = "transformer" if "heads" in sizes else "gmlp"
    config = gmlp_config.default(task="causal_lm", block=block)
    config.model.update(causal=True, d_model=128, length=128, vocab_size=8000)
    config.model.update(sizes)
    config.batch_size = 32
    config.steps = 2000
    config.optimizer.update(
        learning_rate=RATES[name], warmup=100, weight_decay=0.01, schedule="linear"
    )
    config.checkpoint.every = config.eval.every = 500
    if scale == "quickstart":
        layers = 2 * config.model.layers // 3
        config.model.update(layers=layers, length=64, vocab_size=2000)
        config.steps = 500
        config.optimizer.warmup = 30
    if kind == "bytes":
        config.data.tokenizer = "bytes"
        config.model.vocab_size = 261
        config.model.length *= 2
    return config
