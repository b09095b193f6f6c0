"""Classification of UCI's handwritten digits (8 x 8), in about a minute on a laptop CPU.

gmlp train --config=quickstart_image --workdir=runs/digits
"""

from gmlp_flax import config as gmlp_config


def get_config(arg: str = ""):
    """`frozen` keeps the spatial projections as they start: the same model without token mixing."""
    (kind,) = gmlp_config.arguments(arg or "trained", ("trained", "frozen"))
    config = gmlp_config.default(task="image_classification")
    config.steps = 300
    config.batch_size = 64
    config.model.update(
        layers=6,
        d_model=64,
        d_ffn=384,
        spatial="dense",
        image_size=(8, 8),
        patch_size=(2, 2),
        channels=1,
    )
    config.data.update(min_scale=1.0, flip=False, eval_crop=1.0)
    config.optimizer.update(learning_rate=2e-3, warmup=30, label_smoothing=0.1)
    if kind == "frozen":
        config.optimizer.freeze = ("/spatial/",)
    return config
