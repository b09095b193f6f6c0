"""Trains the rows of Table 3 in small, on the same tokens, and prints their held-out perplexities beside the paper's.

Usage: python scripts/compare_mixers.py --data=CORPUS --out=DIR [--models=sgu,mixer,...] [--seeds=0,1] [--jobs=2]

Each run is `python -m gmlp_flax.train --config=configs/c4_ablation.py:MODEL,scale=small`. A run that is finished in DIR
is not run again and one that was interrupted goes on, so the same command ends what a killed one began. With
`--rates=1e-3,2e-3,4e-3` each model is first trained for `--probe_steps` at each rate with the seed 100, and its seeds
use the best; without, the config's own rates. Writes DIR/table.json.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import shlex
import statistics
import subprocess
import sys

from gmlp_flax import cli
from gmlp_flax.models.sizes import PUBLISHED
from gmlp_flax.training.errors import RunError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = ("bert_rel", "mixer", "linear", "additive", "multiplicative", "sgu", "amlp_36")
PROBE_SEED = 100


def run(out: str, name: str, model: str, flags: list[str], threads: int) -> dict:
    """Trains one run unless it is finished.

    Returns:
        What its result.json holds.

    Raises:
        RunError: it failed; its output is in DIR/NAME.log.
    """
    workdir = os.path.join(out, name)
    result = os.path.join(workdir, "result.json")
    if not os.path.exists(result):
        command = [
            sys.executable, "-m", "gmlp_flax.train", f"--config=configs/c4_ablation.py:{model},scale=small",
            f"--workdir={workdir}", *flags,
        ]
        os.makedirs(out, exist_ok=True)
        with open(f"{workdir}.log", "a") as log:
            print(shlex.join(command), file=log, flush=True)
            if subprocess.run(command, cwd=ROOT, env=environment(threads), stdout=log, stderr=log).returncode:
                raise RunError(f"the run {workdir} failed: its output is in {workdir}.log")
    with open(result) as file:
        return json.load(file)


def environment(threads: int) -> dict[str, str]:
    """Of a run that shares the machine's cores with others: XLA makes as many threads as it believes to have cores."""
    return os.environ | {"PYTHONPATH": ROOT, "PJRT_NPROC": str(threads)}


def best_rates(args: argparse.Namespace, pool: concurrent.futures.Executor) -> dict[str, str]:
    """The best of `args.rates` for each model after a short run at each."""
    probes = {
        (model, rate): pool.submit(
            run, args.out, f"probe-{model}-{rate}", model,
            [*args.flags, f"--config.optimizer.learning_rate={rate}", f"--config.steps={args.probe_steps}",
             f"--config.seed={PROBE_SEED}"], args.threads,
        )
        for model in args.models for rate in args.rates
    }
    found = {key: probe.result()["eval"]["perplexity"] for key, probe in probes.items()}
    for model in args.models:
        print(f"{model:<16}" + "  ".join(f"{rate}: {found[model, rate]:.1f}" for rate in args.rates), flush=True)
    return {model: min(args.rates, key=lambda rate: found[model, rate]) for model in args.models}


def compare(args: argparse.Namespace) -> list[dict]:
    """Runs all that is asked for; one object a model, best first."""
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        rates = best_rates(args, pool) if args.rates else {}
        runs = {
            (model, seed): pool.submit(
                run, args.out, f"{model}-{seed}", model,
                [*args.flags, f"--config.seed={seed}"]
                + ([f"--config.optimizer.learning_rate={rates[model]}"] if rates else []), args.threads,
            )
            for seed in args.seeds for model in args.models
        }
        rows = []
        for model in args.models:
            found = [runs[model, seed].result()["eval"]["perplexity"] for seed in args.seeds]
            rows.append({
                "model": model, "rate": rates.get(model), "perplexities": found, "mean": statistics.mean(found),
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
            if max(better["perplexities"]) < min(worse["perplexities"]):
                verdict = "holds"
            elif min(better["perplexities"]) > max(worse["perplexities"]):
                verdict = "is reversed"
            else:
                verdict = "is inside the seeds' spread"
            print(f"  {better['model']} < {worse['model']}: {verdict}")


def main() -> None:
    """Runs, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a corpus, as config.data.train takes it")
    parser.add_argument("--out", required=True, help="folder for the runs and the table")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[0, 1])
    parser.add_argument("--rates", type=lambda text: text.split(","), default=[], help="peak rates to choose from")
    parser.add_argument("--probe_steps", type=int, default=250)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("flags", nargs="*", help="more flags for every run, after --")
    args = parser.parse_args()
    if unknown := [model for model in args.models if model not in PUBLISHED]:
        parser.error(f"there is no model {unknown[0]!r}")
    args.out = os.path.abspath(args.out)
    data = args.data if ":" in args.data else os.path.abspath(args.data)
    args.flags = [f"--config.data.train={data}", *args.flags]
    args.threads = max(1, len(os.sched_getaffinity(0)) // args.jobs)
    rows = compare(args)
    show(rows)
    with open(os.path.join(args.out, "table.json"), "w") as file:
        json.dump(rows, file, indent=2)


if __name__ == "__main__":
    cli.explained(main)
