"""Synthetic tasks that measure what a token mixer can do: multi-query associative recall
(arXiv 2312.04927) and the six tasks of MAD (arXiv 2403.17844).

    gmlp train --config=synthetic:amlp_causal,d=64 --workdir=runs/recall
    gmlp train --config=synthetic:sgu,task=selective_copying --workdir=runs/copying

ARGUMENT: ROW, followed by ,task=TASK and ,n=LENGTH and ,d=WIDTH and ,scale=SCALE. All rows have as
many parameters as two layers of the Transformer.

ROW:
    a row of `gmlp reproduce alternatives`
    linear, additive, multiplicative   the other gates of Table 3
    sgu_dense                          SGU without the Toeplitz constraint
    amlp_16, amlp_128                  aMLP with d_attn = 16 or 128
    modern                             a Transformer of today
    ROW_causal                         the causal model of modern (Llama's block), bert, bert_rel,
                                       linear, additive, multiplicative, sgu, sgu_dense, amlp,
                                       amlp_16, amlp_128, bigs, delta, hydra, depthwise, long_conv
    my_package.my_module:MyBlock       your own class that extends Block, causal if it can be;
                                       `,match=` is as in c4_ablation
TASK: mqar (default), recall, fuzzy_recall, noisy_recall, selective_copying, compression or
memorization.
LENGTH, of mqar only: 64 (default) with 4 pairs, 128 with 8, or 256 with 16.
WIDTH, of mqar only: 64 (default), 16, 32, 128, 256 or 512. The tasks of MAD have 128.
SCALE:
    cpu    (default) 6,000 steps of 32 examples for mqar, with a vocabulary of 256: a minute or two
           on 2 CPU cores; 2,000 steps of 128 for the tasks of MAD: up to 20 minutes
    paper  as published: a vocabulary of 8,192 and 64 epochs of 100,000 examples for mqar, 200
           epochs of 12,800 examples for the tasks of MAD. Never run here.

A run ends early once its accuracy on held-out examples reaches 99 % (eval.stop_at).
"""

from gmlp_flax.errors import ConfigError
from gmlp_flax.paper import custom_rows, recall


def check_sizes(arg: str, task: str) -> None:
    """Raises ConfigError if the argument sets a length or a width, which only mqar takes."""
    _, *words = arg.split(",")
    for word in words:
        option, _, _ = word.partition("=")
        if task != "mqar" and option in ("n", "d"):
            raise ConfigError(
                f"the config's argument has {word!r}, which is for task=mqar: {task} has n = "
                f"{recall.TASKS[task].length} and d = {recall.MAD_WIDTH}; leave {word!r} out"
            )


def get_config(arg: str = "sgu"):
    """See the module's docstring."""
    row, task, length, width, scale = custom_rows.arguments(
        arg or "sgu",
        tuple(recall.ROWS),
        task=tuple(recall.TASKS),
        n=("64", "128", "256"),
        d=("64", "16", "32", "128", "256", "512"),
        scale=("cpu", "paper"),
    )
    if task == "mqar":
        return recall.mqar(row, int(length), int(width), scale)
    check_sizes(arg, task)
    return recall.mad(row, task, scale)
