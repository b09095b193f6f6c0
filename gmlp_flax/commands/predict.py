"""Uses a trained model on images or on lines of text, depending on the run's task.

    echo "The [MASK] statement is used to define a function." | gmlp predict --workdir=DIR
    gmlp predict --model=hf-hub:timm/gmlp_s16_224.ra3_in1k photo.jpg photos/ 'more/*.png'
    find photos -name '*.jpg' | gmlp predict --workdir=DIR --json > answers.jsonl
    gmlp predict --workdir=DIR --truncate lines.txt more.jsonl --json
    printf 'A man plays.\\tNobody plays.\\n' | gmlp predict --workdir=DIR
    echo "The def statement" | gmlp predict --workdir=DIR --tokens=50 --temperature=0.8

A masked language model fills in each [MASK]. A causal one continues each line, and says on standard
error how long that took; with --top it ranks the next token instead. A finetuned classifier reads a
sentence, or a pair with a tab between its parts. A model that answers questions reads a question
and a passage.

Without arguments, the lines of standard input are texts or paths of images. Each line of a .txt
file is a text. In a table (.csv, .tsv, .jsonl, .parquet), the columns that the model was trained on
are read, row by row. If an input cannot be read or does not suit the model, a line on standard
error says so, and the exit code is 1. With --json each answer is an object with "input" and one of
"predictions" (for each [MASK], a list of "label" and "score"), "generated_text" or "error". A line
may also be an object with "input"; the answer repeats its other keys.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tqdm
from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError
from gmlp_flax.io.logs import to_stderr
from gmlp_flax.options import options_of
from gmlp_flax.tasks.inference.sampling import Sampling

if TYPE_CHECKING:
    from gmlp_flax.tasks.inference.prediction import Answer, Predictor
    from gmlp_flax.training.model import Model

SAMPLING = options_of(Sampling)


def main(argv: list[str]) -> None:
    """Prints the answer to each input."""
    values = flags.FLAGS
    source = values.model or cli.require("workdir")
    from gmlp_flax.api import answering, factory
    from gmlp_flax.tasks.data import lines as input_lines
    from gmlp_flax.tasks.inference.prediction import Settings

    with cli.waiting(f"loading {source}; the first answer waits until its program is compiled"):
        model = factory.load(source, values.checkpoint, dtype=values.dtype)
    sampling = chosen_sampling(model, source)
    settings = Settings(values.top, values.batch_size, values.truncate)
    words = argv[1:]
    if words:
        inputs = input_lines.read_files(words, model.predictor, values.json)
    else:
        inputs = input_lines.read_lines("standard input", sys.stdin.buffer, values.json)
    answers = answering.answers(model, inputs, settings, sampling, to_stderr)
    typed = not words and sys.stdin.isatty()
    answered, failed = write(answers, model.predictor, values.json, typed)
    if not answered and not words and model.transform:
        raise ConfigError(
            "give image files or folders of them: gmlp predict --workdir=DIR IMAGE [IMAGE ...]"
        )
    if failed:
        raise SystemExit(1)


def chosen_sampling(model: Model, source: str) -> Sampling | None:
    """How the model continues texts, as the flags say; None if it ranks answers.

    Raises:
        ConfigError: flags of continuations are given to a model that ranks.
    """
    from gmlp_flax.tasks.inference.prediction import GeneratingPredictor

    values = flags.FLAGS
    chosen: dict[str, Any] = {}
    for name in SAMPLING:
        if values[name].present:
            chosen[name] = values[name].value
    if isinstance(model.predictor, GeneratingPredictor) and not values["top"].present:
        return Sampling(**chosen)
    for name in chosen:
        raise ConfigError(
            f"--{name} is for continuations, without --top, of models of causal_lm; {source} is "
            f"one of {model.config.task}: leave it out"
        )
    return None


def write(
    answers: Iterable[Answer], predictor: Predictor, as_json: bool, typed: bool
) -> tuple[int, int]:
    """Prints each answer as soon as it is there, with a bar on a terminal unless the user types.

    Returns:
        How many answers there were, and how many of them are errors.
    """
    answered = 0
    failed = 0
    with tqdm.tqdm(unit=" inputs", disable=typed or not sys.stderr.isatty()) as bar:
        say = print if bar.disable else bar.write  # which redraws the bar below the line
        for answer in answers:
            answered += 1
            place = getattr(answer.input, "where", "")
            where = f"{place}: " if place else ""
            if answer.error:
                failed += 1
                say(f"error: {where}{' '.join(str(answer.error).split())}", file=sys.stderr)
            if answer.note:
                say(f"note: {where}{answer.note}", file=sys.stderr)
            if as_json:
                say(json.dumps(as_record(answer), ensure_ascii=False))
            elif not answer.error:
                say(predictor.format(answer))
            bar.update()
    return answered, failed


def as_record(answer: Answer) -> dict[str, Any]:
    """The keys of an answer in JSON."""
    record = dict(getattr(answer.input, "record", {}))
    record["input"] = answer.input if isinstance(answer.input, str) else None
    if answer.error:
        record["error"] = str(answer.error)
    elif answer.text is not None:
        record["generated_text"] = answer.text
    else:
        predictions = []
        for candidates in answer.predictions:
            predictions.append([{"label": name, "score": score} for name, score in candidates])
        record["predictions"] = predictions
    return record


def define_flags() -> None:
    """Defines the flags of this command."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_integer("top", 5, "How many candidates to print.", lower_bound=1)
    flags.DEFINE_string(
        "model", None, "Instead of --workdir: whatever gmlp_flax.load accepts, such as a name."
    )
    flags.DEFINE_enum(
        "dtype",
        None,
        ["float32", "bfloat16"],
        "Type of activations and matrix products; the default is the model's.",
    )
    flags.DEFINE_integer(
        "batch_size", 32, "How many inputs the model reads at once.", lower_bound=1
    )
    flags.DEFINE_bool(
        "json", False, "Print a JSON object for each input, and accept JSON objects as lines."
    )
    flags.DEFINE_bool(
        "truncate", False, "Cut texts that are too long, with a note, instead of refusing them."
    )
    for name, option in SAMPLING.items():
        cli.define(name, option.default, f"Causal models: {option.comment}.")


def run() -> None:
    """The command line."""
    define_flags()
    cli.run(main, "[FILE]...")
