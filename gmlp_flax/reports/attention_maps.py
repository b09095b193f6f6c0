"""The report of tiny attention in a pair of sentences: Figure 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gmlp_flax.analysis import attention
from gmlp_flax.errors import RunError
from gmlp_flax.paper.tables import PaperTable
from gmlp_flax.reports.report import Report
from gmlp_flax.reports.runs import Run, setting, task_of, unfinished
from gmlp_flax.reports.table import Table
from gmlp_flax.training import loading

# A pair as in MNLI: the second sentence contradicts the first.
PAIR = ("A man is playing a guitar in the street.", "Nobody is making music outside.")


def attention_in_a_pair(
    table: PaperTable, runs: Sequence[Run], scale: str, tuned: Mapping[str, Sequence[Run]]
) -> Report:
    """Figure 10: how much each token of a pair looks at each other token, in the first finetuned run.

    Raises:
        RunError: there is no finetuned run.
    """
    (row,), (task,) = table.rows, table.tasks
    pretrained = (run for run in tuned.get(row, ()) if run.finished and run.config.init_parameters)
    runs_of_task = [run for run in pretrained if task_of(run.config) == task]
    if not runs_of_task:
        raise RunError(f"{row} was not finetuned on {task}, which is drawn: give --finetune={task}=DATA")
    path = runs_of_task[0].path
    trained = loading.load(path)
    sentences = attention.encode(trained, *PAIR)
    count = len(sentences.labels)
    maps = attention.maps(trained, sentences)[:, :count, :count]
    segments = sentences.segments[:count]
    numbers, depth = attention.layer_numbers(trained)
    lines = [(number, *map(float, shares)) for number, shares in zip(numbers, across(maps, segments), strict=True)]
    even = float(across(np.full((1, count, count), 1 / count), segments)[0, 0])
    notes = (
        *unfinished(runs[:1]),
        f"Finetuned: {path}. The pair: {' / '.join(PAIR)}",
        "Across: the share of its weight that a token gives to the other sentence, a mean over tokens. Within and "
        f"across add up to less than 1 if weight lies on padding. Equal weights on the {count} tokens would give "
        f"{even:.3f}. The image shows the largest weight in the layers of the first half, as in the paper, which sees "
        "sentences align there.",
    )
    half = attention.first_half(numbers, depth)
    figures = {
        "attention": attention.draw_largest(maps[:half], sentences, numbers[:half]),
        "layers": attention.draw_layers(maps, numbers),
    }
    columns = ("layer", "across", "within", "largest weight across")
    return Report(table.title, Table(columns, lines), setting=setting(table, runs, scale), notes=notes, figures=figures)


def across(maps: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """How attention is shared between two sentences.

    Args:
        maps: weights [layers, n, n], rows look at columns.
        segments: the sentence of each token, [n].

    Returns:
        [layers, 3]: the mean weight that a token gives to the other sentence, the mean weight that it gives to its own,
        and the largest weight between the two.
    """
    other = segments[:, None] != segments[None]
    shares = [np.where(pairs, maps, 0).sum(-1).mean(-1) for pairs in (other, ~other)]
    return np.stack([*shares, np.where(other, maps, 0).max((-1, -2))], axis=-1)
