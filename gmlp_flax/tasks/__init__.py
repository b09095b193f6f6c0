"""A task ties one model to its data, its loss and its metrics; one file a task, one row in the table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ml_collections import ConfigDict

from gmlp_flax.tasks.base import Task
from gmlp_flax.tasks.image_classification import ImageClassification
from gmlp_flax.tasks.masked_lm import MaskedLanguageModeling
from gmlp_flax.tasks.question_answering import QuestionAnswering
from gmlp_flax.tasks.text_classification import TextClassification

TASKS: dict[str, type[Task]] = {
    "masked_lm": MaskedLanguageModeling,
    "image_classification": ImageClassification,
    "text_classification": TextClassification,
    "question_answering": QuestionAnswering,
}


def create(config: ConfigDict, folder: str, inherited: Mapping[str, bytes] = MappingProxyType({})) -> Task:
    """The task of a config. What belongs to a run beside its parameters is read from its folder where it exists, or is
    `inherited` from the run that it starts from."""
    return TASKS[config.task](config, folder, inherited)
