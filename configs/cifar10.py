"""CIFAR-10: the paper's ImageNet recipe in small, for one CPU or one GPU.

    gmlp train --config=cifar10:gmlp --workdir=runs/cifar10 \\
        --config.data.train=PATH

PATH is a folder or tar of ten class folders, or `tfds:cifar10`. A tenth of a folder is held out
unless `--config.data.heldout` is given.

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL is gmlp, amlp, mixer, vit, resmlp, feed_forward, fnet, hybrid, random, fixed_random,
factorized, dense, factorized_dense, random_vanilla, external, lightweight, dynamic, growing, bigs,
delta, hydra, depthwise or long_conv. It may also be your own class, my_package.my_module:MyBlock,
in ViT's frame, with ,match=MATCH as in c4_ablation.
SCALE:
    small  (default) For CPUs: 0.525 M parameters in each encoder, up to 2 %, and 11 epochs.
    gpu    Twice the depth, three times the width, and 200 epochs with a batch of 512 in bfloat16.
           Never run here.

The recipe has AutoAugment, mixup, CutMix and label smoothing, and AdamW at 1e-3 with a cosine, as
configs/imagenet.py. It was run here with `--config.steps=1300 --config.optimizer.warmup=130` only,
which are 3.7 epochs. Top-1 (%) of 5,011 held-out images, two seeds:

    gmlp          51.9, 50.8
    mixer         43.6, 46.0
    vit           40.4, 39.6
    resmlp        52.0, 51.0 (rate 4e-3)
    feed_forward  47.2, 51.4 (rate 8e-3)
"""

from gmlp_flax.paper import recipes


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    return recipes.small_images(arg, image_size=32, examples=45_000, heldout_share=0.1, steps=4000)
