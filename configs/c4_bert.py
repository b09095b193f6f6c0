"""The paper's main setting: masked LM on all of C4's English, n = 512, batch 256, a million steps
(Tables 5 and 6).

    gmlp train --config=c4_bert:amlp_base --workdir=runs/amlp_base

ARGUMENT: MODEL, followed by ,scale=SCALE.

MODEL is a row of Table 5: bert_base, bert_large, gmlp_base, gmlp_large, gmlp_xlarge, amlp_base or
amlp_large. The paper does not say which positions its Transformers have there. bert_base and
bert_large have absolute ones; bert_base_rel and bert_large_rel have relative ones, as the best
Transformer of Table 3 has.
SCALE:
    paper  (default) The paper states data, length, batch and steps. These are from memory:
           AdamW's epsilon and betas, a decay of 0.01, 10,000 warmup steps, linear decay of the
           rate, no clipping, no dropout. The peak rate of 1e-4 comes from one re-implementation and
           is the least certain value here. bfloat16. Never run here. Compiled for 8 TPU v5p chips,
           gmlp_xlarge needs 40 GB of temporaries on each chip (`gmlp benchmark memory`).
           `--config.data.train=DIR --config.data.heldout=DIR` take what `gmlp prepare` prepared.
           Without them, C4 is looked for where tensorflow_datasets keeps it.
    small  For 2 CPU cores, at n = 256. Base, large and xlarge keep roughly the paper's ratios of
           depth, width and parameters: 0.4, 1.2 and 3.4 M, besides a vocabulary of 2,000. Rates,
           factors on them and norms are those of bert, bert_rel, sgu and amlp_36 in c4_ablation,
           and were not searched here.
    gpu    The rows of `small` at twice the depth and width, as in c4_ablation. Never run here.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.paper import recipes
from gmlp_flax.paper.published import MAIN_SETTING, PUBLISHED, VOCAB_SIZE
from gmlp_flax.paper.recipes import Setting

MODELS = tuple(name for name, model in PUBLISHED.items() if model.source in MAIN_SETTING)

BERT_BASE = dict(layers=2, d_ffn=512, heads=4)
BERT_LARGE = dict(layers=4, d_model=160, d_ffn=640, heads=4)
SMALL = {
    "bert_base": BERT_BASE,
    "bert_base_rel": BERT_BASE,
    "bert_large": BERT_LARGE,
    "bert_large_rel": BERT_LARGE,
    "gmlp_base": dict(layers=5, d_ffn=512),
    "gmlp_large": dict(layers=9, d_model=192, d_ffn=512),
    "gmlp_xlarge": dict(layers=14, d_model=256, d_ffn=640),
    "amlp_base": dict(layers=3, d_ffn=480, d_attn=64),
    "amlp_large": dict(layers=5, d_model=192, d_ffn=512, d_attn=96),
}
BIAS = ("relative/bias=16",)
SMALL_SETTINGS = {
    "bert_base": Setting(2e-3),
    "bert_large": Setting(2e-3),
    "bert_base_rel": Setting(4e-3, BIAS),
    "bert_large_rel": Setting(4e-3, BIAS),
    "gmlp": Setting(4e-3, ("spatial/taps=8",)),
    "amlp": Setting(4e-3, ("spatial/taps=4",)),
}


def get_config(arg: str = "amlp_base"):
    """See the module's docstring."""
    name, scale = gmlp_config.arguments(arg or "amlp_base", MODELS, scale=("paper", "small", "gpu"))
    config = recipes.language_model(name)
    config.model.update(vocab_size=VOCAB_SIZE, dtype="bfloat16")
    config.optimizer.update(
        learning_rate=1e-4, warmup=10_000, schedule="linear", weight_decay=0.01, eps=1e-6, clip=0.0
    )
    if scale == "paper":
        config.data.train = "tfds:c4/en"
        config.masking.max_predictions = 77  # 15 % of 512
        config.batch_size = 256
        config.steps = 1_000_000
        config.eval.every = config.checkpoint.every = 10_000
        return config
    config.model.dtype = "float32"
    setting = SMALL_SETTINGS.get(name) or SMALL_SETTINGS[name.partition("_")[0]]
    recipes.small_language(config, scale, setting, tokens=256, shape=SMALL[name])
    return config
