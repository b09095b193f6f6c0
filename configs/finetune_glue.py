"""Finetunes a pretrained text model on a task of GLUE, or on SNLI (right half of the paper's Tables
4 and 6).

    gmlp train --config=finetune_glue:sst2 --workdir=runs/sst2 \\
        --config.init_from=runs/gmlp_base --config.data.train=tfds:glue/sst2
    gmlp sweep --config=finetune_glue:sst2 --out=runs/sst2_grid \\
        --config.init_from=runs/gmlp_base --config.data.train=tfds:glue/sst2 \\
        --grid=optimizer.learning_rate=1e-5,2e-5,3e-5 \\
        --grid=batch_size:steps:optimizer.warmup=16:21046:2104,32:10523:1052 --seeds=0,1,2,3,4

ARGUMENT: TASK or TASK,scale=SCALE. TASK is sst2 (default), mnli, cola, mrpc, qqp, qnli, rte, wnli,
snli, stsb, or own:
    data of your own, whose columns `--config.own.text`, `own.second` (pairs) and `own.label` name;
    own_number if the labels are numbers to predict.
    `--config.data.train` takes a TFDS folder, a folder as GLUE or Hugging Face ships it (train.tsv,
    dev.tsv; parquet), or a file: .tsv, .csv, .jsonl or .parquet; `--config.data.heldout` a path of
    its own for the examples to score.
SCALE:
    paper  (default) the paper's protocol as its Table 9 has it. All of it is recalled, not read:
           length 128, 5 epochs, batch 16 or 32, peak rate 1e-5, 2e-5 or 3e-5, linear decay, AdamW
           with epsilon 1e-6, weight decay 0.01, dropout 0.1 on states and on attention's weights,
           no clipping. Here 32 and 2e-5 stand for the two choices, and warmup takes 10 % of the
           steps; one re-implementation has 500 steps. bfloat16. Never run here.
    small  for the small models of configs/c4_ablation.py and 2 CPU cores: length 64, at most 300
           steps, so that `gmlp reproduce` ends within the hour; dropout on states alone. The head
           reads the mean of all tokens, the rate is 4e-3, both better than [CLS] and 1e-3 for short
           pretraining (docs/results/finetuning.md).
    gpu    for the models of `scale=gpu`: [CLS], rate 1e-3, at most 4,000 steps in bfloat16. Never
           run here.
The head reads [CLS], as the paper's; with `--config.model.pool=mean` the mean of all tokens but
padding. The paper gives the median of five runs on the development set. Whether the best of its
grid was chosen there too, for each model, it does not say; the second command above, the grid and
five seeds of its best point, does so. A run's model, all but its length and dropout, is that of
`init_from`.

Steps count epochs of the published training set; `own` has 1,000. With data of another size, or
with batch 16, set `--config.steps` and `--config.optimizer.warmup`, a tenth of them.
"""

from gmlp_flax import config as gmlp_config

# Training examples. Of SST-2 and MNLI from their dataset cards, of RTE counted; the others
# recalled. `own`, your own data, has as many as make 1,000 steps.
EXAMPLES = {
    "sst2": 67_349,
    "mnli": 392_702,
    "cola": 8_551,
    "mrpc": 3_668,
    "qqp": 363_846,
    "qnli": 104_743,
    "rte": 2_490,
    "wnli": 635,
    "snli": 549_367,
    "stsb": 5_749,
    "own": 6_400,
    "own_number": 6_400,
}
NUMBERS = ("stsb", "own_number")


def get_config(arg: str = "sst2"):
    """See the module's docstring."""
    task, scale = gmlp_config.arguments(
        arg or "sst2", tuple(EXAMPLES), scale=("paper", "small", "gpu")
    )
    config = gmlp_config.default(
        task="text_regression" if task in NUMBERS else "text_classification"
    )
    config.glue.task = task.removesuffix("_number")
    config.data.train = ""  # to be given
    config.batch_size = 32
    config.steps = 5 * EXAMPLES[task] // 32
    config.model.update(
        length=128,
        dropout=0.1,
        attention_dropout=0.1,
        mask_padding=True,
        pool="cls",
        dtype="bfloat16",
    )
    config.optimizer.update(
        learning_rate=2e-5, schedule="linear", weight_decay=0.01, eps=1e-6, clip=0.0
    )
    if scale != "paper":
        config.steps = min(config.steps, 300 if scale == "small" else 4000)
        config.model.update(
            length=64, attention_dropout=0.0, dtype="float32" if scale == "small" else "bfloat16"
        )
        config.optimizer.learning_rate = 4e-3 if scale == "small" else 1e-3
    if scale == "small":
        config.model.pool = "mean"
    config.optimizer.warmup = config.steps // 10
    config.eval.batch_size, config.eval.every = 128, max(1, config.steps // 5)
    config.checkpoint.every = config.eval.every
    return config
