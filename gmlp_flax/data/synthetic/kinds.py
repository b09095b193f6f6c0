"""The synthetic tasks by name, and their data sets."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gmlp_flax.data.dataset import Dataset, Examples, line_of
from gmlp_flax.data.fingerprints import Fingerprint, digest
from gmlp_flax.data.holdout import ROLES, TRAIN
from gmlp_flax.data.synthetic import mad, mqar, recipe
from gmlp_flax.data.synthetic.recipe import IGNORED, Recipe

CHUNK = 256  # examples that are drawn at once, by a generator of their own


@dataclasses.dataclass(frozen=True)
class Kind:
    """A synthetic task.

    Attributes:
        title: for people.
        generate: makes examples of a recipe.
        check: raises ConfigError for a recipe whose sizes do not fit together.
        answers: how many answers, at least, are equally likely without reading the example.
        guess: what a guess among them is, in words.
        most_asked: how many answers an example may ask for, at most.
        compresses: whether the state of the last token alone is decoded.
    """

    title: str
    generate: Callable[[Recipe, np.random.Generator, int, bool], recipe.Examples]
    check: Callable[[Recipe], None]
    answers: Callable[[Recipe], int]
    guess: str
    most_asked: Callable[[Recipe], int]
    compresses: bool = False


def _half(recipe: Recipe) -> int:
    return recipe.length // 2


KINDS: dict[str, Kind] = {
    "mqar": Kind(
        "multi-query associative recall",
        mqar.generate,
        mqar.check,
        answers=lambda recipe: recipe.pairs,
        guess="a value of the example at random",
        most_asked=lambda recipe: recipe.pairs,
    ),
    "recall": Kind(
        "in-context recall",
        mad.recall,
        mad.check_recall,
        answers=lambda recipe: recipe.vocab_size - recipe.vocab_size // 2,
        guess="a value at random",
        most_asked=_half,
    ),
    "fuzzy_recall": Kind(
        "fuzzy in-context recall",
        mad.fuzzy_recall,
        mad.check_fuzzy_recall,
        answers=lambda recipe: recipe.vocab_size // 2,
        guess="a token of a value at random",
        most_asked=lambda recipe: recipe.length,
    ),
    "noisy_recall": Kind(
        "noisy in-context recall",
        mad.noisy_recall,
        mad.check_noisy_recall,
        answers=lambda recipe: (recipe.vocab_size - recipe.noise_tokens + 1) // 2,
        guess="a value at random",
        most_asked=_half,
    ),
    "selective_copying": Kind(
        "selective copying",
        mad.selective_copying,
        mad.check_selective_copying,
        answers=lambda recipe: recipe.vocab_size - 2,
        guess="a symbol at random",
        most_asked=lambda recipe: recipe.copied,
    ),
    "compression": Kind(
        "compression",
        mad.compression,
        mad.check_compression,
        answers=lambda recipe: recipe.vocab_size - 1,
        guess="a symbol at random",
        most_asked=lambda recipe: recipe.length,
        compresses=True,
    ),
    "memorization": Kind(
        "memorization",
        mad.memorization,
        mad.check_memorization,
        answers=lambda recipe: (recipe.vocab_size - 1) // 2,
        guess="a value at random",
        most_asked=_half,
    ),
}


class SyntheticExamples(Examples):
    """Examples that are drawn when they are first needed; a function of the recipe, the seed, the
    role and their position alone.

    Args:
        kind: a name in KINDS.
        made_of: the sizes.
        role: "train" or "heldout".
        seed: of the data.
        count: how many there are.
    """

    def __init__(self, kind: str, made_of: Recipe, role: str, seed: int, count: int):
        self.kind = kind
        self.recipe = made_of
        self.role = role
        self.seed = seed
        self._count = count
        self._chunks: dict[int, recipe.Examples] = {}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """{"tokens", "targets"}, int32 [tokens] each."""
        number, row = divmod(index, CHUNK)
        if number not in self._chunks:
            self._chunks[number] = self._draw(number)
        chunk = self._chunks[number]
        return {"tokens": chunk.tokens[row], "targets": chunk.targets[row]}

    def _draw(self, number: int) -> recipe.Examples:
        role_number = ROLES.index(self.role)
        entropy = [self.seed, role_number, number]
        rng = np.random.default_rng(entropy)
        kind = KINDS[self.kind]
        is_training = self.role == TRAIN
        return kind.generate(self.recipe, rng, CHUNK, is_training)

    def __getstate__(self) -> dict[str, Any]:
        """Of a worker process, which draws its own."""
        return {**self.__dict__, "_chunks": {}}

    def key(self, index: int) -> str:
        """See `Examples`."""
        return str(index)

    def content(self, index: int) -> bytes:
        """See `Examples`: the tokens."""
        example = self[index]
        return example["tokens"].tobytes()

    def fingerprint(self, classes: Sequence[str], labels: np.ndarray | None) -> Fingerprint:
        """See `Examples`."""
        made_of = f"{self.kind} {self.recipe} {self.role} {self.seed}"
        return {
            "examples": len(self),
            "made of": digest([made_of]),
        }

    def describe(self, index: int) -> str:
        """See `Examples`: the tokens, each followed by its answer if one is asked for."""
        example = self[index]
        tokens = example["tokens"]
        targets = example["targets"]
        words = []
        for token, target in zip(tokens, targets, strict=True):
            word = str(token)
            if target != IGNORED:
                word += f">{target}"
            words.append(word)
        text = " ".join(words)
        return line_of(text)


def dataset(kind: str, made_of: Recipe, role: str, seed: int, count: int) -> Dataset:
    """The data set of a role; the arguments are those of `SyntheticExamples`."""
    title = KINDS[kind].title
    form = f"{title}, generated from seed {seed}"
    examples = SyntheticExamples(kind, made_of, role, seed, count)
    return Dataset("", form, examples, split=role)
