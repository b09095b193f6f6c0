"""The paper's ablation setting: masked LM on C4's RealNews-like part, n = 128 (Tables 3 and 4,
appendix B).

    gmlp train --config=c4_ablation:sgu --workdir=runs/sgu

ARGUMENT: MODEL, followed by ,data=TIMES and ,scale=SCALE, and for your own block by ,match=MATCH.

MODEL is a row by its name in `gmlp sizes`:
    Table 3     bert, bert_rel, bert_rel_only, mixer, linear, additive, multiplicative, sgu
    Table 4     transformer_6, transformer_12, transformer_24, transformer_48,
                gmlp_18, gmlp_36, gmlp_72, gmlp_144
    appendix B  thin_12, thin_24, thin_48, thin_96
    Figure 8    amlp_18, amlp_36, amlp_72: gMLP with tiny attention of size 64;
                amlp_36_128: of size 128
    siblings    other papers' mixers in BERT's frame of 12 layers: bert_t5 (T5's buckets of
                offsets), fnet, hybrid, random, fixed_random, factorized, dense, factorized_dense,
                random_vanilla, external, lightweight, dynamic, growing, resmlp, feed_forward, bigs,
                delta, hydra, long_conv, modern; and depthwise, in the frame of sgu.
                `gmlp reproduce alternatives` compares them with the rows of Table 3.
    your own    my_package.my_module:MyBlock, a class that extends Block (docs/extending.md). It
                takes the place of bert's block, with as many layers, channels and parameters.
MATCH says how your own block gets its size:
    params      (default) d_ffn is chosen so that the encoder has as many parameters as bert's, or
                the number of layers if the block has no d_ffn
    layers      the number of layers is chosen
    none        neither is
TIMES: 1 (default), 2, 4 or 8 times the data, the other axis of Figure 7. The run has as many times
the steps, which is most likely what the paper means, although it does not say so.
SCALE:
    paper       (default) The paper's sizes and schedule, in bfloat16. The paper states the data, a
                length of 128, a batch of 2048 and 125,000 steps. These are from memory:
                AdamW's epsilon and betas, a decay of 0.01, a peak rate of 7e-4, 10,000 warmup
                steps, linear decay of the rate, no clipping, no dropout. Never run here.
                `--config.data.train=DIR` takes tokens that `gmlp prepare` prepared. Without it, C4
                is looked for where tensorflow_datasets keeps it.
    small       For 2 CPU cores: a run of 900 steps takes minutes. Give `--config.data.train`. The
                rows of Table 3, amlp_36 and the siblings have 0.40 M parameters in the encoder and
                a vocabulary of 2,000. The rows of Table 4 are bert_rel and sgu with half, one, two
                and four times their layers; amlp_18 and amlp_72 have two thirds and twice the
                layers of amlp_36. The rows of appendix B have 0.40 to 0.47 M parameters. Their
                rates, and those of gmlp_144 and transformer_48, are those of their families and
                were not searched. The rates of the siblings are the best of three, or of the grid
                of five in configs/sweeps/alternatives_rates.py.
    gpu         The rows of `small` at twice the depth and width, with a batch of 256 and 10,000
                steps in bfloat16. Factors and norms are those of `small`. The rate of 4e-3 was
                searched for three Transformers alone (docs/results/table3.md). On an H200, sgu
                trains on 3.65 M tokens/s. The rows of Table 3 were run for 1,800 steps.

Evaluation masks the same tokens of the same sequences for every model.
"""

from gmlp_flax.errors import ConfigError
from gmlp_flax.paper import custom_rows, recipes
from gmlp_flax.paper.published import ABLATION, PUBLISHED, SIBLING, VOCAB_SIZE
from gmlp_flax.paper.recipes import Setting

MODELS = tuple(
    name
    for name, model in PUBLISHED.items()
    if model.source in ("Table 3", "Table 4", "Table 10", ABLATION, SIBLING)
)

