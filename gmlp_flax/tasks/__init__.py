"""A task ties one model to its data, its loss and its metrics; each is a row in the table.

A task from elsewhere is named by its place instead: `my_package.my_task:MyTask`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gmlp_flax import registry

if TYPE_CHECKING:
    from gmlp_flax.tasks.base import Task

# Imported when one is chosen: image tasks load OpenCV, text tasks do not.
TASKS = {
    "masked_lm": "gmlp_flax.tasks.masked_lm:MaskedLanguageModeling",
    "causal_lm": "gmlp_flax.tasks.causal_lm:CausalLanguageModeling",
    "image_classification": "gmlp_flax.tasks.image_classification:ImageClassification",
    "text_classification": "gmlp_flax.tasks.text_classification:TextClassification",
    "text_regression": "gmlp_flax.tasks.text_regression:TextRegression",
    "question_answering": "gmlp_flax.tasks.question_answering:QuestionAnswering",
    "synthetic": "gmlp_flax.tasks.synthetic:Synthetic",
}


def find(name: str) -> type[Task]:
    """The task of a name in TASKS, or `my_package.my_task:MyTask`.

    Raises:
        ConfigError: there is no such task, or it cannot be imported.
    """
    from gmlp_flax.tasks.base import Task  # here, because it imports JAX

    return registry.find(name, TASKS, Task, "task")
