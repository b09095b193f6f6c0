"""Long Range Arena's files of text: the layouts, the labels, and one line for each mistake."""

import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.finetuning.glue import LONG_RANGE_TASKS
from gmlp_flax.data.finetuning.sentences import open_sentences
from gmlp_flax.data.splits import Side
from gmlp_flax.io.records import BadRecords
from tests import failures
from tests.data import writers

PAIRS = '1.0\tP09-1\tW02-7\tfirst document \\xe9\tsecond "document\n0.0\tP09-1\tC90-3\tfirst document \\xe9\tthird\n'
LISTOPS = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 5 ) 6 ) ] )\t1\n"


def opened(path, task, side="train", bad=None, **options):
    return open_sentences(str(path), LONG_RANGE_TASKS[task], Side(side, **options), bad)


def failure(path, task) -> str:
    return failures.failure(opened, path, task)


def test_retrieval_as_published(tmp_path):
    """No header; labels as floats; a split by the end of the name. Equal documents are kept
    once."""
    for part, content in (
        ("train", PAIRS * 2),
        ("eval", PAIRS),
        ("test", PAIRS.replace(".0\t", "\t")),
    ):
        (tmp_path / f"new_aan_pairs.{part}.tsv").write_text(content)
    found = opened(tmp_path, "retrieval")
    assert len(found) == 4 and found.labels.tolist() == [1, 0, 1, 0]
    first, second = zip(*found.texts, strict=True)
    assert first[0] == "first document \\xe9" and second[:2] == ('second "document', "third")
    assert first[0] is first[1] is first[2]
    assert len(opened(tmp_path, "retrieval", "heldout")) == 2
    assert opened(tmp_path, "retrieval", "heldout", heldout_split="test").labels.tolist() == [1, 0]


@pytest.mark.parametrize("line", [0, 1])
def test_retrieval_with_another_number_of_columns(tmp_path, line):
    lines = PAIRS.splitlines()
    lines[line] = lines[line].rpartition("\t")[0]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    message = failure(tmp_path / "pairs.tsv", "retrieval")
    assert f"line {line + 1}: 4 columns where 5 were expected" in message
    bad = BadRecords(1)
    assert len(opened(tmp_path / "pairs.tsv", "retrieval", bad=bad)) == bad.count == 1


def test_listops_as_published(tmp_path):
    for part in ("train", "val", "test"):
        (tmp_path / f"basic_{part}.tsv").write_text(LISTOPS)
    found = opened(tmp_path, "listops")
    assert found.labels.tolist() == [9, 1] and found.texts[1] == ("( ( ( [SM 5 ) 6 ) ] )",)
    assert len(opened(tmp_path, "listops", "heldout")) == 2


def test_listops_with_other_symbols(tmp_path):
    (tmp_path / "basic_train.tsv").write_text(LISTOPS.replace("[SM", "[AVG"))
    message = failure(tmp_path / "basic_train.tsv", "listops")
    assert "line 3: the symbol '[AVG'; expected one of [MIN [MAX [MED [SM ] 0 1" in message


def test_reviews_as_tfds_prepares_them(tmp_path):
    """imdb_reviews: train, test, and reviews without a label, which no side reads."""
    rows = {
        "train": [(b"good", 1), (b"bad", 0)],
        "test": [(b"poor", 0)],
        "unsupervised": [(b"film", -1)],
    }
    splits = {
        name: [[writers.example(text=text, label=label) for text, label in of]]
        for name, of in rows.items()
    }
    features = {
        "text": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=("neg", "pos")),
    }
    folder = writers.tfds_folder(tmp_path / "1.0.0", splits, "array_record", **features)
    assert opened(folder, "imdb", heldout_split="test").labels.tolist() == [1, 0]
    assert opened(folder, "imdb", "heldout", heldout_split="test").texts == [("poor",)]
