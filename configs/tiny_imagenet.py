"""Tiny-ImageNet: the paper's ImageNet recipe in small, for one CPU or one GPU.

    gmlp train --config=tiny_imagenet:gmlp --workdir=runs/tiny_imagenet \\
        --config.data.train=PATH

PATH is the folder or tar of its 200 class folders; `--config.data.heldout=PATH` names the held-out
ones, else a twentieth of PATH is held out.
ARGUMENT: MODEL or MODEL,scale=SCALE. MODEL may also be a class of your own,
my_package.my_module:MyBlock, in ViT's frame, with ,match=MATCH as in c4_ablation.
    small  (default) the models of configs/cifar10.py, each of 0.525 M parameters up to 2 %, for
           CPUs: 6 epochs.
    gpu    the same at twice the depth and three times the width, 200 epochs of batch 512 in
           bfloat16. Never run here.
AutoAugment, mixup, CutMix, label smoothing, AdamW at 1e-3 with a cosine as in configs/imagenet.py.
Run here for 1,000 steps on a fifth of the images only (docs/results/which-mixer.md).
"""

from gmlp_flax.paper import recipes


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    return recipes.small_images(
        arg, image_size=64, examples=100_000, heldout_share=0.05, steps=5000
    )
