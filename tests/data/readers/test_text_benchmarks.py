"""GLUE, SNLI and Long Range Arena as published; other files are refused."""

import gzip

import numpy as np
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data import splits
from gmlp_flax.data.classes import UNLABELLED
from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning.text_tasks import CLASS_TASKS, NUMBER_TASKS
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.readers import text_benchmarks
from gmlp_flax.data.splits import Request
from gmlp_flax.io.records import BadRecords
from tests.data import writers
from tests.failures import failure

TASKS = CLASS_TASKS | NUMBER_TASKS
SST2 = "sentence\tlabel\na fine film \t1\ndull\t0\n"
MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
)


def mnli_row(index: int, premise: str, label: str = "neutral") -> str:
    ids = f"{index}\tp{index}\tp{index}n"
    texts = f"{premise}\tIt is {index}."
    return f"{ids}\tfiction\t(A a)\t{texts}\tx\t{label}\n"


def write(path, content: str | bytes) -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(path, task: str = "sst2", bad: BadRecords | None = None) -> Splits:
    records = bad or BadRecords()
    return text_benchmarks.read(str(path), TASKS[task], records)


def read_all(path, task: str = "sst2", bad: BadRecords | None = None) -> dict[str, Dataset]:
    return dict(read(path, task, bad))


def roles(path, task: str = "sst2", share: float = 0.1, **options) -> tuple[Dataset, Dataset]:
    """The examples to train on, and the held-out examples."""
    found = read(path, task)
    train_request = Request(TRAIN, heldout_share=share, **options)
    heldout_request = Request(HELDOUT, heldout_share=share, **options)
    train = splits.choose(found, train_request)
    heldout = splits.choose(found, heldout_request)
    return train, heldout


def firsts(dataset: Dataset) -> list[str]:
    return [row.texts[0] for row in dataset.examples.rows]


def seconds(dataset: Dataset) -> list[str]:
    return [row.texts[1] for row in dataset.examples.rows]


def ids(dataset: Dataset) -> list[str]:
    return [row.id for row in dataset.examples.rows]


def parts(dataset: Dataset) -> list[int]:
    return [row.part for row in dataset.examples.rows]


@pytest.mark.smoke
def test_files_are_read(tmp_path):
    path = write(tmp_path / "a.tsv", SST2)
    dataset = read(path)[""]
    assert firsts(dataset) == ["a fine film", "dull"]
    assert ids(dataset) == ["0", "1"]
    assert parts(dataset) == [0, 0]
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.labels.dtype == np.int32
    assert dataset.classes == ("negative", "positive")
    assert dataset.columns == ("sentence", "label")
    assert dataset.form == text_benchmarks.FORM


# The header of each file of GLUE, a row, and the texts, label and id of the row.
GLUE_FILES = {
    "cola": ("", "gj04\t0\t*\tThe ball wriggled.\n", (("The ball wriggled.",), 0, "0")),
    "sst2": ("sentence\tlabel\n", '"said" ""no""\t1\n', (('"said" ""no""',), 1, "0")),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n",
        "1\t702876\t702977\tOne.\tTwo.\r\n",
        (("One.", "Two."), 1, "0"),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
        "133273\t213221\t213222\tWhy?\tHow?\t1\n",
        (("Why?", "How?"), 1, "133273"),
    ),
    "mnli": (
        MNLI_HEADER,
        mnli_row(7, "They go.", "contradiction"),
        (("They go.", "It is 7."), 2, "7"),
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n",
        "4\tWho?\tNobody.\tnot_entailment\n",
        (("Who?", "Nobody."), 1, "4"),
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n",
        "9\tA b.\tA.\tentailment\n",
        (("A b.", "A."), 0, "9"),
    ),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n", "2\tA.\tB.\t1\n", (("A.", "B."), 1, "2")),
    "snli": (
        "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tcaptionID\tpairID\tlabel1\n",
        "neutral\t( A )\tA man.\tA woman.\t34#4\t34#4r1n\tneutral\n",
        (("A man.", "A woman."), 1, "34#4r1n"),
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n",
        "3\tmain\tMSRvid\t2012\t1\tnone\tnone\tA plane.\tA train.\t3.250\n",
        (("A plane.", "A train."), 3.25, "3"),
    ),
}


