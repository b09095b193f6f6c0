"""Trains the rows of Table 3 in small, on the same tokens, and prints their held-out perplexities beside the paper's.

Usage: python scripts/compare_mixers.py --data=CORPUS --out=DIR [--models=sgu,mixer,...] [--seeds=0,1] [--jobs=2]

Each run is `python -m gmlp_flax.train --config=configs/c4_ablation.py:MODEL,scale=small`. A run that is finished in DIR
is not run again and one that was interrupted goes on, so the same command ends what a killed one began. Where one
fails, or Ctrl-C or SIGTERM asks to stop, those under way save and stop as well. With
`--rates=1e-3,2e-3,4e-3` each model is first trained for `--probe_steps` at each rate with the seed 100, and its seeds
use the best; without, the config's own rates. Writes DIR/table.json.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import statistics
from collections.abc import Callable

from running import ROOT, Runs, results

from gmlp_flax import cli, config
from gmlp_flax.analysis import claims
from gmlp_flax.models.sizes import PUBLISHED

CONFIG = os.path.join(ROOT, "configs", "c4_ablation.py")
MODELS = ("bert_rel", "mixer", "linear", "additive", "multiplicative", "sgu", "amlp_36")
PROBE_SEED = 100


def training(args: argparse.Namespace, model: str, *flags: str) -> list[str]:
    """The flags that train a model."""
    return [f"--config={CONFIG}:{model},scale=small", *args.flags, *flags]


def perplexities(runs: dict[tuple, concurrent.futures.Future]) -> dict[tuple, float]:
    """What all runs end with; raises the RunError of the first that fails."""
    return {key: metrics["perplexity"] for key, metrics in results(runs).items()}


def best_rates(args: argparse.Namespace, runs: Runs) -> dict[str, str]:
    """The best of `args.rates` for each model after a short run at each."""
    found = perplexities({
        (model, rate): runs.submit(f"probe-{model}-{rate}", training(
            args, model, f"--config.optimizer.learning_rate={rate}", f"--config.steps={args.probe_steps}",
            f"--config.seed={PROBE_SEED}",
        ))
        for model in args.models for rate in args.rates
    })
    for model in args.models:
        print(f"{model:<16}" + "  ".join(f"{rate}: {found[model, rate]:.1f}" for rate in args.rates), flush=True)
    return {model: min(args.rates, key=lambda rate: found[model, rate]) for model in args.models}


def compare(args: argparse.Namespace) -> list[dict]:
    """Runs all that is asked for; one object a model, best first."""
    with Runs(args.out, args.jobs) as runs:
        rates = best_rates(args, runs) if args.rates else {}
        found = perplexities({
            (model, seed): runs.submit(f"{model}-{seed}", training(
                args, model, f"--config.seed={seed}",
                *([f"--config.optimizer.learning_rate={rates[model]}"] if rates else []),
            ))
            for seed in args.seeds for model in args.models
        })
    rows = []
    for model in args.models:
        each = [found[model, seed] for seed in args.seeds]
        rows.append({
            "model": model, "rate": rates.get(model), "perplexities": each, "mean": statistics.mean(each),
            "paper": PUBLISHED[model].perplexity,
        })
    return sorted(rows, key=lambda row: row["mean"])


def show(rows: list[dict]) -> None:
    """Prints the table, and how many of the paper's orderings hold by more than the seeds' spread."""
    print(f"\n{'model':<16}{'perplexity':>11}{'lowest':>9}{'highest':>9}{'paper':>8}  rate")
    for row in rows:
        paper = "" if row["paper"] is None else f"{row['paper']:.2f}"
        low, high = min(row["perplexities"]), max(row["perplexities"])
        print(f"{row['model']:<16}{row['mean']:>11.2f}{low:>9.2f}{high:>9.2f}{paper:>8}  {row['rate'] or ''}")
    printed = sorted((row for row in rows if row["paper"] is not None), key=lambda row: row["paper"])
    for number, better in enumerate(printed):
        for worse in printed[number + 1 :]:
            verdict = claims.verdict(better["perplexities"], worse["perplexities"])
            print(f"  {better['model']} < {worse['model']}: {verdict}")


def listed(kind: Callable[[str], object]) -> Callable[[str], list]:
    """The type of an option that takes values with commas between them, each once."""
    return lambda text: list(dict.fromkeys(map(kind, text.split(","))))


def small_model(name: str) -> str:
    """The name, of a model that the config has in small; raises ArgumentTypeError."""
    try:
        config.from_file(CONFIG, f"{name},scale=small")
    except config.ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = cli.fail
    parser.add_argument("--data", required=True, help="a corpus, as config.data.train takes it")
    parser.add_argument("--out", required=True, help="folder for the runs and the table")
    parser.add_argument("--models", type=listed(small_model), default=list(MODELS))
    parser.add_argument("--seeds", type=listed(int), default=[0, 1])
    parser.add_argument("--rates", type=listed(str), default=[], help="peak rates to choose from")
    parser.add_argument("--probe_steps", type=int, default=250)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("flags", nargs="*", help="more flags for every run, after --")
    args = parser.parse_args()
    if args.jobs < 1:
        cli.fail(f"--jobs={args.jobs}: expected a positive number")
    args.out = os.path.abspath(args.out)
    data = args.data if ":" in args.data else os.path.abspath(args.data)
    args.flags = [f"--config.data.train={data}", *args.flags]
    return args


def main() -> None:
    """Runs, prints, writes."""
    args = arguments()
    rows = compare(args)
    show(rows)
    with open(os.path.join(args.out, "table.json"), "w") as file:
        json.dump(rows, file, indent=2)


if __name__ == "__main__":
    cli.explained(main)
