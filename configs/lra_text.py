"""Long Range Arena's Text: the sentiment of IMDB's reviews, read byte by byte; 2 classes.

    gmlp train --config=lra_text:gmlp,length=4096 --workdir=runs/text \\
        --config.data.train=tfds:imdb_reviews --config.data.heldout_split=test

`--config.data.train` takes TFDS's imdb_reviews, or a file with the columns text and label (neg and
pos, or 0 and 1), tab-separated or JSON lines. Long Range Arena has no validation part and scores
the test part throughout. If the data have no test part, `--config.data.heldout_share` of them is
held out.

ARGUMENT: MODEL, followed by ,length=LENGTH and ,scale=SCALE.

MODEL: gmlp (default), amlp, transformer, mixer, resmlp, feed_forward, fnet, fnet_hybrid,
synthesizer, external_attention, convolution, bigs, delta, hydra, depthwise or long_conv; or your
own class, my_package.my_module:MyBlock, with ,match=MATCH as in c4_ablation.
LENGTH: the number of bytes, with [CLS] and [SEP]: 1024 (default), 2048, 3072 or 4096, the 1K to 4K
of the paper; or 256, for short runs.
SCALE:
    paper  (default) As published in text_classification/configs/base_tc_config.py of
           google-research/long-range-arena: 4 layers, 256 wide, 4 heads, an MLP of 1,024, [CLS],
           attention without biases; 20,000 steps of 32, a rate of 0.05 / sqrt(step) after 8,000
           steps of warmup, a decay of 0.1 of all parameters; Adam as in its listops/train.py. Never
           run here.
    small  For 2 CPU cores: 2 layers of 64 channels, and 200 steps of 16,384 bytes. A twentieth is
           held out.
"""

from gmlp_flax.paper import custom_rows, long_range

LENGTHS = ("1024", "2048", "3072", "4096", "256")


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    row, length, scale = custom_rows.arguments(
        arg or "gmlp", tuple(long_range.MODELS), length=LENGTHS, scale=("paper", "small")
    )
    setting = long_range.SETTINGS["text"]
    if scale == "small":
        setting = setting._replace(layers=2, d_model=64, heads=2, d_ffn=256)
    config = long_range.text_classifier(
        row, "imdb", setting, length=int(length), tokenizer="bytes", vocab_size=261
    )
    if scale == "paper":
        return config
    batch_size = 16_384 // int(length)
    return long_range.small(config, batch_size=batch_size)