@pytest.mark.parametrize("task", GLUE_FILES)
def test_files_of_glue_are_read(tmp_path, task):
    header, row, expected = GLUE_FILES[task]
    texts, label, row_id = expected
    write(tmp_path / "train.tsv", header + row)
    (dataset,) = read_all(tmp_path, task).values()
    (example,) = dataset.examples.rows
    assert example.texts == texts
    assert example.id == row_id
    assert dataset.labels.tolist() == [label]
    assert dataset.split == "train"


@pytest.fixture
def mnli(tmp_path):
    """A folder of MNLI as GLUE ships it, whose premises are letters."""
    premises = {
        "train": "abc",
        "dev_matched": "de",
        "dev_mismatched": "fgh",
        "test_matched": "i",
        "test_mismatched": "jk",
    }
    for name, texts in premises.items():
        rows = [mnli_row(index, text) for index, text in enumerate(texts)]
        write(tmp_path / f"{name}.tsv", MNLI_HEADER + "".join(rows))
    write(tmp_path / "original" / "multinli_1.0_train.txt", "not read")
    write(tmp_path / "diagnostic" / "train.tsv", "not read")
    return tmp_path


def test_both_parts_of_mnli_are_held_out(mnli):
    train, heldout = roles(mnli, "mnli")
    assert firsts(train) == ["a", "b", "c"]
    assert parts(train) == [0, 0, 0]
    assert firsts(heldout) == ["d", "e", "f", "g", "h"]
    assert parts(heldout) == [0, 0, 1, 1, 1]
    assert ids(heldout) == ["0", "1", "0", "1", "2"]
    assert heldout.split == "validation"
    assert len(heldout.files) == 2
    for dataset in (train, heldout):
        (note,) = dataset.notes
        assert "2 files not read (.tsv 1, .txt 1)" in note


def test_parts_of_mnli_are_splits_too(mnli):
    test = read(mnli, "mnli")["test"]
    assert firsts(test) == ["i", "j", "k"]
    _, heldout = roles(mnli, "mnli", heldout_split="test")
    assert firsts(heldout) == ["i", "j", "k"]
    _, heldout = roles(mnli, "mnli", heldout_split="dev_mismatched")
    assert firsts(heldout) == ["f", "g", "h"]
    train, _ = roles(mnli, "mnli", split="dev_matched", heldout_split="test")
    assert firsts(train) == ["d", "e"]


def test_a_single_part_of_mnli_may_be_read(tmp_path):
    write(tmp_path / "dev_mismatched.tsv", MNLI_HEADER + mnli_row(0, "a"))
    found = read_all(tmp_path, "mnli")
    assert set(found) == {"validation_mismatched", "validation"}
    assert parts(found["validation"]) == [1]


def test_other_tasks_have_no_parts(tmp_path):
    header, row, _ = GLUE_FILES["rte"]
    write(tmp_path / "dev_mismatched.tsv", header + row)
    dataset = read(tmp_path, "rte")["validation"]
    assert parts(dataset) == [0]


JSON_ROWS = [
    {"sentence1": "A b.", "sentence2": "A.", "label": "entailment", "idx": 5},
    {"sentence1": "A b.", "sentence2": "B.", "label": 1, "idx": 6},
    {"sentence1": "A b.", "sentence2": "C.", "label": "0", "idx": 7},
]


@pytest.mark.parametrize("name", ["train.jsonl", "x_train.json.gz", "my-train.jsonl"])
def test_json_lines_have_names_and_numbers(tmp_path, name):
    content = writers.json_lines(*JSON_ROWS)
    if name.endswith(".gz"):
        content = gzip.compress(content)
    write(tmp_path / name, content)
    dataset = read(tmp_path, "rte")["train"]
    assert dataset.labels.tolist() == [0, 1, 0]
    assert ids(dataset) == ["5", "6", "7"]
    assert seconds(dataset) == ["A.", "B.", "C."]


def test_columns_may_have_other_names_and_another_order(tmp_path):
    path = write(tmp_path / "a.csv", 'hypothesis,premise,label\n"B, c",A,2\n')
    dataset = read(path, "snli")[""]
    assert dataset.examples.rows[0].texts == ("A", "B, c")
    assert dataset.columns == ("premise", "hypothesis", "label")
    assert dataset.labels.tolist() == [2]


def shard(folder, name: str, size: int = 1) -> None:
    texts = [f"{name} {number}" for number in range(size)]
    hypotheses = ["h"] * size
    labels = [0] * size
    path = folder / f"{name}.parquet"
    writers.parquet(path, premise=texts, hypothesis=hypotheses, label=labels)


