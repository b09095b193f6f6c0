"""Finetunes an image model on images of your own or a TFDS set, at any resolution.

    gmlp train --config=finetune_image:gmlp_s --workdir=runs/flowers \\
        --config.init_from=gmlp_s16_224.safetensors --config.data.train=tfds:oxford_flowers102

ARGUMENT: MODEL, followed by ,size=SIZE.

MODEL: an image model by its name in `gmlp sizes`.
SIZE: the side of the images in pixels: 224 (default), 288, 320, 384 or 448.
`--config.model.image_size="(256, 192)"` sets any other height and width.

Layers over tokens (spatial projections, the token MLPs of Mixers and feed-forward stacks) and
learned positions are interpolated to the new grid of patches. The head starts anew if the classes
differ from those of the checkpoint. timm's gMLPs have another epsilon in the gate, which
`--config.model.gate_norm_eps=1e-5` keeps; it changes logits by 1e-5.

The recipe is ours: 5,000 steps of 256 images in bfloat16, AdamW at 1e-4 with a cosine, and only
random crops and flips. The camera-ready version of the gMLP paper names an appendix (E) on
ImageNet-21K and COCO. We have not seen it and do not know what it finetunes, or how. On a CPU the
recipe was run with small models only, in the tests.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes

SIZES = ("224", "288", "320", "384", "448")


def get_config(arg: str = "gmlp_s"):
    """See the module's docstring."""
    name, size = gmlp_config.arguments(arg or "gmlp_s", recipes.IMAGE_MODELS, size=SIZES)
    config = recipes.image_model(name)
    config.data.train = ""  # to be given
    recipes.gmlp_imagenet(config)
    config.model.update(image_size=(int(size), int(size)), dtype="bfloat16")
    config.augment.update(auto="none", mixup=0.0, cutmix=0.0)
    config.batch_size = 256
    config.steps = 5000
    config.optimizer.update(learning_rate=1e-4, warmup=500)
    config.eval.every = config.checkpoint.every = 1000
    return config
