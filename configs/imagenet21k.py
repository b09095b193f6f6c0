"""Pretraining on ImageNet-21K: configs/imagenet.py's recipe on more images and more classes, for
later finetuning.

    gmlp train --config=imagenet21k:gmlp_b --workdir=runs/gmlp_b_21k --config.data.train=PATH
    gmlp train --config=finetune_image:gmlp_b --workdir=runs/gmlp_b \\
        --config.init_from=runs/gmlp_b_21k --config.data.train=tfds:imagenet2012

ARGUMENT: MODEL, an image model by its name in `gmlp sizes`. PATH is a prepared TFDS folder or a
folder of class folders; half a per cent of its training images is held out unless
`--config.data.heldout=PATH` is given. The gMLP paper's camera-ready version names an appendix (E)
on ImageNet-21K, which was not seen here and of which no number is known: the 90 epochs of batch
4096 are ours, chosen as the ViT paper's. 14.2 M images are assumed for the number of steps.
bfloat16. Never run here.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes

EXAMPLES = 14_197_122


def get_config(arg: str = "gmlp_s"):
    """See the module's docstring."""
    (name,) = gmlp_config.arguments(arg or "gmlp_s", recipes.IMAGE_MODELS)
    config = recipes.image_model(name)
    config.data.update(train="", heldout_share=0.005, workers=8)  # train is to be given
    recipes.gmlp_imagenet(config)
    config.model.dtype = "bfloat16"
    config.batch_size, config.optimizer.warmup = 4096, 10_000
    config.steps = 90 * EXAMPLES // config.batch_size
    config.eval.every = config.checkpoint.every = 10_000
    return config
