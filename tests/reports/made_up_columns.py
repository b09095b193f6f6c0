"""Columns of `gmlp reproduce alternatives` whose numbers are known, for the tests of reports and of
the command."""

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
# Row -> seconds of a step at 1,024 tokens, and the power of n with which a sequence's time grows.
COSTS = {
    "bert": (0.8, 2.0),
    "sgu": (0.4, 1.5),
    "fnet": (0.2, 1.0),
    "random": (0.3, 2.0),
    "dynamic": (0.6, 1.0),
}


def write_cost(folder, row, tokens, seconds, size=1e6, batch=None):
    """A file as `gmlp benchmark mixers` writes it; without seconds, of a step that was compiled
    only."""
    about = {
        "row": row,
        "tokens": tokens,
        "batch": batch or max(1, 2048 // tokens),
        "unit": "",
        "goal": "",
    }
    figures = {"seconds": list(seconds), "bytes": [float(size)], "flops": [1e9]}
    figures = {
        figure: (values, sorted(values)[len(values) // 2])
        for figure, values in figures.items()
        if values
    }
    entries = [
        about | {"figure": name, "values": found[0], "median": found[1]}
        for name, found in figures.items()
    ]
    (folder / "costs").mkdir(parents=True, exist_ok=True)
    (folder / "costs" / f"{row}-{tokens}.json").write_text(json.dumps(entries))


def write_costs(folder, costs=COSTS, lengths=LENGTHS):
    """Three repeats of each step, 1 % apart; memory grows as n squared of bert, as n of the
    others."""
    for row, (seconds, power) in costs.items():
        for tokens in lengths:
            batch = max(1, 2048 // tokens)
            one = seconds / 2 * (tokens / 1024) ** power * batch
            size = 1e6 * batch * (tokens / 1024) ** (2 if row == "bert" else 1)
            write_cost(folder, row, tokens, (one, 0.99 * one, 1.01 * one), size)


def write_images(folder, scores):
    """Row -> top-1 as a share, a finished run of CIFAR-10 each."""
    for row, config in COLUMNS["cifar10"].configs("cpu", tuple(scores)).items():
        config.data.train = "images"
        write_run(folder / "cifar10" / row, config, [(config.steps, scores[row])], metric="top1")


def write_everything(folder):
    """Something of most columns."""
    write_runs(folder, "alternatives", PERPLEXITIES)
    for row, accuracies in {"bert": (0.8, 0.82), "fnet": (0.75, 0.78)}.items():
        for task in ("sst2", "own"):
            write_finetuned(folder, row, accuracies, pretrained="alternatives", task=task)
    write_finetuned(
        folder, "bert", (0.6, 0.61), pretrained="alternatives", task="own", init_parameters=False
    )
    write_images(folder, {"bert": 0.4, "sgu": 0.5, "fnet": 0.3})
    write_costs(folder)
    write_cost(folder, "bert", 16384, (), size=2e10)
