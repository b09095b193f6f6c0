"""Trains a small gMLP on data that needs no download, scores it beside its controls, and shows what it learned.

    gmlp quickstart text
    gmlp quickstart image --workdir=runs/digits

text: a masked language model of CPython's reference manual; image: a classifier of handwritten digits. Both train twice:
once whole, and once with the spatial projections frozen as they start, so that the gMLP mixes no tokens.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

from absl import logging

from gmlp_flax import config
from gmlp_flax.analysis import curves, filters
from gmlp_flax.commands import cli, predict
from gmlp_flax.run_folder.layout import RESULT_FILE
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.training import loading, loop

SENTENCES = (
    "The [MASK] statement is used to define a function.",
    "If the expression is not found, a ValueError exception is [MASK].",
    "The value of the [MASK] is the result of the call.",
)


def train_once(kind: str, arg: str, workdir: str, steps: int | None) -> dict:
    """Trains the config quickstart_KIND:ARG, from where an interrupted quickstart stopped.

    Args:
        kind: "text" or "image".
        arg: the config's argument.
        workdir: the run folder; a finished run in it is deleted, and trained anew.
        steps: how many, unless the config's number is to be taken.

    Returns:
        The contents of result.json.
    """
    if os.path.exists(os.path.join(workdir, RESULT_FILE)):
        shutil.rmtree(workdir)
    options = config.from_file(f"quickstart_{kind}", arg)
    options.steps = steps or options.steps
    result = loop.train(options, workdir)
    if result is None:
        raise SystemExit(0)
    return result


def show_text(trained: loading.Trained, result: dict, frozen: dict) -> None:
    """Prints the language model's scores and some filled masks."""
    assert isinstance(trained.task, MaskedLanguageModeling)
    print("\nheld-out perplexity of masked tokens (lower is better)")
    print(f"  token frequencies alone (unigram)            {result['baseline']['eval']['perplexity']:8.1f}")
    print(f"  this model, spatial projections frozen       {frozen['eval']['perplexity']:8.1f}")
    print(f"  this model                                   {result['eval']['perplexity']:8.1f}")
    print("\nwhat it fills in, with probabilities")
    for sentence in SENTENCES:
        print(f"  {sentence}")
        for ranked in trained.task.predict(trained.weights, [sentence])[0]:
            print(f"      {predict.show(ranked)}")


def show_image(trained: loading.Trained, result: dict, frozen: dict) -> None:
    """Prints the classifier's scores and some of its answers."""
    print("\nheld-out accuracy (higher is better)")
    print(f"  the most frequent digit                      {result['baseline']['eval']['top1']:8.1%}")
    print(f"  this model, spatial projections frozen       {frozen['eval']['top1']:8.1%}")
    print(f"  this model                                   {result['eval']['top1']:8.1%}")
    print("\nwhat it says of three held-out digits, with probabilities")
    task: Any = trained.task
    batch = next(task.evaluation_batches(0, 1))
    for image, label in list(zip(batch["image"], batch["label"], strict=True))[:3]:
        print(f"  a {label}:  {predict.show(task.rank_classes(trained.weights, image[None])[0])}")


def main() -> None:
    """Trains, scores, shows, draws."""
    parser = cli.ArgumentParser("quickstart", __doc__)
    parser.add_argument("kind", nargs="?", default="text", choices=("text", "image"), help="default: text")
    parser.add_argument(
        "--workdir", help="the run folder; a finished run in it, or in DIR-frozen, is deleted (runs/quickstart-KIND)"
    )
    parser.add_argument("--steps", type=int, help="train for fewer steps; default: as the config says")
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    began, workdir = time.time(), args.workdir or os.path.join("runs", f"quickstart-{args.kind}")
    print("1. training a small gMLP", file=sys.stderr)
    result = train_once(args.kind, "", workdir, args.steps)
    print("2. the same with its spatial projections frozen as they start", file=sys.stderr)
    frozen = train_once(args.kind, "frozen", f"{workdir}-frozen", args.steps)
    trained = loading.load(workdir)
    {"text": show_text, "image": show_image}[args.kind](trained, result, frozen)
    print("\nfigures")
    for path in (curves.draw(workdir), filters.draw(trained, workdir)):
        print(f"  {os.path.relpath(path)}")
    print(f"\nthe run is in {os.path.relpath(workdir)}; {time.time() - began:.0f} s in all")


def run() -> None:
    """The command line."""
    cli.explained(main)
