"""Uses a trained model on images or on lines of text, depending on the run's task.

    echo "The [MASK] statement is used to define a function." | gmlp predict --workdir=DIR
    gmlp predict --model=hf-hub:timm/gmlp_s16_224.ra3_in1k photo.jpg photos/ 'more/*.png'
    find photos -name '*.jpg' | gmlp predict --workdir=DIR --json > answers.jsonl
    gmlp predict --workdir=DIR --truncate lines.txt more.jsonl --json
    printf 'A man plays.\\tNobody plays.\\n' | gmlp predict --workdir=DIR
    echo "The def statement" | gmlp predict --workdir=DIR --tokens=50 --temperature=0.8

A masked language model fills in each [MASK]. A causal one continues each line, and says on standard
error how long that took; with --top it ranks the next token instead. Of finetuned models, a
classifier reads a sentence or, with a tab between them, a pair, and a model that answers questions
reads a question and a passage.

Without arguments, lines of standard input are the texts, or the paths of images. An input that
cannot be read or does not suit the model is a line on standard error, and the exit code is 1. With
--json each answer is an object with "input" and "predictions" (of each [MASK], a list of "label"
and "score"), "generated_text" or "error"; a line may be an object with "input", too, whose other
keys the answer repeats.
"""

from __future__ import annotations

import io
import json
import select
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import tqdm
from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.errors import ConfigError, DataError, UserError
from gmlp_flax.io import files, json_files, records
from gmlp_flax.options import options_of
from gmlp_flax.tasks.generation import Sampling

if TYPE_CHECKING:
    from gmlp_flax.tasks.base import Task
    from gmlp_flax.tasks.causal_lm import CausalLanguageModeling
    from gmlp_flax.tasks.prediction import Answer, Candidates
    from gmlp_flax.training.loading import Trained

SAMPLING = options_of(Sampling)
# what a terminal would follow
ESCAPES = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160))}
TEXTS = (".txt", ".tsv", ".jsonl")  # the files of a folder whose lines are read


class Line(str):
    """An input: a line with its place, for messages, and the other keys of its JSON object; or the
    path of an image."""

    where: str
    record: Mapping[str, Any]

    def __new__(cls, text: str, where: str = "", record: Mapping[str, Any] = MappingProxyType({})):
        line = super().__new__(cls, text)
        line.where, line.record = where, record
        return line


def main(argv: list[str]) -> None:
    """Prints the answer to each input."""
    values = flags.FLAGS
    source = values.model or cli.require("workdir")
    from gmlp_flax.api import factory

    with cli.waiting(f"loading {source}; the first answer waits until its program is compiled"):
        trained = factory.load(source, values.checkpoint)
    words, ranks = argv[1:], values["top"].present
    task = trained.task
    sampling: dict[str, Any] = {
        name: values[name].value for name in SAMPLING if values[name].present
    }
    if sampling and (ranks or not task.generates):
        what = f"for continuations, without --top, of models of causal_lm; {source} is one of {trained.config.task}"
        raise ConfigError(f"--{next(iter(sampling))} is {what}: leave it out")
    inputs = (
        read_files(words, task.predicts_files)
        if words
        else read_lines("standard input", sys.stdin.buffer)
    )
    if task.generates and not ranks:
        answers = continuations(trained, inputs, Sampling(**sampling))
    else:
        options = dict(batch_size=values.batch_size, truncate=values.truncate)
        answers = task.predict_stream(trained.weights, inputs, values.top, **options)
    answered, failed = write(answers, task, values.json, typed=not words and sys.stdin.isatty())
    if task.predicts_files and not answered:
        raise ConfigError(
            "give image files or folders of them: gmlp predict --workdir=DIR IMAGE [IMAGE ...]"
        )
    if failed:
        raise SystemExit(1)


def write(answers: Iterable[Answer], task: Task, as_json: bool, typed: bool) -> tuple[int, int]:
    """Prints each answer as soon as it is there, with a bar on a terminal on which nobody types.

    Returns:
        How many answers there were, and how many of them are errors.
    """
    answered = failed = 0
    with tqdm.tqdm(unit=" inputs", disable=typed or not sys.stderr.isatty()) as bar:
        say = print if bar.disable else bar.write  # which draws the bar anew, below the line
        for answer in answers:
            answered += 1
            where = f"{answer.input.where}: " if getattr(answer.input, "where", "") else ""
            if answer.error:
                failed += 1
                say(f"error: {where}{' '.join(str(answer.error).split())}", file=sys.stderr)
            if answer.note:
                say(f"note: {where}{answer.note}", file=sys.stderr)
            if as_json:
                say(json.dumps(as_record(answer), ensure_ascii=False))
            elif not answer.error:
                say(as_text(answer, task))
            bar.update()
    return answered, failed


def as_record(answer: Answer) -> dict[str, Any]:
    """The keys of an answer in JSON."""
    record = {
        **getattr(answer.input, "record", {}),
        "input": answer.input if isinstance(answer.input, str) else None,
    }
    if answer.error:
        return record | {"error": str(answer.error)}
    if answer.text is not None:
        return record | {"generated_text": answer.text}
    ranked = [
        [{"label": name, "score": value} for name, value in candidates]
        for candidates in answer.predictions
    ]
    return record | {"predictions": ranked}


