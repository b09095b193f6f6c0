"""Long Range Arena's Pathfinder: whether a dashed path joins two dots, in 1,024 grey pixels in a
row; 2 classes.

    gmlp train --config=lra_pathfinder:gmlp --workdir=runs/pathfinder \\
        --config.data.train=lra/pathfinder32/curv_contour_length_14

`--config.data.train` is the published folder of one difficulty, with metadata/ and imgs/.
curv_contour_length_14 is the hard one, which the paper reports. A fifth is held out, chosen by the
names of the images; the published reader takes the last fifth by position. For Path-X, give
pathfinder128's folder and set `--config.model.image_size=128,128`.

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL: gmlp (default), amlp, transformer, mixer, resmlp, feed_forward, fnet, fnet_hybrid,
synthesizer, external_attention, convolution, bigs, delta, hydra, depthwise or long_conv; or your
own class, my_package.my_module:MyBlock, with ,match=MATCH as in c4_ablation.
SCALE:
    paper  (default) As published in image/configs/pathfinder32/transformer_base.py of
           google-research/long-range-arena: 1 layer, 128 wide, 4 heads, an MLP of 128, queries,
           keys and values 64 wide and without biases, the mean of the tokens; 200 epochs of 160,000
           images in batches of 512, a rate of 1e-3 with one epoch of warmup and a cosine, no weight
           decay, dropout 0.2, of attention 0.1; Adam as in its listops/train.py. Its positions are
           sines; ours are learned. Never run here.
    small  For 2 CPU cores: 2 layers of 64 channels, and 200 steps of 16.
"""

from gmlp_flax.paper import custom_rows, long_range


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    row, scale = custom_rows.arguments(
        arg or "gmlp", tuple(long_range.MODELS), scale=("paper", "small")
    )
    setting = long_range.SETTINGS["pathfinder"]
    if scale == "small":
        setting = setting._replace(layers=2, d_model=64, heads=2, d_ffn=256)
    config = long_range.pixel_classifier(row, setting, side=32, pool="mean")
    config.data.heldout_share = 0.2
    if scale == "paper":
        return config
    return long_range.small(config, batch_size=16)
