"""Uses a trained model: on image files, or on lines of text from standard input, as the run's task has it.

    echo "The [MASK] statement is used to define a function." | python -m gmlp_flax.predict --workdir=DIR
    python -m gmlp_flax.predict --workdir=DIR photo.jpg another.png
    printf 'A man plays.\tNobody plays.\n'                  | python -m gmlp_flax.predict --workdir=DIR
    printf 'Who plays?\tIn the park, a man plays.\n'         | python -m gmlp_flax.predict --workdir=DIR

A masked language model fills in each [MASK]. Of finetuned models, a classifier reads a sentence or, with a tab between
them, a pair, and one that answers questions a question and a passage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from absl import flags

from gmlp_flax import cli
from gmlp_flax.training.errors import RunError

if TYPE_CHECKING:
    from gmlp_flax.training.folder import Trained

Ranked = list[tuple[str, float]]  # candidates with their probabilities, best first


def fill(trained: Trained, line: str, top: int = 5) -> list[Ranked]:
    """The likeliest tokens for each [MASK] of a line.

    Args:
        trained: a masked language model.
        line: text with at least one [MASK].
        top: how many tokens.

    Raises:
        RunError: the line has no [MASK], or is longer than the model's sequences.
    """
    import jax
    import numpy as np

    tokenizer, model = trained.task.tokenizer, trained.config.model
    ids = [tokenizer.cls_id, *tokenizer.encode_masked(line), tokenizer.sep_id]
    positions = [place for place, token in enumerate(ids) if token == tokenizer.mask_id]
    if not positions:
        raise RunError(f"there is no [MASK] in {line!r}; put one where a token is to be predicted")
    if len(ids) > model.length:
        raise RunError(f"the line has {len(ids)} tokens, the model reads at most {model.length}: {line[:60]!r}...")
    if model.spatial == "dense" or model.block == "mixer":  # made for exactly this many tokens
        ids += [tokenizer.pad_id] * (model.length - len(ids))
    logits = jax.jit(trained.task.apply)(trained.weights, np.array([ids]), np.array([positions]))[0]
    return [_rank(scores, [tokenizer.piece(i) for i in range(tokenizer.vocab_size)], top) for scores in logits]


def classify(trained: Trained, paths: Sequence[str], top: int = 5) -> list[Ranked]:
    """The likeliest classes of image files.

    Raises:
        RunError: a file is missing.
        DataError: one does not decode.
    """
    import numpy as np

    pictures = []
    for path in paths:
        try:
            with open(path, "rb") as file:
                example = {"image": file.read(), "name": path, "label": 0}
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}") from None
        pictures.append(trained.task.evaluation_example(example)["image"])
    return rank_classes(trained, np.stack(pictures), top)


def rank_classes(trained: Trained, images, top: int = 5) -> list[Ranked]:
    """The likeliest classes of images, uint8 [batch, height, width, channels], as the model's evaluation sees them."""
    import jax

    logits = jax.jit(trained.task.apply)(trained.weights, images)
    return [_rank(scores, trained.task.names, top) for scores in logits]


def classify_text(trained: Trained, line: str, top: int = 5) -> Ranked:
    """The likeliest labels of a sentence, or of a pair with a tab between.

    Raises:
        RunError: there are more or fewer texts than the task has.
    """
    import jax
    import numpy as np

    from gmlp_flax.data import pairs

    task, texts = trained.task, line.split("\t")
    if len(texts) != len(task.glue.texts):
        expected = f"the task {len(task.glue.texts)}"
        raise RunError(f"the line has {len(texts)} text(s), separated by tabs, {expected}: {line[:60]!r}")
    first, second = pairs.encode_pairs(texts[:1], texts[1:] or None, task.tokenizer)
    length = trained.config.model.length
    source = pairs.Pairs(first, second, {}, length=length, tokenizer=task.tokenizer, name="the line")
    batch = {name: np.asarray(value)[None] for name, value in source[0].items()}
    logits = jax.jit(lambda params, batch: task.scores(params, batch, None))(trained.weights, batch)
    return _rank(logits[0], task.glue.labels, top)


def answer(trained: Trained, line: str, top: int = 5) -> Ranked:
    """The likeliest answers to a question, with a tab between it and its passage; "(no answer)" is one in v2.0.

    Raises:
        RunError: there is no passage.
    """
    import jax
    import numpy as np

    from gmlp_flax.data import squad, squad_answers, squad_windows

    task, options = trained.task, trained.config.squad
    question, _, passage = line.partition("\t")
    if not question.strip() or not passage.strip():
        raise RunError(f"give a question and a passage with a tab between them, not {line[:60]!r}")
    asked = [squad.Question("line", "", passage, question, ())]
    windows = squad_windows.Windows(
        asked, task.tokenizer, length=trained.config.model.length, stride=options.stride, max_query=options.max_query
    )
    evaluate, found = jax.jit(lambda params, batch: task.evaluate(params, batch)[1]), []
    for place in range(len(windows)):
        batch = {name: np.asarray(value)[None] for name, value in windows[place].items()}
        found.append(jax.device_get(evaluate(trained.weights, batch | {"weight": np.ones(1, np.float32)})))
    scores = squad_answers.SpanScores(**jax.tree.map(lambda *rows: np.concatenate(rows), *found))
    answers = squad_answers.find_answers(windows, scores, n_best=options.n_best, max_answer=options.max_answer)
    nulls = squad_answers.null_scores(windows, scores.null) if options.version == "v2.0" else None
    ranked = squad_answers.n_best_lists(asked, answers, nulls)["line"][:top]
    return [(entry["text"] or "(no answer)", entry["probability"]) for entry in ranked]


def _rank(scores, names: Sequence[str], top: int) -> Ranked:
    import jax

    values, indices = jax.lax.top_k(jax.nn.softmax(scores[: len(names)]), min(top, len(names)))
    return [(names[int(i)], float(value)) for value, i in zip(values, indices, strict=True)]


# What each task of text makes of a line: rows of candidates, each with what is printed before them.
READERS = {
    "masked_lm": lambda *given: [(f"[MASK] {n}: ", ranked) for n, ranked in enumerate(fill(*given), 1)],
    "text_classification": lambda *given: [("", classify_text(*given))],
    "question_answering": lambda *given: [("", answer(*given))],
}


def main(argv: list[str]) -> None:
    """Prints the candidates of each mask or image."""
    workdir = cli.required("workdir", "predict --workdir=DIR [IMAGE ...] < TEXT")
    from gmlp_flax.training import folder

    trained, paths, top = folder.load(workdir, flags.FLAGS.checkpoint), argv[1:], flags.FLAGS.top
    if trained.config.task == "image_classification":
        if not paths:
            cli.fail("give image files: python -m gmlp_flax.predict --workdir=DIR IMAGE [IMAGE ...]")
        for path, ranked in zip(paths, classify(trained, paths, top), strict=True):
            print(f"{path}: {show(ranked)}")
        return
    if paths:
        cli.fail(f"{workdir} holds a model of text: give it some on standard input, not {paths[0]}")
    for line in filter(str.strip, sys.stdin):
        print(line.strip())
        for label, ranked in READERS[trained.config.task](trained, line.strip(), top):
            print(f"  {label}{show(ranked)}")


def show(ranked: Ranked) -> str:
    """Candidates in one line: name and probability in percent."""
    return "  ".join(f"{name.strip() or repr(name)} {100 * value:.1f}%" for name, value in ranked)


if __name__ == "__main__":
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_integer("top", 5, "How many candidates to print.", lower_bound=1)
    cli.run(main, positional=True)
