"""Uses a trained model: fills [MASK] in lines of text from standard input, or classifies image files.

    echo "The [MASK] statement is used to define a function." | python -m gmlp_flax.predict --workdir=DIR
    python -m gmlp_flax.predict --workdir=DIR photo.jpg another.png
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


def _rank(scores, names: Sequence[str], top: int) -> Ranked:
    import jax

    values, indices = jax.lax.top_k(jax.nn.softmax(scores[: len(names)]), min(top, len(names)))
    return [(names[int(i)], float(value)) for value, i in zip(values, indices, strict=True)]


def main(argv: list[str]) -> None:
    """Prints the candidates of each mask or image."""
    workdir = cli.required("workdir", "predict --workdir=DIR [IMAGE ...] < TEXT")
    from gmlp_flax.training import folder

    trained, paths = folder.load(workdir, flags.FLAGS.checkpoint), argv[1:]
    if trained.config.task == "image_classification":
        if not paths:
            cli.fail("give image files: python -m gmlp_flax.predict --workdir=DIR IMAGE [IMAGE ...]")
        for path, ranked in zip(paths, classify(trained, paths, flags.FLAGS.top), strict=True):
            print(f"{path}: {show(ranked)}")
        return
    if paths:
        cli.fail(f"{workdir} holds a language model: give it text on standard input, not {paths[0]}")
    for line in filter(str.strip, sys.stdin):
        print(line.strip())
        for number, ranked in enumerate(fill(trained, line.strip(), flags.FLAGS.top), 1):
            print(f"  [MASK] {number}: {show(ranked)}")


def show(ranked: Ranked) -> str:
    """Candidates in one line: name and probability in percent."""
    return "  ".join(f"{name.strip() or repr(name)} {100 * value:.1f}%" for name, value in ranked)


if __name__ == "__main__":
    cli.define_run_flags(checkpoint="best")
    flags.DEFINE_integer("top", 5, "How many candidates to print.", lower_bound=1)
    cli.run(main, positional=True)
