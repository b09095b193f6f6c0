"""Table 6 of the paper: its models pretrained in the full setting of configs/c4_bert.py, before they are finetuned.

    python scripts/sweep.py --sweep=configs/sweeps/table6.py:cpu --out=runs/table6 --config.data.train=books.jsonl.xz

ARGUMENT: the scale, cpu (default), gpu or paper; configs/c4_bert.py says what each is (cpu is its `small`). One seed,
as in the paper, whose medians are of finetuning: `python scripts/reproduce.py table6 --finetune=...` does both.
"""

from gmlp_flax import recipes, sweep

ROWS = ("bert_base", "gmlp_base", "amlp_base", "bert_large", "gmlp_large", "amlp_large", "gmlp_xlarge")


def get_sweep(arg: str = "cpu") -> sweep.Points:
    """See the module's docstring."""
    return sweep.product({"config": [recipes.published(row, arg) for row in ROWS]})
