"""A report of what tiny attention looks at in a pair of sentences: Figure 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gmlp_flax.analysis import attention
from gmlp_flax.analysis.gathering import Run, task_of
from gmlp_flax.analysis.one_run import OneRun
from gmlp_flax.analysis.report import Report
from gmlp_flax.analysis.tables import Table
from gmlp_flax.training import folder
from gmlp_flax.training.errors import RunError

# A pair as MNLI's: the second contradicts the first.
PAIR = ("A man is playing a guitar in the street.", "Nobody is making music outside.")


class AttentionMaps(OneRun):
    """Figure 10: how much each token of a pair looks at each other one, after finetuning."""

    def make(self, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]) -> Report:
        """Reports on the first finetuned run.

        Raises:
            RunError: there is none.
        """
        found = [run for run in tuned.get(self.row, ()) if run.finished and task_of(run.config) in self.tasks]
        if not found:
            task = self.tasks[0]
            raise RunError(f"{self.row} was not finetuned on {task}, which is drawn: give --finetune={task}=DATA")
        trained = folder.load(found[0].path)
        sentences = attention.encode(trained, *PAIR)
        count = len(sentences.labels)
        maps = attention.maps(trained, sentences)[:, :count, :count]
        segments = sentences.segments[:count]
        lines = [(layer, *map(float, row)) for layer, row in enumerate(across(maps, segments), start=1)]
        half = maps[: max(1, len(maps) // 2)]
        notes = (
            *self.setting(runs[0], scale),
            f"Finetuned: {found[0].path}. The pair: {' / '.join(PAIR)}",
            "Across: the share of its weight that a token gives to the other sentence, a mean over tokens; what is "
            f"missing to 1 within and across lies on padding. Even attention on the {count} tokens would give "
            f"{float(across(np.full((1, count, count), 1 / count), segments)[0, 0]):.3f}. The picture has the largest "
            "weight in the layers of the first half, as the paper's, in which sentences are seen to align.",
        )
        figures = {"attention": attention.draw_largest(half, sentences), "layers": attention.draw_layers(maps)}
        return Report(self.title, notes, Table(("layer", "across", "within", "largest weight across"), lines), figures)


def across(maps: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """How attention is shared among two sentences.

    Args:
        maps: weights [layers, n, n], rows look at columns.
        segments: the sentence of each token, [n].

    Returns:
        [layers, 3]: the mean weight that a token gives to the other sentence and to its own, and the largest across.
    """
    other = segments[:, None] != segments[None]
    shares = [np.where(pairs, maps, 0).sum(-1).mean(-1) for pairs in (other, ~other)]
    return np.stack([*shares, np.where(other, maps, 0).max((-1, -2))], axis=-1)
