"""A task ties one model to its data, its loss and its metrics; one file a task, one row in the table."""

from __future__ import annotations

from ml_collections import ConfigDict

from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling

TASKS: dict[str, type[Task]] = {
    "masked_lm": MaskedLanguageModeling,
    "image_classification": ImageClassification,
}


def create(config: ConfigDict, folder: str) -> Task:
    """The task of a config. What belongs to a run beside its parameters is read from its folder where it exists."""
    return TASKS[config.task](config, folder)