def test_shards_of_hugging_face_are_splits(tmp_path):
    shard(tmp_path, "train-00000-of-00002", 2)
    shard(tmp_path, "train-00001-of-00002", 2)
    shard(tmp_path, "validation_matched-00000-of-00001")
    found = read_all(tmp_path, "mnli")
    assert set(found) == {"train", "validation_matched", "validation"}
    train = found["train"]
    assert firsts(train) == [
        "train-00000-of-00002 0",
        "train-00000-of-00002 1",
        "train-00001-of-00002 0",
        "train-00001-of-00002 1",
    ]
    assert ids(train) == ["0", "1", "2", "3"]


def test_two_sets_of_shards_are_refused(tmp_path):
    shard(tmp_path, "train-00000-of-00001")
    shard(tmp_path, "train-00000-of-00002")
    shard(tmp_path, "train-00001-of-00002")
    message = failure(read, tmp_path, "mnli")
    assert "'train'" in message
    assert "train-00000-of-00001.parquet" in message


def test_missing_shards_are_refused(tmp_path):
    shard(tmp_path, "train-00000-of-00002")
    assert "00001-of-00002" in failure(read, tmp_path, "mnli")


@pytest.mark.parametrize(
    ("files", "keys"),
    [
        (["train.csv", "train.tsv"], ["'train.csv'", "'train.tsv'"]),
        (["train.tsv", "x_training.tsv"], ["'train.tsv'", "'x_training.tsv'"]),
        (["sub/x_train.tsv"], ["train.tsv or dev.tsv", "sub/x_train.tsv"]),
        (["trains.tsv", "dev_ids.tsv"], ["dev_ids.tsv, trains.tsv"]),
        (["train.txt"], ["train.txt"]),
        ([], ["no files"]),
    ],
)
def test_ambiguous_and_empty_folders_are_refused(tmp_path, files, keys):
    for name in files:
        write(tmp_path / name, SST2)
    message = failure(read, tmp_path)
    for key in (str(tmp_path), *keys):
        assert key in message


def test_other_files_are_counted(tmp_path):
    """MRPC's dev_ids.tsv has no examples."""
    for name in ("train", "dev", "dev_ids"):
        write(tmp_path / f"{name}.tsv", SST2)
    found = read_all(tmp_path)
    assert set(found) == {"train", "validation"}
    for dataset in found.values():
        assert len(dataset) == 2
        assert ".tsv 1" in dataset.notes[0]


def rows_with_splits(path, column: str, words, ids=(0, 0, 1, 1)) -> str:
    """Writes rows whose column names their split, and returns the path."""
    rows = []
    for number, word in enumerate(words):
        row_id = ids[number]
        row = {"sentence": f"s{number}", "label": 0, "idx": row_id}
        row[column] = word
        rows.append(row)
    content = writers.json_lines(*rows)
    return write(path / "a.jsonl", content)


@pytest.mark.parametrize("column", ["tag", "split"])
def test_rows_are_split_by_a_column(tmp_path, column):
    """Ids may be repeated in another split."""
    path = rows_with_splits(tmp_path, column, ["Train", "dev", "train", "test"])
    train, heldout = roles(path, share=0.5)
    assert firsts(train) == ["s0", "s2"]
    assert ids(train) == ["0", "1"]
    assert firsts(heldout) == ["s1"]
    test = read(path)["test"]
    assert firsts(test) == ["s3"]


@pytest.mark.parametrize("column", ["tag", "split"])
def test_unknown_splits_of_rows_are_refused(tmp_path, column):
    path = rows_with_splits(tmp_path, column, ["news", "dev", "train", "test"])
    message = failure(read, path)
    for key in ("line 1", repr(column), "'news'", "split=all"):
        assert key in message


def test_the_column_of_splits_may_be_ignored(tmp_path):
    words = ["news", "train"]
    path = rows_with_splits(tmp_path, "tag", words, ids=(0, 1))
    task = TASKS["sst2"]
    whole = text_benchmarks.read(path, task, BadRecords(), ignore_splits=True)
    assert list(whole) == [""]
    assert firsts(whole[""]) == ["s0", "s1"]


def test_a_share_of_a_single_split_is_held_out(tmp_path):
    rows = [f"s {number}\t1\n" for number in range(100)]
    content = "sentence\tlabel\n" + "".join(rows)
    write(tmp_path / "train.tsv", content)
    train, heldout = roles(tmp_path, share=0.3)
    assert len(train) + len(heldout) == 100
    assert len(heldout) > 10


