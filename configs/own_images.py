"""A classifier of your own images, no code needed.

    gmlp train --config=own_images --workdir=runs/mine \\
        --config.data.train=PATH [--config.data.heldout=PATH | --config.data.heldout_share=0.05]

PATH is a folder with one folder of images per class, a tar of one, or `tfds:NAME`. Argument: a
size, small (default, for a CPU, at 64 x 64), or gmlp_ti, gmlp_s or gmlp_b (Table 1, at 224 x 224),
which want an accelerator.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes


def get_config(arg: str = "small"):
    """See the module's docstring."""
    (size,) = gmlp_config.arguments(arg or "small", ("small", "gmlp_ti", "gmlp_s", "gmlp_b"))
    config = (
        gmlp_config.default(task="image_classification")
        if size == "small"
        else recipes.image_model(size)
    )
    config.data.train = ""  # to be given
    config.steps = 2000
    config.batch_size = 64
    config.model.spatial = "dense"
    config.optimizer.update(learning_rate=1e-3, warmup=200, weight_decay=0.05, label_smoothing=0.1)
    config.checkpoint.every = config.eval.every = 500
    if size == "small":
        config.model.update(
            layers=8, d_model=128, d_ffn=768, image_size=(64, 64), patch_size=(8, 8)
        )
        return config
    config.model.dtype = "bfloat16"
    config.steps = 100_000
    config.batch_size = 1024
    config.optimizer.warmup = 10_000
    config.eval.every = config.checkpoint.every = 5000
    return config
