"""Uses a trained model on image files or on lines of text from standard input, depending on the run's task.

    echo "The [MASK] statement is used to define a function." | gmlp predict --workdir=DIR
    gmlp predict --workdir=DIR photo.jpg another.png
    printf 'A man plays.\\tNobody plays.\\n' | gmlp predict --workdir=DIR
    printf 'Who plays?\\tIn the park, a man plays.\\n' | gmlp predict --workdir=DIR

    echo "The def statement" | gmlp predict --workdir=DIR --tokens=50 --temperature=0.8

A masked language model fills in each [MASK]. A causal one continues each line, and says on standard error what that
cost; with --top it ranks the next token instead. Of finetuned models, a classifier reads a sentence or, with a tab
between them, a pair, and a model that answers questions reads a question and a passage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, DataError
from gmlp_flax.io import records
from gmlp_flax.options import options_of
from gmlp_flax.tasks.sampling import Sampling

if TYPE_CHECKING:
    from gmlp_flax.tasks.base import Candidates
    from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
    from gmlp_flax.training.loading import Trained

SAMPLING = options_of(Sampling)


def main(argv: list[str]) -> None:
    """Prints the candidates of each prediction."""
    workdir = cli.require("workdir")
    from gmlp_flax.training import loading

    trained, paths, top = loading.load(workdir, flags.FLAGS.checkpoint), argv[1:], flags.FLAGS.top
    task = trained.task
    ranks = flags.FLAGS["top"].present
    sampling: dict[str, Any] = {name: flags.FLAGS[name].value for name in SAMPLING if flags.FLAGS[name].present}
    given = [*sampling]
    if given and not task.generates:
        what = f"for models that continue texts, and {workdir} holds one of the task {trained.config.task}"
        raise ConfigError(f"--{given[0]} is {what}: leave it out, or train with --config.task=causal_lm")
    if given and ranks:
        raise ConfigError(f"--top ranks the next token, and --{given[0]} is for a continuation: give one of them")
    if task.predicts_files:
        if not paths:
            raise ConfigError("give image files: gmlp predict --workdir=DIR IMAGE [IMAGE ...]")
        for path, (candidates,) in zip(paths, task.predict(trained.weights, paths, top), strict=True):
            print(f"{path}: {show(candidates)}")
    elif paths:
        raise ConfigError(f"{workdir} holds a model of text: give it some on standard input, not {paths[0]}")
    elif task.generates and not ranks:
        continue_lines(trained, Sampling(**sampling))
    else:
        for line in given_lines():
            print(line)
            (predictions,) = task.predict(trained.weights, [line], top)
            for number, candidates in enumerate(predictions, 1):
                print(f"  {task.prediction_label.format(number)}{show(candidates)}")


def given_lines() -> Iterator[str]:
    """The lines of standard input that are not blank, stripped; raises DataError if one is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            records.refuse_utf16(line)
            if text := records.decode_utf8(line).strip():
                yield text
        except records.NotUTF8 as error:
            raise DataError(f"standard input, line {number}: {error}") from None


def continue_lines(trained: Trained, sampling: Sampling) -> None:
    """Prints each line with its continuation, and on standard error what it cost."""
    from gmlp_flax.planning.workload import token_cost

    task: CausalLanguageModeling = trained.task  # type: ignore[reportAssignmentType]
    for line in given_lines():
        began = time.perf_counter()
        made = task.generate(trained.weights, line, sampling)
        seconds = time.perf_counter() - began
        print(line + made.text, flush=True)
        if made.prompt_tokens >= task.length:
            note = f"note: the line has {made.prompt_tokens} tokens; the model reads the last {task.length - 1} of them"
            print(note, file=sys.stderr)
        anew = f"; windows of {task.length} tokens read: {made.windows}" if made.windows > 1 else ""
        ended = ", where the model ended the text" if made.ended else ""
        rate = f"{made.new_tokens / seconds:,.0f} a second"
        print(f"{made.new_tokens} tokens in {seconds:.2f} s ({rate}){ended}{anew}", file=sys.stderr)
    cost = token_cost(task.generator, task.shapes())
    cached = f"as {cost.cache_bytes / 1e3:,.1f} kB are kept of the tokens before"
    anew = f"to read a window anew costs {cost.window_flops / 1e6:,.2f} MFLOP"
    print(f"a token costs {cost.flops / 1e6:,.2f} MFLOP, {cached}; {anew}", file=sys.stderr)


def show(candidates: Candidates) -> str:
    """Candidates in one line: name and probability in percent."""
    return "  ".join(f"{name.strip() or repr(name)} {100 * value:.1f}%" for name, value in candidates)


def define_flags() -> None:
    """Defines the flags of this command."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_integer("top", 5, "How many candidates to print.", lower_bound=1)
    for name, option in SAMPLING.items():
        cli.define(name, option.default, f"Causal models: {option.comment}.")


def run() -> None:
    """The command line."""
    define_flags()
    cli.run(main, "[IMAGE]...")