# What a row is in small: Table 3's and the siblings have 0.40 M parameters in an encoder of 128
# channels, up to 1 %. The rows keep the paper's relations: BERT has half the layers or fewer, gates
# without a split are narrower, aMLP is shallower, the Mixer's MLP over tokens is 3n wide.
TRANSFORMER = dict(layers=2, d_ffn=512, heads=4)
HEADS = dict(layers=2, heads=4)
UNSPLIT = dict(layers=4, d_ffn=384)
AMLP = dict(d_ffn=480, d_attn=64)
SMALL = {
    "bert": TRANSFORMER,
    "bert_rel": TRANSFORMER,
    "bert_rel_only": dict(layers=2, d_ffn=640, heads=4),
    "mixer": dict(layers=2, d_ffn=384, d_spatial=384),
    "linear": UNSPLIT,
    "additive": UNSPLIT,
    "multiplicative": UNSPLIT,
    "sgu": dict(layers=4, d_ffn=512),
    **{
        f"amlp_{paper}": AMLP | dict(layers=layers) for paper, layers in ((18, 2), (36, 3), (72, 6))
    },
    **{
        f"gmlp_{paper}": dict(layers=layers, d_ffn=512)
        for paper, layers in ((18, 2), (36, 4), (72, 8), (144, 16))
    },
    **{
        f"transformer_{paper}": TRANSFORMER | dict(layers=layers)
        for paper, layers in ((6, 1), (12, 2), (24, 4), (48, 8))
    },
    **{
        f"thin_{paper}": dict(layers=layers, d_model=width, d_ffn=4 * width, heads=4)
        for paper, layers, width in ((12, 2, 128), (24, 4, 96), (48, 8, 64), (96, 16, 48))
    },
    "bert_t5": TRANSFORMER,
    "fnet": dict(layers=2, d_ffn=776),
    "hybrid": HEADS | dict(d_ffn=648, attention_layers=1),
    **dict.fromkeys(("random", "fixed_random"), HEADS | dict(d_ffn=392)),
    "factorized": HEADS | dict(d_ffn=616),
    "dense": HEADS | dict(d_ffn=520),
    "factorized_dense": HEADS | dict(d_ffn=568),
    "random_vanilla": HEADS | dict(d_ffn=264),
    "external": dict(layers=2, d_ffn=584),
    "lightweight": HEADS | dict(d_ffn=584),
    "dynamic": HEADS | dict(d_ffn=568),
    "growing": HEADS | dict(d_ffn=584, kernel_widths=(7, 31)),
    "hydra": HEADS | dict(d_ffn=336, d_state=16),
    "depthwise": dict(layers=4, d_ffn=472),
    "long_conv": dict(layers=2, d_ffn=464, filter_width=32),
    "resmlp": dict(layers=2, d_ffn=712),
    "feed_forward": dict(layers=2, d_ffn=392, d_spatial=384),
    "bigs": dict(layers=2, d_ffn=344),
    "delta": dict(layers=2, d_ffn=368, heads=2),
    "modern": HEADS | dict(d_ffn=344),
}

# What twice the depth and width would not bring to 3.16 M parameters, up to 1 %: layers over tokens
# do not grow.
WIDE = {
    "mixer": dict(d_ffn=1344),
    **{f"amlp_{paper}": dict(d_ffn=1136) for paper in (18, 36, 72)},
    "fnet": dict(d_ffn=1536),
    "hybrid": dict(d_ffn=1280, attention_layers=2),
    "random": dict(d_ffn=1152),
    "fixed_random": dict(d_ffn=1152),
    "factorized": dict(d_ffn=1264),
    "dense": dict(d_ffn=1088),
    "factorized_dense": dict(d_ffn=1136),
    "random_vanilla": dict(d_ffn=896),
    "external": dict(d_ffn=1216),
    "lightweight": dict(d_ffn=1152),
    "dynamic": dict(d_ffn=1136),
    "growing": dict(d_ffn=1152, kernel_widths=(4, 7, 15, 31)),
    "hydra": dict(d_ffn=720),
    "depthwise": dict(d_ffn=984),
    "long_conv": dict(filter_width=64),
    "resmlp": dict(d_ffn=1504),
    "feed_forward": dict(d_ffn=1344),
    "bigs": dict(d_ffn=680),
    "delta": dict(d_ffn=752, heads=4),
}

