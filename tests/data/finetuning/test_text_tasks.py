import pytest

from gmlp_flax.data import listops
from gmlp_flax.data.finetuning.text_tasks import (
    CLASS_TASKS,
    GLUE_TASKS,
    LONG_RANGE_TASKS,
    NUMBER_TASKS,
    custom_task,
)

ALL_TASKS = CLASS_TASKS | NUMBER_TASKS


@pytest.mark.parametrize("name", sorted({*GLUE_TASKS, *NUMBER_TASKS} - {"snli"}))
def test_columns_and_labels_match_tfds(name):
    """Label numbers in JSON lines and in TFDS's records follow the order of TFDS's builders.

    SNLI is not part of GLUE.
    """
    from tensorflow_datasets.text import glue

    builders = {builder.name: builder for builder in glue.Glue.BUILDER_CONFIGS}
    task = ALL_TASKS[name]
    if task.numbers is None:
        assert tuple(builders[name].label_classes) == task.labels
    for feature, names in zip(builders[name].text_features, task.texts, strict=True):
        assert feature in names


def test_snli_has_the_labels_of_mnli():
    assert GLUE_TASKS["snli"].labels == ("entailment", "neutral", "contradiction")
    assert GLUE_TASKS["mnli"].labels == GLUE_TASKS["snli"].labels


def test_listops_labels_are_digits_and_its_words_are_symbols():
    task = LONG_RANGE_TASKS["listops"]
    assert task.labels == tuple("0123456789")
    assert set(task.words) == {*listops.SYMBOLS, "(", ")"}


@pytest.mark.parametrize("name", ALL_TASKS)
def test_tasks_have_columns_and_a_file_of_predictions_for_each_part(name):
    """Headerless tables have the columns of the task."""
    task = ALL_TASKS[name]
    assert len(task.texts) in (1, 2)
    assert len(task.submission) == (2 if name == "mnli" else 1)
    if task.columns_without_header:
        columns = set(task.columns_without_header)
        for names in task.texts:
            assert columns & set(names)
        assert columns & set(task.label)


def test_custom_tasks_have_the_given_columns():
    text_columns = ("a", "b")
    pair = custom_task(text_columns, "c")
    assert pair.texts == (("a",), ("b",))
    assert pair.label == ("c",)
    assert pair.labels == ()
    assert pair.numbers is None
    assert pair.unlabelled == ()
    numbers = custom_task(("a",), "c", numbers=True)
    assert numbers.labels == ("score",)
    assert numbers.numbers.least < -3e38
    assert numbers.numbers.most > 3e38
