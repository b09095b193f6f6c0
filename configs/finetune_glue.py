"""Finetunes a pretrained text model on a task of GLUE, or on SNLI (right half of the paper's Tables
4 and 6).

    gmlp train --config=finetune_glue:sst2 --workdir=runs/sst2 \\
        --config.init_from=runs/gmlp_base --config.data.train=tfds:glue/sst2
    gmlp sweep --config=finetune_glue:sst2 --out=runs/sst2_grid \\
        --config.init_from=runs/gmlp_base --config.data.train=tfds:glue/sst2 \\
        --grid=optimizer.learning_rate=1e-5,2e-5,3e-5 \\
        --grid=batch_size:steps:optimizer.warmup=16:21046:2104,32:10523:1052 --seeds=0,1,2,3,4

The run takes its model from `init_from`, except for its length and dropout. `--config.data.train`
takes a TFDS folder, a folder as GLUE or Hugging Face ships it (train.tsv, dev.tsv; parquet), or a
file: .tsv, .csv, .jsonl or .parquet. `--config.data.heldout` is the path of the examples to score,
if they are elsewhere.

ARGUMENT: TASK, followed by ,scale=SCALE.

TASK:
    sst2        (default), mnli, cola, mrpc, qqp, qnli, rte, wnli, snli, stsb
    own         your own data; `--config.own.text`, `own.second` (of pairs) and `own.label` name the
                columns
    own_number  the same, with numbers to predict as labels
SCALE:
    paper  (default) The paper's protocol as its Table 9 has it. All of it is from memory: a
           length of 128, 5 epochs, a batch of 16 or 32, a peak rate of 1e-5, 2e-5 or 3e-5, linear
           decay of the rate, AdamW with an epsilon of 1e-6, a weight decay of 0.01, dropout of 0.1
           on states and on the weights of attention, no clipping. Where there is a choice, the
           config has a batch of 32 and a rate of 2e-5. Warmup takes 10 % of the steps; one
           re-implementation has 500 steps. bfloat16. Never run here.
    small  For the small models of c4_ablation on 2 CPU cores: a length of 64 and at most 300 steps,
           so that `gmlp reproduce` ends within the hour, and dropout on states alone. The head
           reads the mean of all tokens, and the rate is 4e-3. After a short pretraining both are
           better than [CLS] and 1e-3 (docs/results/finetuning.md).
    gpu    For the models of `scale=gpu`: [CLS], a rate of 1e-3, and at most 4,000 steps in
           bfloat16. Never run here.

As in the paper, the head reads [CLS]. With `--config.model.pool=mean` it reads the mean of all
tokens but padding. The paper gives the median of five runs on the development set. It does not say
whether the best point of its grid was chosen there too, for each model. The second command above
trains the grid, each point with five seeds.

Steps count epochs of the published training set; `own` has 1,000. For data of another size or with
a batch of 16, set `--config.steps`, and `--config.optimizer.warmup` to a tenth of them.
"""

from gmlp_flax import config as gmlp_config

# Training examples. Of SST-2 and MNLI from their dataset cards, of RTE counted; the others
# from memory. `own`, your own data, has as many as make 1,000 steps.
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
    kind = "text_regression" if task in NUMBERS else "text_classification"
    config = gmlp_config.default(task=kind)
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
    if scale == "small":
        config.steps = min(config.steps, 300)
        config.model.update(length=64, attention_dropout=0.0, dtype="float32", pool="mean")
        config.optimizer.learning_rate = 4e-3
    if scale == "gpu":
        config.steps = min(config.steps, 4000)
        config.model.update(length=64, attention_dropout=0.0)
        config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup = config.steps // 10
    config.eval.batch_size = 128
    config.eval.every = config.checkpoint.every = max(1, config.steps // 5)
    return config
