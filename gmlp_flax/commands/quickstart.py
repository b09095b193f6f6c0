"""Trains a small gMLP on data that needs no download, compares it with baselines, and shows what it
learned.

    gmlp quickstart text
    gmlp quickstart image --workdir=runs/digits

text is a masked language model of CPython's reference manual; image is a classifier of handwritten
digits. Each trains twice: once completely, and once with the spatial projections frozen at their
initial values, so that the gMLP mixes no tokens. Repeat the command to resume interrupted runs. If
both runs are finished, they are moved to their folders before-1.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from absl import flags

from gmlp_flax import config
from gmlp_flax.analysis import figure_files, filters
from gmlp_flax.checkpoints import CONFIG_FILE, RESULT_FILE
from gmlp_flax.commands import cli
from gmlp_flax.data.holdout import HELDOUT
from gmlp_flax.errors import ConfigError, RunError, did_you_mean
from gmlp_flax.reports import curves
from gmlp_flax.tasks.inference.prediction import shown
from gmlp_flax.training import loop, pretrained
from gmlp_flax.training.model import Model

SENTENCES = (
    "The [MASK] statement is used to define a function.",
    "If the expression is not found, a ValueError exception is [MASK].",
    "The value of the [MASK] is the result of the call.",
)


def train_once(
    kind: str, arg: str, workdir: str, steps: int | None, restart: bool
) -> dict[str, Any]:
    """Trains the config quickstart_KIND:ARG, or resumes it; `restart` puts its run aside first.

    Returns:
        The contents of result.json.

    Raises:
        RunError: the folder holds a run that is not such a quickstart.
    """
    options = config.from_file(f"quickstart_{kind}", arg)
    options.steps = steps or options.steps
    path = os.path.join(workdir, CONFIG_FILE)
    if os.path.exists(path):
        differences = config.differences(config.load(path), options)
        if differences.keys() - {"steps"}:
            raise RunError(
                f"--workdir={workdir} holds another run than this quickstart: give another folder"
            )
    result = loop.train(options, workdir, loop.TrainOptions(restart=restart))
    if result is None:
        raise SystemExit(0)
    return result


def show_text(model: Model) -> None:
    """Prints what the language model fills in for some masks."""
    print("\nwhat it fills in, with probabilities")
    for sentence in SENTENCES:
        print(f"  {sentence}")
        [predictions] = model.predictor.predict(model.params, [sentence])
        for candidates in predictions:
            print(f"      {shown(candidates)}")


def show_image(model: Model) -> None:
    """Prints what the classifier predicts for three held-out digits."""
    print("\nwhat it predicts for three held-out digits, with probabilities")
    digits = model.task.Data(model.config).examples(HELDOUT)
    for index in range(3):
        digit = digits[index]
        [[candidates]] = model.predictor.predict(model.params, [digit["image"]])
        print(f"  a {digit['label']}:  {shown(candidates)}")


class Kind(NamedTuple):
    """A quickstart.

    Attributes:
        show: prints some answers of the model.
        title: of its metric.
        metric: its name.
        format_spec: how it is written.
    """

    show: Callable[[Model], None]
    title: str
    metric: str
    format_spec: str


KINDS = {
    "text": Kind(show_text, "perplexity of masked tokens (lower is better)", "perplexity", "8.1f"),
    "image": Kind(show_image, "accuracy (higher is better)", "top1", "8.1%"),
}


def main(argv: list[str]) -> None:
    """Trains, scores, shows, draws."""
    began = time.time()
    name = argv[1] if len(argv) > 1 else "text"
    steps = flags.FLAGS.steps
    if name not in KINDS:
        raise ConfigError(f"there is no quickstart {name!r}; {did_you_mean(name, KINDS)}")
    workdir = flags.FLAGS.workdir or os.path.join("runs", f"quickstart-{name}")
    frozen_workdir = f"{workdir}-frozen"
    again = all(
        os.path.exists(os.path.join(folder, RESULT_FILE)) for folder in (workdir, frozen_workdir)
    )
    print("1. training a small gMLP", file=sys.stderr)
    result = train_once(name, "", workdir, steps, again)
    print("2. the same with its spatial projections frozen as they start", file=sys.stderr)
    frozen = train_once(name, "frozen", frozen_workdir, steps, again)
    model = pretrained.load(workdir, "latest")
    print_scores(KINDS[name], result, frozen)
    KINDS[name].show(model)
    with cli.waiting("drawing"):
        drawn = {"loss": curves.of_run(workdir), "filters": filters.figure(model)}
        paths = figure_files.save(drawn, workdir)
    print("\nfigures")
    for path in paths:
        print(f"  {os.path.relpath(path)}")
    print(f"\nthe run is in {os.path.relpath(workdir)}; {time.time() - began:.0f} s in all")


def print_scores(kind: Kind, result: Mapping[str, Any], frozen: Mapping[str, Any]) -> None:
    """Prints what the model scores beside its controls."""
    print(f"\nheld-out {kind.title}")
    for baseline in result.get("baselines", []):
        _print_score(kind, baseline["name"], baseline)
    _print_score(kind, "this model, spatial projections frozen", frozen)
    _print_score(kind, "this model", result)


def _print_score(kind: Kind, name: str, scored: Mapping[str, Any]) -> None:
    score = scored["eval"][kind.metric]
    print(f"  {name:<44} {score:{kind.format_spec}}")


def run() -> None:
    """The command line."""
    workdir = "The run folder; empty: runs/quickstart-KIND. The frozen model's is DIR-frozen."
    flags.DEFINE_string("workdir", None, workdir)
    flags.DEFINE_integer(
        "steps", None, "Train for fewer steps than the config says.", lower_bound=1
    )
    cli.run(main, "[text|image]")