def test_pairs_with_equal_first_texts_are_held_out_together(tmp_path):
    """Golden values: see tests/data/test_text_rows.py."""
    content = "index\tsentence1\tsentence2\tlabel\n"
    for number in range(40):
        content += f"{number}\tpremise {number // 2}\th{number}\tentailment\n"
    path = write(tmp_path / "rte.tsv", content)
    _, heldout = roles(path, "rte", share=0.2)
    heldout_ids = ids(heldout)
    assert heldout_ids == ["6", "7", "14", "15", "24", "25", "32", "33"]


def test_rows_without_a_gold_label_are_left_out_and_counted(tmp_path):
    rows = []
    labels = ("neutral", "-", -1, "contradiction", None)
    for number, label in enumerate(labels):
        rows.append({"sentence1": f"p{number}", "sentence2": "h", "gold_label": label})
    content = writers.json_lines(*rows)
    path = write(tmp_path / "a.jsonl", content)
    dataset = read(path, "snli")[""]
    assert firsts(dataset) == ["p0", "p3"]
    assert dataset.labels.tolist() == [1, 2]
    assert "3 rows" in dataset.notes[0]


@pytest.mark.parametrize("task", ["sst2", "cola"])
def test_test_sets_are_unlabelled(tmp_path, task):
    """They have no column of labels. Unlike CoLA's other files, its test set has a header."""
    path = write(tmp_path / "test.tsv", "index\tsentence\n0\tgood\n1\tbad\n")
    dataset = read(path, task)[""]
    assert firsts(dataset) == ["good", "bad"]
    labels = dataset.labels.tolist()
    assert labels == [UNLABELLED] * 2
    assert dataset.classes == CLASS_TASKS[task].labels
    assert dataset.notes == ()


ONE_LABEL = '{"sentence": "a"}\n{"sentence": "b", "label": 1}'


@pytest.mark.parametrize(
    ("task", "name", "content", "keys"),
    [
        ("sst2", "a.tsv", "", ["is empty"]),
        ("sst2", "a.tsv", "sentence\tlabel\n", ["no example"]),
        ("sst2", "a.tsv", "sentence\tlabel\n\nfine\t1\n\t\n", ["line 4", "is empty"]),
        ("sst2", "a.tsv", "sentence\tlabel\nfine\t1\t2\n", ["line 2", "3 cells"]),
        ("sst2", "a.tsv", "sentence\tlabel\nfine\n", ["line 2", "1 cell"]),
        ("sst2", "a.tsv", "sentence,label\nfine,1\n", ["'sentence,label'", "tabs"]),
        ("sst2", "a.tsv", "index\tsentence\tlabel\n1\ta\t1\n2\tb\t1\n1\tc\t1\n", ["line 4", "'1'"]),
        ("sst2", "a.tsv", "sentence\tlabel\n\xe9\t1\n".encode("latin-1"), ["line 2", "UTF-8"]),
        ("sst2", "a.tsv", "sentence\tlabel\na\tgood\n", ["'good'", "'negative', 'positive'"]),
        ("sst2", "a.csv", 'sentence,label\n"a" b,1\n', ["line 2"]),
        ("sst2", "a.jsonl", '{"sentence": 3, "label": 1}', ["int 3"]),
        ("sst2", "a.jsonl", '{"sentence": "a", "label": true}', ["'true'"]),
        ("sst2", "a.jsonl", '{"sentence": "a", "label": ["neg"]}', ["['neg']"]),
        ("sst2", "a.jsonl", '{"sentence": "a", "id": [0]}', ["[0]", "'id'"]),
        ("sst2", "a.jsonl", ONE_LABEL, ["line 2", "'label'"]),
        ("sst2", "a.jsonl", '{"text": "a", "label": 1}', ["'sentence'", "'text'"]),
        ("cola", "a.jsonl", '{"text": "a", "label": 1}', ["'sentence'", "'text'"]),
        ("cola", "a.tsv", "text\tlabel\na\t1\n", ["line 1", "'star'"]),
        ("mnli", "a.tsv", "a\tb\n", ["'sentence1' or 'premise'", "'a'", "'b'"]),
        ("mnli", "a.tsv", "sentence1\tsentence1\tlabel\n", ["'sentence1'"]),
        ("stsb", "a.csv", "sentence1,sentence2,score\na,b,5.5\n", ["line 2", "'5.5'", "0 to 5"]),
        ("sst2", "a.xlsx", "", [".xlsx"]),
        ("sst2", "a.parquet.gz", "", [".parquet"]),
        ("sst2", "a.parquet", "PAR1", ["parquet"]),
    ],
)
def test_invalid_files_are_refused(tmp_path, task, name, content, keys):
    path = write(tmp_path / name, content)
    message = failure(read_all, path, task)
    for key in (path, *keys):
        assert key in message


