"""CIFAR-10: the paper's ImageNet recipe in small, for one CPU or one GPU.

    python -m gmlp_flax.train --config=configs/cifar10.py:gmlp --workdir=runs/cifar10 \\
        --config.data.train=PATH

PATH is a folder or tar of ten class folders, or `tfds:cifar10`; a tenth of a folder is held out unless
`--config.data.heldout` is given.
ARGUMENT: MODEL or MODEL,scale=SCALE.
    small  (default) gmlp, mixer, vit, resmlp or feed_forward, each of 0.5 M parameters, for CPUs: 11 epochs.
    gpu    the same at twice the depth and three times the width, 200 epochs of batch 512 in bfloat16. Never run here.
AutoAugment, mixup, CutMix, label smoothing, AdamW at 1e-3 with a cosine as in configs/imagenet.py. Run here with
`--config.steps=500 --config.optimizer.warmup=50` only, 1.4 epochs: top-1 of 5,021 held out, one seed: gmlp 40.9 %, vit
34.6 %, mixer 31.7 %.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax import recipes

EXAMPLES = 45_000


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    name, scale = gmlp_config.arguments(arg or "gmlp", tuple(recipes.SMALL_IMAGE_MODELS), scale=("small", "gpu"))
    config = gmlp_config.default()
    config.data.update(train="", heldout_share=0.1)  # train is to be given
    recipes.small_image_model(config, name, 32)
    recipes.gmlp_imagenet(config)
    config.batch_size, config.steps, config.optimizer.warmup = 128, 4000, 400
    if scale == "gpu":
        wide = {key: 3 * config.model[key] for key in ("d_model", "d_ffn", "d_spatial")}
        config.model.update(layers=2 * config.model.layers, dtype="bfloat16", survival=0.95, **wide)
        config.batch_size, config.steps, config.optimizer.warmup = 512, 200 * EXAMPLES // 512, 2000
    config.eval.every = config.checkpoint.every = 1000
    return config
