"""Pretraining on ImageNet-21K: configs/imagenet.py's recipe on more images and more classes, for
later finetuning.

    gmlp train --config=imagenet21k:gmlp_b --workdir=runs/gmlp_b_21k --config.data.train=PATH
    gmlp train --config=finetune_image:gmlp_b --workdir=runs/gmlp_b \\
        --config.init_from=runs/gmlp_b_21k --config.data.train=tfds:imagenet2012

PATH is a prepared TFDS folder or a folder of class folders. Half a per cent of its images is held
out unless `--config.data.heldout=PATH` is given.

ARGUMENT: MODEL, an image model by its name in `gmlp sizes`.

The camera-ready version of the gMLP paper names an appendix (E) on ImageNet-21K. We have not seen
it and know no number of it. The 90 epochs with a batch of 4096 are ours, chosen as in the ViT
paper. The number of steps assumes 14.2 M images. bfloat16. Never run here.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes

EXAMPLES = 14_197_122


def get_config(arg: str = "gmlp_s"):
    """See the module's docstring."""
    (name,) = gmlp_config.arguments(arg or "gmlp_s", recipes.IMAGE_MODELS)
    config = recipes.image_model(name)
    config.data.train = ""  # to be given
    config.data.update(heldout_share=0.005, workers=8)
    recipes.gmlp_imagenet(config)
    config.model.dtype = "bfloat16"
    config.batch_size = 4096
    config.optimizer.warmup = 10_000
    config.steps = 90 * EXAMPLES // config.batch_size
    config.eval.every = config.checkpoint.every = 10_000
    return config