def test_bad_rows_are_skipped_up_to_the_limit(tmp_path):
    """The id of each other row is its position among all rows."""
    path = write(tmp_path / "a.tsv", SST2 + "broken\nfine\t1\n\t0\n")
    bad = BadRecords(2)
    dataset = read(path, bad=bad)[""]
    assert firsts(dataset) == ["a fine film", "dull", "fine"]
    assert ids(dataset) == ["0", "1", "3"]
    assert bad.count == 2
    assert "line 4" in bad.first[0]
    assert "line 6" in bad.first[1]
    assert "line 6" in failure(read_all, path, bad=BadRecords(1))


def mnli_records(split: str, indices) -> list[bytes]:
    records = []
    for index in indices:
        premise = f"{split} {index}".encode()
        record = writers.example(premise=premise, hypothesis=b"h", label=index % 3, idx=index)
        records.append(record)
    return records


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record", "parquet"])
def test_tfds_folders_are_read(tmp_path, file_format, monkeypatch):
    shards = {
        "train": [mnli_records("train", [0, 1]), mnli_records("train", [10, 11, 12])],
        "validation_matched": [mnli_records("matched", [0, 1])],
        "validation_mismatched": [mnli_records("mismatched", [0])],
        "test_matched": [mnli_records("test", [0])],
    }
    text = tfds.features.Text()
    class_names = CLASS_TASKS["mnli"].labels
    label = tfds.features.ClassLabel(names=class_names)
    features = {"premise": text, "hypothesis": text, "label": label, "idx": np.int64}
    folder = tmp_path / "glue" / "mnli" / "2.0.0"
    writers.tfds_folder(folder, shards, file_format, **features)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    train, heldout = roles("tfds:glue/mnli", "mnli")
    assert firsts(train) == ["train 0", "train 1", "train 10", "train 11", "train 12"]
    labels = train.labels.tolist()
    assert labels == [0, 1, 1, 2, 0]
    assert ids(train) == ["0", "1", "10", "11", "12"]
    for file in train.files:
        assert file.name.endswith("-of-00002")
    assert len(train.files) == 2
    assert firsts(heldout) == ["matched 0", "matched 1", "mismatched 0"]
    assert parts(heldout) == [0, 0, 1]
    assert seconds(heldout) == ["h"] * 3


def test_tfds_folders_of_another_task_are_refused(tmp_path):
    """Labels are mapped by their names."""
    names = tfds.features.ClassLabel(names=["positive", "negative"])
    features = {"sentence": tfds.features.Text(), "label": names}
    example = writers.example(sentence=b"fine", label=0)
    shards = {"train": [[example]]}
    version_folder = tmp_path / "1.0.0"
    folder = writers.tfds_folder(version_folder, shards, "tfrecord", **features)
    dataset = read(folder)["train"]
    assert dataset.labels.tolist() == [1]
    assert "'question1'" in failure(read_all, folder, "qqp")
    assert "'positive'" in failure(read_all, folder, "cola")


PAIRS = (
    '1.0\tP09-1\tW02-7\tfirst document \\xe9\tsecond "document\n'
    "0.0\tP09-1\tC90-3\tfirst document \\xe9\tthird\n"
)
LISTOPS = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 5 ) 6 ) ] )\t1\n"


def test_published_retrieval_files_are_read(tmp_path):
    """They have no header, and labels are floats. Equal documents are kept once."""
    write(tmp_path / "new_aan_pairs.train.tsv", PAIRS * 2)
    write(tmp_path / "new_aan_pairs.eval.tsv", PAIRS)
    write(tmp_path / "new_aan_pairs.test.tsv", PAIRS.replace(".0\t", "\t"))
    found = read_all(tmp_path, "retrieval")
    assert set(found) == {"train", "validation", "test"}
    train = found["train"]
    assert train.labels.tolist() == [1, 0, 1, 0]
    assert seconds(train)[:2] == ['second "document', "third"]
    first, *others = firsts(train)
    assert first == "first document \\xe9"
    for other in others:
        assert other is first
    assert len(found["validation"]) == 2
    labels = found["test"].labels.tolist()
    assert labels == [1, 0]


