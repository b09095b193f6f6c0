"""Columns of `gmlp reproduce alternatives` with known numbers, for the tests of reports and of the
command."""

import json

from gmlp_flax.paper.alternatives import COLUMNS
from tests.reports.test_language_models import write_finetuned, write_runs
from tests.reports.test_runs import write_run

PERPLEXITIES = {  # of two seeds, in the middle and at the end
    "bert": ((70.0, 60.0), (71.0, 62.0)),
    "sgu": ((60.0, 50.0), (61.0, 61.0)),
    "fnet": ((80.0, 70.0), (81.0, 72.0)),
    "random": ((60.0, 55.0), (60.0, 54.0)),
    "dynamic": ((50.0, 40.0), (50.0, 41.0)),
}
LENGTHS = (128, 1024, 2048, 4096)
# Row -> seconds of a step at 1,024 tokens, and the power of n by which a sequence's time grows.
COSTS = {
    "bert": (0.8, 2.0),
    "sgu": (0.4, 1.5),
    "fnet": (0.2, 1.0),
    "random": (0.3, 2.0),
    "dynamic": (0.6, 1.0),
}


def write_cost(folder, row, tokens, seconds, size=1e6, batch=None):
    """Writes a file as `gmlp benchmark mixers` does; without seconds, of a step that was only
    compiled."""
    figures = {
        "seconds": list(seconds),
        "bytes": [float(size)],
        "flops": [1e9],
    }
    entries = []
    for name, values in figures.items():
        if values:
            middle = len(values) // 2
            entry = {
                "row": row,
                "tokens": tokens,
                "batch": batch or max(1, 2048 // tokens),
                "unit": "",
                "goal": "",
                "figure": name,
                "values": values,
                "median": sorted(values)[middle],
            }
            entries.append(entry)
    (folder / "costs").mkdir(parents=True, exist_ok=True)
    (folder / "costs" / f"{row}-{tokens}.json").write_text(json.dumps(entries))


def write_costs(folder, costs=COSTS, lengths=LENGTHS):
    """Writes three repeats of each step, 1 % apart. Memory grows as n squared for bert, as n for the
    others."""
    for row, (seconds, power) in costs.items():
        memory_power = 2 if row == "bert" else 1
        for tokens in lengths:
            batch = max(1, 2048 // tokens)
            length = tokens / 1024
            step = seconds / 2 * length**power * batch
            size = 1e6 * batch * length**memory_power
            write_cost(folder, row, tokens, (step, 0.99 * step, 1.01 * step), size)


def write_images(folder, scores):
    """Writes a finished run of CIFAR-10 for each row, with its top-1 accuracy as a fraction."""
    configs = COLUMNS["cifar10"].configs("cpu", tuple(scores))
    for row, config in configs.items():
        config.data.train = "images"
        evaluations = [(config.steps, scores[row])]
        write_run(folder / "cifar10" / row, config, evaluations, metric="top1")


def write_everything(folder):
    """Writes runs or costs of most columns."""
    write_runs(folder, "alternatives", PERPLEXITIES)
    for task in ("sst2", "own"):
        options = {"pretrained": "alternatives", "task": task}
        write_finetuned(folder, "bert", (0.8, 0.82), **options)
        write_finetuned(folder, "fnet", (0.75, 0.78), **options)
    random_start = {"pretrained": "alternatives", "task": "own", "init_parameters": False}
    write_finetuned(folder, "bert", (0.6, 0.61), **random_start)
    write_images(folder, {"bert": 0.4, "sgu": 0.5, "fnet": 0.3})
    write_costs(folder)
    write_cost(folder, "bert", 16384, (), size=2e10)
