"""The paper's main setting: masked LM on all of C4's English, n = 512, batch 256, a million steps (Tables 5 and 6).

    python -m gmlp_flax.train --config=configs/c4_bert.py:amlp_base --workdir=runs/amlp_base

ARGUMENT: a model of Table 5: bert_base, bert_large, gmlp_base, gmlp_large, gmlp_xlarge, amlp_base, amlp_large.

The paper states data, length, batch and steps. Recalled, not read: AdamW's epsilon and betas, decay 0.01, 10,000 warmup
steps, linear decay, no clipping, no dropout; the peak rate of 1e-4 comes from one re-implementation and is the least
certain value here. bfloat16. Never run here; compiled for 8 TPU v5p chips, gmlp_xlarge needs 40 GB of temporaries a
chip (`python scripts/benchmark.py memory`). `--config.data.train=DIR --config.data.heldout=DIR` take what
scripts/prepare_data.py prepared; otherwise C4 is looked for where tensorflow_datasets keeps it.
"""

import dataclasses

from gmlp_flax import config as gmlp_config
from gmlp_flax.models.sizes import PUBLISHED, VOCAB_SIZE

MODELS = tuple(name for name, model in PUBLISHED.items() if model.source == "Table 5")


def get_config(arg: str = "amlp_base"):
    """See the module's docstring."""
    (name,) = gmlp_config.arguments(arg or "amlp_base", MODELS)
    config = gmlp_config.default()
    config.data.train = "tfds:c4/en"
    config.model.update(dataclasses.asdict(PUBLISHED[name].spec), vocab_size=VOCAB_SIZE, dtype="bfloat16")
    config.model.scale_embeddings = config.model.block != "gmlp"
    config.masking.max_predictions = 77  # 15 % of 512
    config.batch_size, config.steps = 256, 1_000_000
    config.optimizer.update(
        learning_rate=1e-4, warmup=10_000, schedule="linear", weight_decay=0.01, eps=1e-6, clip=0.0
    )
    config.eval.every = config.checkpoint.every = 10_000
    return config