@pytest.mark.parametrize("line", [0, 1])
def test_retrieval_rows_with_too_few_columns_are_bad_records(tmp_path, line):
    lines = PAIRS.splitlines()
    *cells, _ = lines[line].split("\t")
    lines[line] = "\t".join(cells)
    content = "\n".join(lines) + "\n"
    path = write(tmp_path / "pairs.tsv", content)
    message = failure(read_all, path, "retrieval")
    assert f"line {line + 1}" in message
    assert "4 cells; expected 5" in message
    bad = BadRecords(1)
    dataset = read(path, "retrieval", bad)[""]
    assert len(dataset) == 1
    assert bad.count == 1


def test_retrieval_documents_may_be_equal(tmp_path):
    """A first line with two equal cells must not be read as a header."""
    path = write(tmp_path / "pairs.tsv", "1.0\tP1\tP1\tsame\tsame\n")
    (row,) = read(path, "retrieval")[""].examples.rows
    assert row.texts == ("same", "same")


def test_published_listops_files_are_read(tmp_path):
    for split in ("train", "val", "test"):
        write(tmp_path / f"basic_{split}.tsv", LISTOPS)
    train, heldout = roles(tmp_path, "listops")
    assert train.labels.tolist() == [9, 1]
    assert firsts(train)[1] == "( ( ( [SM 5 ) 6 ) ] )"
    assert len(heldout) == 2


def test_unknown_listops_symbols_are_refused(tmp_path):
    path = write(tmp_path / "basic_train.tsv", LISTOPS.replace("[SM", "[AVG"))
    message = failure(read_all, path, "listops")
    for key in ("line 3", "'[AVG'", "[MIN [MAX [MED [SM ] 0 1"):
        assert key in message


def test_tfds_folders_of_reviews_are_read(tmp_path):
    """imdb_reviews has the splits train and test, and unlabelled reviews."""
    good = writers.example(text=b"good", label=1)
    bad = writers.example(text=b"bad", label=0)
    poor = writers.example(text=b"poor", label=0)
    unlabelled = writers.example(text=b"film", label=-1)
    shards = {
        "train": [[good, bad]],
        "test": [[poor]],
        "unsupervised": [[unlabelled]],
    }
    label = tfds.features.ClassLabel(names=("neg", "pos"))
    features = {"text": tfds.features.Text(), "label": label}
    version_folder = tmp_path / "1.0.0"
    folder = writers.tfds_folder(version_folder, shards, "array_record", **features)
    train, heldout = roles(folder, "imdb", heldout_split="test")
    assert train.labels.tolist() == [1, 0]
    assert firsts(heldout) == ["poor"]
    unsupervised = read(folder, "imdb")["unsupervised"]
    assert unsupervised.labels.tolist() == [UNLABELLED]


def test_remote_folders_are_read(tmp_path):
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.tsv", SST2)
    train, heldout = roles(writers.remote(tmp_path))
    assert firsts(train) == ["a fine film", "dull"]
    assert firsts(heldout) == ["a fine film", "dull"]


def test_counts_of_published_sst2(shared_data, tmp_path):
    for split in ("train", "dev"):
        published = shared_data(f"glue/sst2_{split}.tsv")
        (tmp_path / f"{split}.tsv").symlink_to(published)
    train, heldout = roles(tmp_path)
    assert len(train) == 67_349
    assert len(heldout) == 872
    for dataset in (train, heldout):
        assert set(dataset.labels.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("name", "task", "counts"),
    [
        ("rte.jsonl.xz", "rte", {"train": [1249, 1241], "validation": [146, 131]}),
        ("snli_dev.jsonl.xz", "snli", {"": [3329, 3235, 3278]}),
        ("mnli_matched_7998.jsonl.xz", "mnli", {"": [2821, 2562, 2615]}),
    ],
)
def test_counts_of_published_pairs(shared_data, name, task, counts):
    """The numbers of entailment, neutral (of RTE, not entailment) and contradiction."""
    found = read_all(shared_data(f"glue/{name}"), task)
    for split, dataset in found.items():
        class_counts = dataset.class_counts().tolist()
        assert class_counts == counts[split]
    assert set(found) == set(counts)