# How they train at `small`: the best of what configs/sweeps/table3_rates.py tried, by one seed that
# no table uses.
BIAS = ("relative/bias=16",)
TAPS_4 = ("spatial/taps=4",)
TAPS_8 = ("spatial/taps=8",)
SMALL_SETTINGS = {
    "bert": Setting(2e-3),
    "bert_rel": Setting(4e-3, BIAS),
    "bert_rel_only": Setting(4e-3, BIAS),
    "mixer": Setting(4e-3, norm=True),
    "linear": Setting(4e-3, TAPS_4, norm=True),
    "additive": Setting(4e-3, norm=True),
    "multiplicative": Setting(4e-3, TAPS_4, norm=True),
    "sgu": Setting(4e-3, TAPS_8),
    "amlp_36": Setting(4e-3, TAPS_4),
    "transformer_6": Setting(8e-3, BIAS),
    "transformer": Setting(4e-3, BIAS),
    "gmlp": Setting(4e-3, TAPS_8),
    "amlp": Setting(4e-3, TAPS_4),
    "thin": Setting(4e-3, BIAS),
}
# The same of the siblings: docs/results/table3.md.
SIBLING_SETTINGS = {
    "bert_t5": Setting(4e-3, BIAS),
    "fnet": Setting(2e-3),
    **dict.fromkeys(("hybrid", "external", "resmlp", "feed_forward"), Setting(4e-3, norm=True)),
    **dict.fromkeys(("random", "random_vanilla"), Setting(4e-3, ("random/logits=16",))),
    **dict.fromkeys(("fixed_random", "dense", "factorized_dense", "dynamic"), Setting(4e-3)),
    "factorized": Setting(2e-3, ("rows|columns=16",)),
    # the best of five rates after 6.1 M tokens: docs/results/which-mixer.md
    **dict.fromkeys(("bigs", "delta", "hydra", "modern", "depthwise"), Setting(4e-3)),
    "long_conv": Setting(2e-3),
    **dict.fromkeys(("lightweight", "growing"), Setting(4e-3, ("kernel/logits=4",))),
}


def get_config(arg: str = "sgu"):
    """See the module's docstring."""
    row, scale, times = custom_rows.arguments(
        arg or "sgu", MODELS, scale=("paper", "small", "gpu"), data=("1", "2", "4", "8")
    )
    if custom_rows.is_custom(row):
        transformer = get_config(f"bert,scale={scale},data={times}")
        config = custom_rows.in_place_of(transformer, row)
        if scale == "small":
            config.optimizer.learning_rate = 4e-3  # that of most rows
        return config
    config = recipes.language_model(row)
    config.optimizer.update(
        learning_rate=7e-4, warmup=10_000, schedule="linear", weight_decay=0.01, eps=1e-6, clip=0.0
    )
    if scale == "paper":
        config.data.train = "tfds:c4/realnewslike"
        config.model.update(vocab_size=VOCAB_SIZE, dtype="bfloat16")
        config.batch_size = 2048
        config.steps = 125_000
        config.eval.every = config.checkpoint.every = 5000
    elif row in SMALL:
        settings = SMALL_SETTINGS | SIBLING_SETTINGS
        setting = settings.get(row) or settings[row.partition("_")[0]]
        recipes.small_language(
            config, scale, setting, tokens=128, shape=SMALL[row], wide=WIDE.get(row, {})
        )
    else:
        raise ConfigError(f"{row} has no scale={scale}: expected one of {', '.join(SMALL)}")
    config.steps *= int(times)
    config.eval.every = config.checkpoint.every = int(times) * config.eval.every
    return config
