"""Long Range Arena's Retrieval: whether two papers of the ACL Anthology Network are linked, byte by
byte; 2 classes.

    gmlp train --config=lra_retrieval:gmlp --workdir=runs/retrieval --config.data.train=lra/tsv_data

`--config.data.train` is the folder of the published new_aan_pairs.train.tsv, .eval.tsv and
.test.tsv, or one such file: tab-separated, without a header, with the label (0 or 1), two ids and
two texts. The training file is held in memory.

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL: gmlp (default), amlp, transformer, mixer, resmlp, feed_forward, fnet, fnet_hybrid,
synthesizer, external_attention, convolution, bigs, delta, hydra, depthwise or long_conv; or your
own class, my_package.my_module:MyBlock, with ,match=MATCH as in c4_ablation.
One encoder reads the two texts separately, and the head compares them.
`--config.model.pairs=joined` reads them in one sequence.
SCALE:
    paper  (default) As published in matching/configs/base_match_config.py of
           google-research/long-range-arena: 4 layers, 128 wide, 4 heads, an MLP of 512, [CLS],
           attention without biases; 5,000 steps of 32 pairs, a rate that rises for 8,000 steps (so
           it never falls), a decay of 0.1 of all parameters; Adam as in its listops/train.py. Each
           text has 4,096 tokens, where the published config has 4,000. The head is the published
           one, which gets [u, v] of the two texts, since no published config sets "interaction".
           `--config.model.interaction=nli` adds u * v and u - v. Never run here.
    small  For 2 CPU cores: 2 layers of 64 channels, a length of 512, and 200 steps of 8 pairs.
"""

from gmlp_flax.paper import custom_rows, long_range


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    row, scale = custom_rows.arguments(
        arg or "gmlp", tuple(long_range.MODELS), scale=("paper", "small")
    )
    setting = long_range.SETTINGS["retrieval"]
    length = 4096
    if scale == "small":
        setting = setting._replace(layers=2, d_model=64, heads=2, d_ffn=256)
        length = 512
    config = long_range.text_classifier(
        row, "retrieval", setting, length=length, tokenizer="bytes", vocab_size=261
    )
    config.model.pairs = "apart"
    if scale == "paper":
        config.model.interaction = "concat"
        return config
    config.model.interaction = "nli"
    return long_range.small(config, batch_size=8)
