import pytest

from gmlp_flax.data import listops
from gmlp_flax.data.finetuning.text_tasks import (
    CLASS_TASKS,
    GLUE_TASKS,
    LONG_RANGE_TASKS,
    NUMBER_TASKS,
    custom_task,
)


@pytest.mark.parametrize("name", sorted({*GLUE_TASKS, *NUMBER_TASKS} - {"snli"}))
def test_columns_and_labels_are_those_of_tfds(name):
    """In the order of TFDS's builders, which numbered labels follow, in JSON lines and in TFDS's
    records. SNLI is not part of GLUE."""
    from tensorflow_datasets.text import glue

    builders = {builder.name: builder for builder in glue.Glue.BUILDER_CONFIGS}
    task = (CLASS_TASKS | NUMBER_TASKS)[name]
    if task.numbers is None:
        assert tuple(builders[name].label_classes) == task.labels
    for feature, names in zip(builders[name].text_features, task.texts, strict=True):
        assert feature in names


def test_snli_has_the_labels_of_mnli():
    assert GLUE_TASKS["snli"].labels == ("entailment", "neutral", "contradiction")
    assert GLUE_TASKS["mnli"].labels == GLUE_TASKS["snli"].labels


def test_listops_has_its_own_symbols():
    task = LONG_RANGE_TASKS["listops"]
    assert task.labels == tuple("0123456789")
    assert set(task.words) == {*listops.SYMBOLS, "(", ")"}


@pytest.mark.parametrize("name", [*CLASS_TASKS, *NUMBER_TASKS])
def test_tasks_are_whole(name):
    """Tables without a header have the columns of the task; each part has a file of predictions."""
    task = (CLASS_TASKS | NUMBER_TASKS)[name]
    assert len(task.texts) in (1, 2)
    assert len(task.submission) == (2 if name == "mnli" else 1)
    if task.columns_without_header:
        columns = set(task.columns_without_header)
        for names in task.texts:
            assert columns & set(names)
        assert columns & set(task.label)


def test_own_tasks():
    pair = custom_task(("a", "b"), "c")
    assert pair.texts == (("a",), ("b",))
    assert pair.label == ("c",)
    assert pair.labels == ()
    assert pair.numbers is None
    assert pair.unlabelled == ()
    numbers = custom_task(("a",), "c", numbers=True)
    assert numbers.labels == ("score",)
    assert numbers.numbers.least < -3e38 < 3e38 < numbers.numbers.most
