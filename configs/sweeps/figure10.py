"""The paper's Figure 10: an aMLP pretrained, to be finetuned on MNLI and its attention drawn; one run.

    python scripts/sweep.py --sweep=configs/sweeps/figure10.py --out=runs/figure10 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper, as in table3.py. The paper does not say which aMLP it draws; this is
the ablation's, with attention of size 64. `python scripts/reproduce.py figure10 --finetune=mnli=DATA` does all of it.
"""

from gmlp_flax import recipes, sweep


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return sweep.product({"config": [recipes.published("amlp_36", arg)]})
