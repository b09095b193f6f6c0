"""Long Range Arena's ListOps: the value, a digit, of a tree of 500 to 2,000 symbols; 10 classes.

    gmlp prepare listops:paper --out=lra/listops
    gmlp train --config=lra_listops:gmlp --workdir=runs/listops --config.data.train=lra/listops

`--config.data.train` also takes the folder of the published basic_train.tsv, basic_val.tsv and
basic_test.tsv. `--config.data.heldout_split=test` scores the test trees instead of the validation
trees.

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL: gmlp (default), amlp, transformer, mixer, resmlp, feed_forward, fnet, fnet_hybrid,
synthesizer, external_attention, convolution, bigs, delta, hydra, depthwise or long_conv; or your
own class, my_package.my_module:MyBlock, with ,match=MATCH as in c4_ablation.
SCALE:
    paper  (default) As published in listops/configs/base_listops_config.py and train.py of
           google-research/long-range-arena, the newest version, which we read in copies
           (docs/long-inputs.md): 4 layers that share no weights, 512 wide, 8 heads, an MLP of
           1,024, attention without biases, [CLS]; 5,000 steps of 32, Adam with b2 0.98, a rate of
           0.05 / sqrt(step) after 1,000 steps of warmup, a decay of 0.1 of all parameters. Up to
           ad0ff01 it had 6 layers with one set of weights and an MLP of 2,048. Its positions are
           sines, and it cuts at 2,000 tokens; ours are learned, and there are 2,048. Never run
           here.
    small  For 2 CPU cores and short trees: 2 layers of 64 channels, a length of 32, and 1,000 steps
           of 64. To make such trees:
           gmlp prepare listops:20000,1000,1000 --lengths=3,30 --depth=4 --out=lra/short
"""

from gmlp_flax.paper import custom_rows, long_range


def get_config(arg: str = "gmlp"):
    """See the module's docstring."""
    row, scale = custom_rows.arguments(
        arg or "gmlp", tuple(long_range.MODELS), scale=("paper", "small")
    )
    setting = long_range.SETTINGS["listops"]
    length = 2048
    if scale == "small":
        setting = setting._replace(layers=2, d_model=64, heads=2, d_ffn=256)
        length = 32
    config = long_range.text_classifier(
        row, "listops", setting, length=length, tokenizer="listops", vocab_size=20
    )
    if scale == "paper":
        return config
    return long_range.small(config, batch_size=64, steps=1000)
