"""Trains a small gMLP on data that needs no download, scores it beside its controls, and shows what it learned.

Usage: python scripts/quickstart.py [text|image] [--workdir=DIR]     (scripts/quickstart.sh installs first)

text: a masked language model of CPython's reference manual; image: a classifier of handwritten digits. Both train
twice: once whole, and once with the spatial projections frozen as they start, where a gMLP mixes no tokens.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time

from absl import logging

from gmlp_flax import cli, config, predict
from gmlp_flax.analysis import curves, filters, unigram
from gmlp_flax.training import folder, loop, report

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SENTENCES = (
    "The [MASK] statement is used to define a function.",
    "If the expression is not found, a ValueError exception is [MASK].",
    "The value of the [MASK] is the result of the call.",
)


def run(kind: str, arg: str, workdir: str, steps: int | None) -> dict:
    """Trains configs/quickstart_KIND.py:ARG, from where an interrupted quickstart stopped.

    Args:
        kind: "text" or "image".
        arg: the config's argument.
        workdir: the run folder; one that is finished is begun again.
        steps: instead of the config's.

    Returns:
        What result.json holds.
    """
    if os.path.exists(os.path.join(workdir, report.RESULT_FILE)):
        shutil.rmtree(workdir)
    options = config.from_file(os.path.join(ROOT, "configs", f"quickstart_{kind}.py"), arg)
    options.steps = steps or options.steps
    result = loop.train(options, workdir)
    if result is None:
        raise SystemExit(0)
    return result


def show_text(trained: folder.Trained, result: dict, frozen: dict) -> None:
    """Prints the language model's scores and what it fills in."""
    print("\nheld-out perplexity of masked tokens (lower is better)")
    print(f"  token frequencies alone (unigram)            {unigram.perplexity(trained.task):8.1f}")
    print(f"  this model, spatial projections frozen       {frozen['eval']['perplexity']:8.1f}")
    print(f"  this model                                   {result['eval']['perplexity']:8.1f}")
    print("\nwhat it fills in, with probabilities")
    for sentence in SENTENCES:
        print(f"  {sentence}")
        for ranked in predict.fill(trained, sentence):
            print(f"      {predict.show(ranked)}")


def show_image(trained: folder.Trained, result: dict, frozen: dict) -> None:
    """Prints the classifier's scores and some of its answers."""
    print("\nheld-out accuracy (higher is better)")
    print(f"  the most frequent digit                      {most_frequent(trained.task):8.1%}")
    print(f"  this model, spatial projections frozen       {frozen['eval']['top1']:8.1%}")
    print(f"  this model                                   {result['eval']['top1']:8.1%}")
    print("\nwhat it says of three held-out digits, with probabilities")
    batch = next(trained.task.evaluation_batches(0, 1))
    for image, label in list(zip(batch["image"], batch["label"], strict=True))[:3]:
        print(f"  a {label}:  {predict.show(predict.rank_classes(trained, image[None])[0])}")


def most_frequent(task) -> float:
    """Share of the held-out images that the most frequent class has."""
    labels = [label for batch in task.evaluation_batches(0, 1) for label in batch["label"][batch["weight"] > 0]]
    return max(map(labels.count, set(labels))) / len(labels)


def main() -> None:
    """Trains, scores, shows, draws."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", nargs="?", default="text", choices=("text", "image"))
    parser.add_argument("--workdir", help="default: runs/quickstart-KIND")
    parser.add_argument("--steps", type=int, help="fewer, to see it work; default: the config's")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    began, workdir = time.time(), args.workdir or os.path.join(ROOT, "runs", f"quickstart-{args.kind}")
    print("1. training a small gMLP", file=sys.stderr)
    result = run(args.kind, "", workdir, args.steps)
    print("2. the same with its spatial projections frozen as they start", file=sys.stderr)
    frozen = run(args.kind, "frozen", f"{workdir}-frozen", args.steps)
    trained = folder.load(workdir)
    {"text": show_text, "image": show_image}[args.kind](trained, result, frozen)
    print("\nfigures")
    for path in (curves.draw(workdir), filters.draw(trained, workdir)):
        print(f"  {os.path.relpath(path)}")
    print(f"\nthe run is in {os.path.relpath(workdir)}; {time.time() - began:.0f} s in all")


if __name__ == "__main__":
    cli.explained(main)
