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
import shlex
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable

from gmlp_flax import cli, config
from gmlp_flax.models.sizes import PUBLISHED
from gmlp_flax.training.errors import RunError

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = "configs/c4_ablation.py"
MODELS = ("bert_rel", "mixer", "linear", "additive", "multiplicative", "sgu", "amlp_36")
PROBE_SEED = 100


class Runs:
    """Trains runs, some at a time. Where its block ends early, those under way save and stop, others are not begun.

    Args:
        args: the command line.
    """

    def __init__(self, args: argparse.Namespace):
        self._args, self._pool = args, concurrent.futures.ThreadPoolExecutor(args.jobs)
        self._under_way: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def submit(self, name: str, model: str, *flags: str) -> concurrent.futures.Future:
        """Trains one run unless it is finished; the future gives its held-out perplexity, or raises RunError."""
        return self._pool.submit(self._train, name, model, flags)

    def _train(self, name: str, model: str, flags: tuple[str, ...]) -> float:
        workdir = os.path.join(self._args.out, name)
        result = os.path.join(workdir, "result.json")
        if not os.path.exists(result):
            command = [
                sys.executable, "-m", "gmlp_flax.train", f"--config={CONFIG}:{model},scale=small",
                f"--workdir={workdir}", *self._args.flags, *flags,
            ]
            if self._run(command, f"{workdir}.log"):
                raise RunError(f"the run {workdir} failed: its output is in {workdir}.log")
            if not os.path.exists(result):
                raise RunError(f"the run {workdir} was stopped before its end: the same command again goes on")
        with open(result) as file:
            return json.load(file)["eval"]["perplexity"]

    def _run(self, command: list[str], log_path: str) -> int:
        """Runs a command; its exit code, its output in a log."""
        os.makedirs(self._args.out, exist_ok=True)
        with open(log_path, "a") as log:
            print(shlex.join(command), file=log, flush=True)
            with self._lock:
                if self._stopped:
                    return 0
                process = subprocess.Popen(
                    command, cwd=ROOT, env=environment(self._args.threads), stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log,
                )
                self._under_way.add(process)
            code = process.wait()
            self._under_way.discard(process)
            return code

    def __enter__(self) -> Runs:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._stopped = True
            for process in list(self._under_way):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


def perplexities(runs: dict[tuple, concurrent.futures.Future]) -> dict[tuple, float]:
    """What all runs give; raises the RunError of the first that fails, as soon as it does."""
    for run in concurrent.futures.as_completed(runs.values()):
        run.result()
    return {key: run.result() for key, run in runs.items()}


def environment(threads: int) -> dict[str, str]:
    """Of a run that shares the machine's cores with others: XLA makes as many threads as it believes to have cores."""
    return os.environ | {"PYTHONPATH": ROOT, "PJRT_NPROC": str(threads)}


def best_rates(args: argparse.Namespace, runs: Runs) -> dict[str, str]:
    """The best of `args.rates` for each model after a short run at each."""
    found = perplexities({
        (model, rate): runs.submit(
            f"probe-{model}-{rate}", model, f"--config.optimizer.learning_rate={rate}",
            f"--config.steps={args.probe_steps}", f"--config.seed={PROBE_SEED}",
        )
        for model in args.models for rate in args.rates
    })
    for model in args.models:
        print(f"{model:<16}" + "  ".join(f"{rate}: {found[model, rate]:.1f}" for rate in args.rates), flush=True)
    return {model: min(args.rates, key=lambda rate: found[model, rate]) for model in args.models}


def compare(args: argparse.Namespace) -> list[dict]:
    """Runs all that is asked for; one object a model, best first."""
    with Runs(args) as runs:
        rates = best_rates(args, runs) if args.rates else {}
        found = perplexities({
            (model, seed): runs.submit(
                f"{model}-{seed}", model, f"--config.seed={seed}",
                *([f"--config.optimizer.learning_rate={rates[model]}"] if rates else []),
            )
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
            if max(better["perplexities"]) < min(worse["perplexities"]):
                verdict = "holds"
            elif min(better["perplexities"]) > max(worse["perplexities"]):
                verdict = "is reversed"
            else:
                verdict = "is inside the seeds' spread"
            print(f"  {better['model']} < {worse['model']}: {verdict}")


def listed(kind: Callable[[str], object]) -> Callable[[str], list]:
    """The type of an option that takes values with commas between them, each once."""
    return lambda text: list(dict.fromkeys(map(kind, text.split(","))))


def small_model(name: str) -> str:
    """The name, of a model that the config has in small; raises ArgumentTypeError."""
    try:
        config.from_file(os.path.join(ROOT, CONFIG), f"{name},scale=small")
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
    args.threads = max(1, len(os.sched_getaffinity(0)) // args.jobs)
    return args


def main() -> None:
    """Runs, prints, writes."""
    args = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C, which leaves no run behind.
    rows = compare(args)
    show(rows)
    with open(os.path.join(args.out, "table.json"), "w") as file:
        json.dump(rows, file, indent=2)


if __name__ == "__main__":
    cli.explained(main)
