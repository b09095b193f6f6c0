"""A task ties one model to its data, its loss and its metrics: one file per task, one row in the
table.

A task from elsewhere is named by its place instead: `my_package.my_task:MyTask`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from ml_collections import ConfigDict

from gmlp_flax import registry
from gmlp_flax.tasks.base import Task

# Imported when one is chosen: image tasks load OpenCV, text tasks do not.
TASKS = {
    "masked_lm": "gmlp_flax.tasks.masked_lm:MaskedLanguageModeling",
    "causal_lm": "gmlp_flax.tasks.causal_lm:CausalLanguageModeling",
    "image_classification": "gmlp_flax.tasks.image_classification:ImageClassification",
    "text_classification": "gmlp_flax.tasks.text_classification:TextClassification",
    "text_regression": "gmlp_flax.tasks.text_regression:TextRegression",
    "question_answering": "gmlp_flax.tasks.question_answering:QuestionAnswering",
}


def find(name: str) -> type[Task]:
    """The task of a name in TASKS, or `my_package.my_task:MyTask`.

    Raises:
        ConfigError: there is no such task, or it cannot be imported.
    """
    return registry.find(name, TASKS, Task, "task")


def create(
    config: ConfigDict, folder: str, inherited: Mapping[str, bytes] = MappingProxyType({})
) -> Task:
    """The task of a config. Its files beside the parameters come from the run's folder if they
    exist there, else from `inherited`: the run that it starts from, or a checkpoint."""
    return find(config.task)(config, folder, inherited)
