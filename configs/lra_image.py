"""Long Range Arena's Image: CIFAR-10 as 1,024 grey pixels in a row, each a token of 256 kinds; 10
classes.

    gmlp train --config=lra_image:gmlp --workdir=runs/pixels --config.data.train=PATH

PATH is a folder or tar of ten class folders, of which a tenth is held out, or `tfds:cifar10`, whose
test part is held out. Colours become grey as they are read. Nothing is augmented.

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL: gmlp (default), amlp, transformer, mixer, resmlp, feed_forward, fnet, fnet_hybrid,
synthesizer, external_attention, convolution, bigs, delta, hydra, depthwise or long_conv; or your
own class, my_package.my_module:MyBlock, with ,match=MATCH as in c4_ablation.
SCALE:
    paper  (default) As published in image/configs/cifar10/transformer_base.py of
           google-research/long-range-arena since August 2021, which we read in copies
           (docs/long-inputs.md): 1 layer, 128 wide, 8 heads, an MLP of 128, queries, keys and
           values 64 wide and without biases, a class token, learned positions; 200 epochs of 45,000
           images in batches of 256, a rate of 5e-4 with one epoch of warmup and a cosine, no weight
           decay, dropout 0.3, of attention 0.2; Adam as in its listops/train.py. Its first
           versions, such as 6d5e5ca, are 32 wide with 1 head and an MLP of 64. Never run here.
    small  For 2 CPU cores: 2 layers of 64 channels on images of 16 x 16, and 200 steps of 64. A
           fiftieth is held out.
"""

from gmlp_flax.paper import custom_rows, long_range


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    row, scale = custom_rows.arguments(
        arg or "gmlp", tuple(long_range.MODELS), scale=("paper", "small")
    )
    setting = long_range.SETTINGS["image"]
    pool = "cls"
    side = 32
    if scale == "small":
        setting = setting._replace(layers=2, d_model=64, heads=2, d_ffn=256)
        pool = "mean"
        side = 16
    config = long_range.pixel_classifier(row, setting, side=side, pool=pool)
    if scale == "paper":
        config.data.heldout_share = 0.1
        return config
    config.data.heldout_share = 0.02
    return long_range.small(config, batch_size=64)
