"""Finetunes a pretrained language model on SQuAD: answers to questions as spans of a passage
(section 4.4, Table 6).

    gmlp train --config=finetune_squad:v1.1 --workdir=runs/squad --config.init_from=RUN
    gmlp evaluate --workdir=runs/squad --predictions=runs/squad/answers

RUN is the folder, or one checkpoint, of a masked language model, whose blocks and vocabulary this
run takes.

ARGUMENT: VERSION, followed by ,scale=SCALE.

VERSION: v1.1 (default) or v2.0.
SCALE:
    paper  (default) n = 512, with the data from tensorflow_datasets. All values are from
           memory, not from the paper: AdamW's betas, a peak rate of 5e-5, a batch of 32, dropout of 0.1 on
           states and on the weights of attention, a weight decay of 0.01, no clipping. A public
           re-implementation has the same values for n, 8,000 steps, 1,000 warmup steps, linear
           decay of the rate and an epsilon of 1e-6. bfloat16. Never run here.
    small  For models that a CPU can train: n = 256 and 200 steps with a batch of 16 at 4e-3, so
           that `gmlp reproduce` ends within the hour, and dropout of 0.1 on states alone.
           `--config.data.train=FILE` names SQuAD's JSON (also .xz, .gz). A sixth of its articles is
           held out unless `--config.data.heldout` is given.
    gpu    As `small`, with 3,000 steps at 1e-3 in bfloat16. Never run here.

Windows overlap with a stride of 128, questions are cut to 64 tokens, answers have at most 30
tokens, and the 20 best are compared: all as in BERT. In v2.0 "no answer" wins by a margin of 0
(config.squad.null_threshold). The evaluation says which margin would have been best on the same
questions.
"""

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning.questions import VERSIONS


def get_config(arg: str = "v1.1"):
    """See the module's docstring."""
    version, scale = gmlp_config.arguments(arg or "v1.1", VERSIONS, scale=("paper", "small", "gpu"))
    config = gmlp_config.default(task="question_answering")
    config.squad.version = version
    config.model.update(length=512, mask_padding=True, dropout=0.1)
    config.optimizer.update(schedule="linear", weight_decay=0.01, eps=1e-6)
    config.data.heldout_share = 0.17
    if scale == "paper":
        config.data.train = f"tfds:squad/{version}"
        config.model.update(attention_dropout=0.1, dtype="bfloat16")
        config.batch_size = 32
        config.steps = 8000
        config.optimizer.update(learning_rate=5e-5, warmup=1000, clip=0.0)
        config.eval.every = config.checkpoint.every = 2000
        return config
    config.data.train = ""  # to be given
    config.model.length = 256
    config.batch_size = 16
    config.steps = 200
    config.optimizer.update(learning_rate=4e-3, warmup=20)
    config.eval.batch_size = 64
    config.checkpoint.every = 100
    if scale == "gpu":
        config.model.dtype = "bfloat16"
        config.steps = 3000
        config.checkpoint.every = 1000
        config.optimizer.update(learning_rate=1e-3, warmup=300)
    return config
