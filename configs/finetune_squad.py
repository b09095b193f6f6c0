"""Finetunes a pretrained language model on SQuAD: answers to questions as spans of a passage
(section 4.4, Table 6).

    gmlp train --config=finetune_squad:v1.1 --workdir=runs/squad --config.init_from=RUN
    gmlp evaluate --workdir=runs/squad --predictions=runs/squad/answers

RUN is the folder, or one checkpoint, of a masked language model, whose blocks and vocabulary this
run takes. ARGUMENT: v1.1 (default) or v2.0, or VERSION,scale=SCALE. SCALE:
    paper  (default) n 512, the data from tensorflow_datasets. Recalled, not read in the paper:
           AdamW's betas and its peak rate 5e-5, batch 32, dropout of 0.1 on states and on
           attention's weights, weight decay 0.01, no clipping. Recalled, and the same in a public
           re-implementation: n 512, 8,000 steps, 1,000 warmup steps, linear decay, epsilon 1e-6.
           bfloat16. Never run here.
    small  for models that a CPU can train: n 256, 200 steps of batch 16 at 4e-3, so that `gmlp
           reproduce` ends within the hour; dropout of 0.1 on states alone.
           `--config.data.train=FILE` names SQuAD's JSON (also .xz, .gz); a sixth of its articles is
           held out unless `--config.data.heldout` is given.
    gpu    the same, but 3,000 steps at 1e-3 in bfloat16. Never run here.
Windows, stride 128, 64 tokens of a question, answers of 30 tokens at most, 20 best: BERT's. In v2.0
"no answer" wins by a margin of 0 (config.squad.null_threshold); evaluation tells which margin would
have been best on the same questions.
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
    config.eval.batch_size, config.checkpoint.every = 64, 100
    if scale == "gpu":
        config.model.dtype = "bfloat16"
        config.steps, config.checkpoint.every = 3000, 1000
        config.optimizer.update(learning_rate=1e-3, warmup=300)
    return config
