"""Trains a small gMLP on data that needs no download, scores it beside its controls, and shows what
it learned.

    gmlp quickstart text
    gmlp quickstart image --workdir=runs/digits

text: a masked language model of CPython's reference manual; image: a classifier of handwritten
digits. Both train twice: once whole, and once with the spatial projections frozen as they start, so
that the gMLP mixes no tokens. The same command goes on where it was interrupted; if both are
finished, they are put aside in their folders before-1.
"""

import os
import sys
import time
from typing import Any

from absl import flags

from gmlp_flax import config
from gmlp_flax.analysis import figure_files, filters
from gmlp_flax.checkpoints import CONFIG_FILE, RESULT_FILE
from gmlp_flax.commands import cli, predict
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.reports import curves
from gmlp_flax.training import loading, loop

SENTENCES = (
    "The [MASK] statement is used to define a function.",
    "If the expression is not found, a ValueError exception is [MASK].",
    "The value of the [MASK] is the result of the call.",
)


def train_once(
    kind: str, arg: str, workdir: str, steps: int | None, restart: bool
) -> dict[str, Any]:
    """Trains the config quickstart_KIND:ARG, or goes on where it was interrupted; `restart` puts
    its run aside first.

    Returns:
        The contents of result.json.

    Raises:
        RunError: the folder holds a run that is no such quickstart.
    """
    options = config.from_file(f"quickstart_{kind}", arg)
    options.steps = steps or options.steps
    path = os.path.join(workdir, CONFIG_FILE)
    if os.path.exists(path) and set(config.differences(config.load(path), options)) - {"steps"}:
        raise RunError(
            f"--workdir={workdir} holds another run than this quickstart: give another folder"
        )
    result = loop.train(options, workdir, restart)
    if result is None:
        raise SystemExit(0)
    return result


def show_text(trained: loading.Trained) -> None:
    """Prints what the language model fills in for some masks."""
    task: Any = trained.task
    print("\nwhat it fills in, with probabilities")
    for sentence in SENTENCES:
        print(f"  {sentence}")
        for candidates in task.predict(trained.weights, [sentence])[0]:
            print(f"      {predict.show(candidates)}")


def show_image(trained: loading.Trained) -> None:
    """Prints what the classifier says of three held-out digits."""
    task: Any = trained.task
    print("\nwhat it says of three held-out digits, with probabilities")
    batch = next(task.evaluation_batches(0, 1))
    for image, label in list(zip(batch["image"], batch["label"], strict=True))[:3]:
        print(f"  a {label}:  {predict.show(task.predict(trained.weights, [image])[0][0])}")


# Kind -> what shows its answers; the metric's title, name and format.
SHOWN = {
    "text": (show_text, "perplexity of masked tokens (lower is better)", "perplexity", ".1f"),
    "image": (show_image, "accuracy (higher is better)", "top1", ".1%"),
}


def main(argv: list[str]) -> None:
    """Trains, scores, shows, draws."""
    began, kind, steps = time.time(), (argv[1:] or ["text"])[0], flags.FLAGS.steps
    if kind not in SHOWN:
        raise ConfigError(f"there is no quickstart {kind!r}; {did_you_mean(kind, SHOWN)}")
    workdir = flags.FLAGS.workdir or os.path.join("runs", f"quickstart-{kind}")
    print("1. training a small gMLP", file=sys.stderr)
    folders = workdir, f"{workdir}-frozen"
    again = all(os.path.exists(os.path.join(folder, RESULT_FILE)) for folder in folders)
    result = train_once(kind, "", workdir, steps, again)
    print("2. the same with its spatial projections frozen as they start", file=sys.stderr)
    frozen = train_once(kind, "frozen", folders[1], steps, again)
    trained = loading.load(workdir)
    show_answers, title, metric, form = SHOWN[kind]
    print(f"\nheld-out {title}")
    models = [(model["name"], model) for model in result.get("baselines", [])]
    models += [("this model, spatial projections frozen", frozen), ("this model", result)]
    for name, scored in models:
        print(f"  {name:<44} {scored['eval'][metric]:8{form}}")
    show_answers(trained)
    with cli.waiting("drawing"):
        figures = {"loss": curves.of_run(workdir), "filters": filters.figure(trained)}
        paths = figure_files.save(figures, workdir)
    print("\nfigures")
    for path in paths:
        print(f"  {os.path.relpath(path)}")
    print(f"\nthe run is in {os.path.relpath(workdir)}; {time.time() - began:.0f} s in all")


def run() -> None:
    """The command line."""
    workdir = "The run folder; empty: runs/quickstart-KIND. The frozen model's is DIR-frozen."
    flags.DEFINE_string("workdir", None, workdir)
    flags.DEFINE_integer(
        "steps", None, "Train for fewer steps than the config says.", lower_bound=1
    )
    cli.run(main, "[text|image]")
