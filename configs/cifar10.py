"""CIFAR-10: the paper's ImageNet recipe in small, for one CPU or one GPU.

    gmlp train --config=cifar10:gmlp --workdir=runs/cifar10 \\
        --config.data.train=PATH

PATH is a folder or tar of ten class folders, or `tfds:cifar10`; a tenth of a folder is held out
unless `--config.data.heldout` is given.
ARGUMENT: MODEL or MODEL,scale=SCALE. MODEL may also be a class of your own,
my_package.my_module:MyBlock, in ViT's frame, with ,match=MATCH as in c4_ablation.
    small  (default) gmlp, mixer, vit, resmlp, feed_forward, or amlp and other papers' mixers: fnet,
           hybrid, random, fixed_random, factorized, dense, factorized_dense, random_vanilla,
           external, lightweight, dynamic, growing, bigs, delta, hydra, depthwise, long_conv. Each
           has 0.525 M parameters in its encoder, up to 2 %, for CPUs: 11 epochs.
    gpu    the same at twice the depth and three times the width, 200 epochs of batch 512 in
           bfloat16. Never run here.
AutoAugment, mixup, CutMix, label smoothing, AdamW at 1e-3 with a cosine as in configs/imagenet.py.
Run here with `--config.steps=1300 --config.optimizer.warmup=130` only, 3.7 epochs: top-1 (%) of
5,011 held out, two seeds: gmlp 51.9 and 50.8, mixer 43.6 and 46.0, vit 40.4 and 39.6; resmlp 52.0
and 51.0 at 4e-3, feed_forward 47.2 and 51.4 at 8e-3.
"""

from gmlp_flax.paper import recipes


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    return recipes.small_images(arg, image_size=32, examples=45_000, heldout_share=0.1, steps=4000)
