"""Tiny-ImageNet: the paper's ImageNet recipe in small, for one CPU or one GPU.

    gmlp train --config=tiny_imagenet:gmlp --workdir=runs/tiny_imagenet \\
        --config.data.train=PATH

PATH is the folder or tar of its 200 class folders. `--config.data.heldout=PATH` names the held-out
images; without it, a twentieth of the training images is held out.

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL is one of those of cifar10, which have 0.525 M parameters up to 2 % here too; or your own
class, my_package.my_module:MyBlock, in ViT's frame, with ,match=MATCH as in c4_ablation.
SCALE:
    small  (default) For CPUs: 6 epochs.
    gpu    Twice the depth, three times the width, and 200 epochs with a batch of 512 in bfloat16.
           Never run here.

The recipe is that of cifar10. It was run here for 1,000 steps on a fifth of the images only
(docs/results/which-mixer.md).
"""

from gmlp_flax.paper import recipes


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    return recipes.small_images(
        arg, image_size=64, examples=100_000, heldout_share=0.05, steps=5000
    )
