"""Uses a trained model on image files or on lines of text from standard input, depending on the run's task.

    echo "The [MASK] statement is used to define a function." | gmlp predict --workdir=DIR
    gmlp predict --workdir=DIR photo.jpg another.png
    printf 'A man plays.\\tNobody plays.\\n' | gmlp predict --workdir=DIR
    printf 'Who plays?\\tIn the park, a man plays.\\n' | gmlp predict --workdir=DIR

A masked language model fills in each [MASK]. Of finetuned models, a classifier reads a sentence or, with a tab between
them, a pair, and a model that answers questions reads a question and a passage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.data.storage import records
from gmlp_flax.errors import DataError

if TYPE_CHECKING:
    from gmlp_flax.tasks.base import Ranked


def main(argv: list[str]) -> None:
    """Prints the candidates of each prediction."""
    workdir = cli.required("workdir", "predict --workdir=DIR [IMAGE ...] < TEXT")
    from gmlp_flax.training import run_folder

    trained, paths, top = run_folder.load(workdir, flags.FLAGS.checkpoint), argv[1:], flags.FLAGS.top
    task = trained.task
    if task.takes_files:
        if not paths:
            cli.fail("give image files: gmlp predict --workdir=DIR IMAGE [IMAGE ...]")
        for path, (ranked,) in zip(paths, task.predict(trained.weights, paths, top), strict=True):
            print(f"{path}: {show(ranked)}")
        return
    if paths:
        cli.fail(f"{workdir} holds a model of text: give it some on standard input, not {paths[0]}")
    for line in filter(None, map(str.strip, given_lines())):
        print(line)
        (found,) = task.predict(trained.weights, [line], top)
        for number, ranked in enumerate(found, 1):
            print(f"  {task.prediction_label(number)}{show(ranked)}")


def given_lines() -> Iterator[str]:
    """The lines of standard input; raises DataError if one is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            records.refuse_utf16(line)
            yield records.decoded(line)
        except records.NotUTF8 as error:
            raise DataError(f"standard input, line {number}: {error}") from None


def show(ranked: Ranked) -> str:
    """Candidates in one line: name and probability in percent."""
    return "  ".join(f"{name.strip() or repr(name)} {100 * value:.1f}%" for name, value in ranked)


def run() -> None:
    """The command line."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_integer("top", 5, "How many candidates to print.", lower_bound=1)
    cli.run(main, positional=True)
