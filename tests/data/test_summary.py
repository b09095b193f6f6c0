"""Summaries of what was read: a data set, both roles together, and in a notebook."""

import dataclasses

import numpy as np
import pytest

from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.images.examples import ListedImages
from gmlp_flax.data.summary import (
    DataSummary,
    Inspection,
    count_tokens,
    line,
    names_of_classes,
    readable_size,
    summarize,
    summarize_examples,
)
from gmlp_flax.data.text_rows import TextRow, TextRows
from gmlp_flax.io.files import File
from tests.data.images import image_files


def reviews(labels=(0, 1, 1), **options) -> Dataset:
    rows = []
    for number in range(len(labels)):
        rows.append(TextRow((f"review {number}",), str(number)))
    defaults = {
        "path": "reviews.csv",
        "form": "rows with text and label",
        "split": "train",
        "classes": ("bad", "good"),
        "files": (File("reviews.csv", "reviews.csv", 2_500, ""),),
        "columns": ("text", "label"),
        "notes": ("2 rows without a label are left out",),
    }
    return Dataset(
        examples=TextRows(rows), labels=np.array(labels, np.int32), **(defaults | options)
    )


def values(summary: DataSummary) -> dict[str, str]:
    """The lines by name. Of lines with the same name, the last one is kept."""
    return dict(summary.rows())


def test_summaries_have_a_line_for_each_fact():
    found = values(summarize(reviews(), "train"))
    assert found["read"] == "reviews.csv"
    assert found["form"] == "rows with text and label"
    assert found["split"] == "train"
    assert found["files"] == "1 file (reviews.csv)"
    assert found["size"] == "2.5 kB"
    assert found["rows"] == "3"
    assert found["columns"] == "text, label"
    assert found["labels"] == "2 classes: bad (1), good (2)"
    assert found["example 1"] == "review 0  -> bad"
    assert found["example 3"] == "review 2  -> good"
    assert found["note"] == "2 rows without a label are left out"


def test_unknown_facts_have_no_line():
    dataset = reviews(split="", files=(), columns=(), notes=())
    found = values(summarize(dataset, "train"))
    assert not found.keys() & {"split", "files", "columns", "note", "tokens"}


def test_long_texts_are_cut_to_eighty_columns():
    long = TextRows([TextRow(("word " * 100,), "0")])
    dataset = dataclasses.replace(reviews(labels=(1,)), examples=long)
    (shown,) = summarize(dataset, "train").shown
    text, _, label = shown.rpartition("  -> ")
    assert len(text) == 80
    assert text.endswith("...")
    assert label == "good"


def test_images_are_described_by_size_mode_and_class(tmp_path):
    image = image_files.png(0, size=(7, 5))
    image_files.make_folder(tmp_path / "photos", {"cat/a.png": image})
    name = str(tmp_path / "photos" / "cat" / "a.png")
    dataset = Dataset(
        path="photos",
        form="class folders",
        examples=ListedImages(["cat/a.png"], [name]),
        classes=("cat",),
        labels=np.zeros(1, np.int32),
    )
    assert summarize(dataset, "train").shown == ("cat/a.png: 5 x 7, PNG RGB  -> cat",)


def test_unreadable_examples_are_reported():
    dataset = Dataset(
        path="photos",
        form="class folders",
        examples=ListedImages(["a.png"], [b"no image"]),
        classes=("cat",),
        labels=np.zeros(1, np.int32),
    )
    (shown,) = dataset.some(3)
    assert "cannot be" in shown


def test_runs_print_one_line_without_examples():
    assert line(reviews(), "heldout") == (
        "heldout: rows with text and label; split 'train'; 3 rows; 1 file (reviews.csv); columns "
        "text, label; 2 classes: bad (1), good (2)"
    )


def test_only_the_smallest_and_largest_of_many_classes_have_counts():
    sizes = {f"class {number}": 100 + number for number in range(30)}
    sizes["class 7"] = 3
    sizes["class 9"] = 4_000
    words = names_of_classes(sizes)
    assert words.startswith("30 classes: class 0, class 1, class 2")
    assert words.endswith("the smallest class 7 (3), the largest class 9 (4,000)")


def test_classes_of_unknown_sizes_have_no_counts():
    assert names_of_classes({"a": None, "b": None}) == "2 classes: a, b"


def test_token_statistics_by_hand():
    """[UNK] is 1; two of the four examples are longer than three tokens."""
    examples = ([5, 1], [1, 1, 6, 7], [8], [5, 6, 7, 8, 9])
    ids = [np.array(example) for example in examples]
    tokens = count_tokens(ids, unknown_id=1, most=3)
    assert dataclasses.asdict(tokens) == {
        "examples": 4,
        "shortest": 1,
        "median": 3,
        "longest": 5,
        "unknown": pytest.approx(3 / 12),
        "cut": pytest.approx(0.5),
    }
    assert str(tokens) == (
        "1 to 5, in the median 3; 25.0% are [UNK]; 50.0% of the examples are cut (in 4 examples)"
    )


def test_token_statistics_of_a_single_example():
    tokens = count_tokens([np.arange(12)], unknown_id=50)
    assert str(tokens).startswith("12; 0.0% are [UNK]; 0.0%")


def test_plain_examples_are_summarized():
    """User-defined tasks may have plain lists of examples."""
    series = np.zeros(4, np.float32)
    examples = [{"series": series, "label": np.int32(number)} for number in (3, 8)]
    summary = summarize_examples(examples, "Waves", "train")
    assert summary.examples == 2
    assert summary.shown == ("series float32 [4], label 3", "series float32 [4], label 8")
    assert values(summary)["form"] == "Waves"


def test_both_roles_are_shown_in_terminals_and_notebooks():
    """Names come from the data, so HTML is escaped."""
    train = summarize(reviews(classes=("<b>bad</b>", "good")), "train")
    heldout = summarize(reviews(labels=(1,)), "heldout")
    both = Inspection(train, heldout, ("1 example is in both",))
    lines = str(both).splitlines()
    assert lines[0] == "train"
    assert "heldout" in lines
    assert lines[-1] == "1 example is in both"
    assert repr(both) == str(both)
    html = both._repr_html_()
    assert html.count("<table>") == 2
    assert "&lt;b&gt;bad&lt;/b&gt;" in html
    assert "<b>" not in html
    assert html.endswith("<p>1 example is in both</p>")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1 kB"),
        (2_345_678, "2.346 MB"),
        (5e12, "5,000 GB"),
    ],
)
def test_sizes_have_decimal_units(size, words):
    assert readable_size(size) == words
