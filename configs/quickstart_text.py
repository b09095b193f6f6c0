"""Masked language modeling on CPython's reference manual, in minutes on a laptop CPU.

gmlp train --config=quickstart_text --workdir=runs/text
"""

from gmlp_flax import config as gmlp_config


def get_config(arg: str = ""):
    """`frozen` keeps the spatial projections as they start: the same model without token mixing."""
    (kind,) = gmlp_config.arguments(arg or "trained", ("trained", "frozen"))
    config = gmlp_config.default()
    config.steps = 500
    config.batch_size = 32
    config.model.update(layers=4, length=64, d_model=128, d_ffn=512, vocab_size=2000)
    config.masking.max_predictions = 10
    config.optimizer.update(learning_rate=5e-3, warmup=30)
    if kind == "frozen":
        config.optimizer.freeze = ("/spatial/",)
    return config