def as_text(answer: Answer, task: Task) -> str:
    """An answer for people: one line for an image or a continuation, else the input and a line for
    each prediction."""
    if answer.text is not None:
        return answer.input + answer.text
    if task.predicts_numbers:
        return f"{answer.input}\n  {answer.predictions[0][0][1]:.4g}"
    if task.predicts_files:
        return f"{answer.input}: {show(answer.predictions[0])}"
    ranked = (
        f"  {task.prediction_label.format(i)}{show(each)}"
        for i, each in enumerate(answer.predictions, 1)
    )
    return "\n".join([answer.input, *ranked])


def read_files(words: list[str], are_images: bool) -> Iterator[Any]:
    """The images that files, folders and patterns stand for, or the lines of such texts; an error
    for each that cannot be read."""
    from gmlp_flax.data.images.folders import SUFFIXES

    suffixes, expected = (
        SUFFIXES if are_images else TEXTS,
        "arguments are files, folders or patterns of files",
    )
    expected += (
        "" if are_images else "; texts are lines of standard input: echo TEXT | gmlp predict ..."
    )
    for word in words:
        try:
            for path in files.expand(word, suffixes):
                if (not are_images or {*"*?["} & {*path}) and not files.exists(path):
                    raise DataError(f"nothing at {path!r}: {expected}")
                if are_images:
                    yield Line(path)
                else:
                    with files.open_file(path) as stream:
                        yield from read_lines(path, stream)
        except DataError as error:
            yield error


def read_lines(name: str, stream: Any) -> Iterator[Any]:
    """The lines of a stream that are not blank, as they come; PAUSE when no other is ready, and
    errors for bad ones."""
    from gmlp_flax.tasks.prediction import PAUSE

    number, begun = 0, []
    read = getattr(stream, "read1", stream.read)  # what is there, or the next that comes
    while chunk := read(1 << 16):
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            number += 1
            yield from read_line(b"".join([*begun, line]), f"{name}, line {number}")
            begun = []
        begun.append(rest)
        if not is_ready(stream):
            yield PAUSE
    yield from read_line(b"".join(begun), f"{name}, line {number + 1}")


def read_line(data: bytes, where: str) -> Iterator[Any]:
    """The input that a line holds, if it is not blank, or an error."""
    try:
        records.refuse_utf16(data)
        text, record = records.decode_utf8(data).strip(), {}
        if flags.FLAGS.json and text.startswith("{"):
            record = json_files.loads(text)
            text = record.get("input")
            if not isinstance(text, str):
                raise ValueError('expected an object with the key "input" and a text')
        if text:
            yield Line(text, where, record)
    except (records.NotUTF8, ValueError) as error:
        yield DataError(f"{where}: {error}")


def is_ready(stream: Any) -> bool:
    """Whether reading from a stream would not wait."""
    try:
        return bool(select.select([stream], [], [], 0)[0])
    except (io.UnsupportedOperation, TypeError, ValueError):  # of a file in memory, or a remote one
        return True


def continuations(trained: Trained, inputs: Iterable[Any], sampling: Sampling) -> Iterator[Answer]:
    """Answers with the text that continues each line; says on standard error how long it took."""
    from gmlp_flax.tasks.prediction import PAUSE, Answer

    task: CausalLanguageModeling = trained.task  # type: ignore[reportAssignmentType]
    for line in inputs:
        if line is PAUSE:
            continue
        began = time.perf_counter()
        try:
            if isinstance(line, DataError):
                raise line
            made = task.generate(trained.weights, line, sampling)
        except UserError as error:
            yield Answer(line, [], error)
            continue
        seconds = time.perf_counter() - began
        yield Answer(line, [], None, task.note_of_prompt(made.prompt_tokens), made.text)
        anew = f"; windows of {task.length} tokens read: {made.windows}" if made.windows > 1 else ""
        ended = ", where the model ended the text" if made.ended else ""
        rate = f"{made.new_tokens / seconds:,.0f} a second"
        print(f"{made.new_tokens} tokens in {seconds:.2f} s ({rate}){ended}{anew}", file=sys.stderr)


def show(candidates: Candidates) -> str:
    """Candidates in one line: name and probability in percent."""
    return "  ".join(
        f"{name.strip().translate(ESCAPES) or repr(name)} {100 * p:.1f}%" for name, p in candidates
    )


def define_flags() -> None:
    """Defines the flags of this command."""
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_integer("top", 5, "How many candidates to print.", lower_bound=1)
    flags.DEFINE_string(
        "model", None, "In the place of --workdir: whatever gmlp_flax.load takes, such as a name."
    )
    flags.DEFINE_integer(
        "batch_size", 32, "How many inputs the model reads at once.", lower_bound=1
    )
    flags.DEFINE_bool(
        "json", False, "Print a JSON object for each input, and read lines that are objects."
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
