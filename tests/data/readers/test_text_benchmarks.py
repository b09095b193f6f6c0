"""GLUE, SNLI and Long Range Arena as published, and what is refused."""

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
    return f"{index}\tp{index}\tp{index}n\tfiction\t(A a)\t{premise}\tIt is {index}.\tx\t{label}\n"


def write(path, content: str | bytes) -> str:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read(path, task: str = "sst2", bad: BadRecords | None = None) -> Splits:
    return text_benchmarks.read(str(path), TASKS[task], bad or BadRecords())


def read_all(path, task: str = "sst2", bad: BadRecords | None = None) -> dict[str, Dataset]:
    return dict(read(path, task, bad))


def roles(path, task: str = "sst2", share: float = 0.1, **options) -> list[Dataset]:
    """The examples to train on, and those that are held out."""
    found = read(path, task)
    requests = [Request(role, heldout_share=share, **options) for role in (TRAIN, HELDOUT)]
    return [splits.choose(found, request) for request in requests]


def firsts(dataset: Dataset) -> list[str]:
    return [row.texts[0] for row in dataset.examples.rows]


def seconds(dataset: Dataset) -> list[str]:
    return [row.texts[1] for row in dataset.examples.rows]


def ids(dataset: Dataset) -> list[str]:
    return [row.id for row in dataset.examples.rows]


def parts(dataset: Dataset) -> list[int]:
    return [row.part for row in dataset.examples.rows]


@pytest.mark.smoke
def test_a_file(tmp_path):
    dataset = read(write(tmp_path / "a.tsv", SST2))[""]
    assert firsts(dataset) == ["a fine film", "dull"]
    assert ids(dataset) == ["0", "1"]
    assert parts(dataset) == [0, 0]
    assert dataset.labels.tolist() == [1, 0]
    assert dataset.labels.dtype == np.int32
    assert dataset.classes == ("negative", "positive")
    assert dataset.columns == ("sentence", "label")
    assert dataset.form == text_benchmarks.FORM


# The headers of GLUE's files, a row of each, and its content: texts, label, id.
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
def test_the_files_of_glue(tmp_path, task):
    header, row, (texts, label, own_id) = GLUE_FILES[task]
    write(tmp_path / "train.tsv", header + row)
    (dataset,) = read_all(tmp_path, task).values()
    (example,) = dataset.examples.rows
    assert example.texts == texts
    assert example.id == own_id
    assert dataset.labels.tolist() == [label]
    assert dataset.split == "train"


def test_a_folder_as_glue_ships_it(tmp_path):
    """MNLI's two parts are one split, and splits of their own; other files are counted."""
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
    train, heldout = roles(tmp_path, "mnli")
    assert firsts(train) == list("abc")
    assert parts(train) == [0, 0, 0]
    assert firsts(heldout) == list("defgh")
    assert parts(heldout) == [0, 0, 1, 1, 1]
    assert ids(heldout) == ["0", "1", "0", "1", "2"]
    assert heldout.split == "validation"
    assert len(heldout.files) == 2
    for dataset in (train, heldout):
        (note,) = dataset.notes
        assert "2 files not read (.tsv 1, .txt 1)" in note
    assert firsts(read(tmp_path, "mnli")["test"]) == list("ijk")
    for split, expected in (("test", "ijk"), ("dev_mismatched", "fgh")):
        assert firsts(roles(tmp_path, "mnli", heldout_split=split)[1]) == list(expected)
    assert firsts(roles(tmp_path, "mnli", split="dev_matched", heldout_split="test")[0]) == [
        "d",
        "e",
    ]


def test_one_part_alone(tmp_path):
    write(tmp_path / "dev_mismatched.tsv", MNLI_HEADER + mnli_row(0, "a"))
    found = read_all(tmp_path, "mnli")
    assert set(found) == {"validation_mismatched", "validation"}
    assert parts(found["validation"]) == [1]
    header, row, _ = GLUE_FILES["rte"]
    write(tmp_path / "rte" / "dev_mismatched.tsv", header + row)  # MNLI alone has scores for parts
    assert parts(read(tmp_path / "rte", "rte")["validation"]) == [0]


JSON_ROWS = [
    {"sentence1": "A b.", "sentence2": "A.", "label": "entailment", "idx": 5},
    {"sentence1": "A b.", "sentence2": "B.", "label": 1, "idx": 6},
    {"sentence1": "A b.", "sentence2": "C.", "label": "0", "idx": 7},
]


@pytest.mark.parametrize("name", ["train.jsonl", "x_train.json.gz", "my-train.jsonl"])
def test_json_lines_have_names_and_numbers(tmp_path, name):
    content = writers.json_lines(*JSON_ROWS)
    write(tmp_path / name, gzip.compress(content) if name[-1] == "z" else content)
    dataset = read(tmp_path, "rte")["train"]
    assert dataset.labels.tolist() == [0, 1, 0]
    assert ids(dataset) == ["5", "6", "7"]
    assert seconds(dataset) == ["A.", "B.", "C."]


def test_names_of_columns_in_other_editions(tmp_path):
    path = write(tmp_path / "a.csv", 'hypothesis,premise,label\n"B, c",A,2\n')
    dataset = read(path, "snli")[""]
    assert dataset.examples.rows[0].texts == ("A", "B, c")
    assert dataset.columns == ("premise", "hypothesis", "label")
    assert dataset.labels.tolist() == [2]


def shard(folder, name: str, size: int = 1) -> None:
    texts = [f"{name} {i}" for i in range(size)]
    columns = {"premise": texts, "hypothesis": ["h"] * size, "label": [0] * size}
    writers.parquet(folder / f"{name}.parquet", **columns)


def test_shards_of_splits(tmp_path):
    """Hugging Face's layout; two sets of one split are refused."""
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        shard(tmp_path, name, 2)
    shard(tmp_path, "validation_matched-00000-of-00001")
    found = read_all(tmp_path, "mnli")
    assert set(found) == {"train", "validation_matched", "validation"}
    assert firsts(found["train"]) == [
        "train-00000-of-00002 0",
        "train-00000-of-00002 1",
        "train-00001-of-00002 0",
        "train-00001-of-00002 1",
    ]
    assert ids(found["train"]) == ["0", "1", "2", "3"]
    shard(tmp_path, "train-00000-of-00001")
    message = failure(read, tmp_path, "mnli")
    assert "'train'" in message
    assert "train-00000-of-00001.parquet" in message
    (tmp_path / "train-00000-of-00001.parquet").unlink()
    (tmp_path / "train-00001-of-00002.parquet").unlink()
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
def test_folders_that_are_refused(tmp_path, files, keys):
    for name in files:
        write(tmp_path / name, SST2)
    message = failure(read, tmp_path)
    for key in (str(tmp_path), *keys):
        assert key in message


def test_files_beside_those_of_splits(tmp_path):
    """In MRPC's folder dev_ids.tsv holds no examples."""
    for name in ("train", "dev", "dev_ids"):
        write(tmp_path / f"{name}.tsv", SST2)
    found = read_all(tmp_path)
    assert {split: len(dataset) for split, dataset in found.items()} == {
        "train": 2,
        "validation": 2,
    }
    assert ".tsv 1" in found["train"].notes[0]


@pytest.mark.parametrize("column", ["tag", "split"])
def test_rows_that_name_their_split(tmp_path, column):
    """In either case; each split has ids of its own."""
    words = ("Train", "dev", "train", "test")
    rows = [
        {"sentence": f"s{i}", "label": 0, "idx": i // 2, column: word}
        for i, word in enumerate(words)
    ]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    train, heldout = roles(path, share=0.5)
    assert firsts(train) == ["s0", "s2"]
    assert ids(train) == ["0", "1"]
    assert firsts(heldout) == ["s1"]
    assert firsts(read(path)["test"]) == ["s3"]
    rows[0][column] = "news"
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    message = failure(read, path)
    for key in ("line 1", repr(column), "'news'", "split=all"):
        assert key in message


def test_rows_of_all_splits_as_one(tmp_path):
    """Whatever the column of splits holds."""
    rows = [
        {"sentence": f"s{i}", "label": 0, "tag": word} for i, word in enumerate(["news", "train"])
    ]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    whole = text_benchmarks.read(path, TASKS["sst2"], BadRecords(), ignore_splits=True)
    assert list(whole) == [""]
    assert firsts(whole[""]) == ["s0", "s1"]


def test_a_share_of_the_one_split(tmp_path):
    write(tmp_path / "train.tsv", "sentence\tlabel\n" + "".join(f"s {i}\t1\n" for i in range(100)))
    train, heldout = roles(tmp_path, share=0.3)
    assert len(train) + len(heldout) == 100
    assert len(heldout) > 10


def test_pairs_that_are_held_out(tmp_path):
    """Golden values: see tests/data/test_text_rows.py."""
    rows = [f"{i}\tpremise {i // 2}\th{i}\tentailment\n" for i in range(40)]
    path = write(tmp_path / "rte.tsv", "index\tsentence1\tsentence2\tlabel\n" + "".join(rows))
    heldout = roles(path, "rte", share=0.2)[1]
    assert ids(heldout) == ["6", "7", "14", "15", "24", "25", "32", "33"]


def test_rows_without_a_gold_label_are_left_out_and_counted(tmp_path):
    labels = ("neutral", "-", -1, "contradiction", None)
    rows = [
        {"sentence1": f"p{i}", "sentence2": "h", "gold_label": label}
        for i, label in enumerate(labels)
    ]
    dataset = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)), "snli")[""]
    assert firsts(dataset) == ["p0", "p3"]
    assert dataset.labels.tolist() == [1, 2]
    assert "3 rows" in dataset.notes[0]


def test_a_test_set(tmp_path):
    """It has no column of labels, and CoLA's has a header."""
    path = write(tmp_path / "test.tsv", "index\tsentence\n0\tgood\n1\tbad\n")
    for task in ("sst2", "cola"):
        dataset = read(path, task)[""]
        assert firsts(dataset) == ["good", "bad"]
        assert dataset.labels.tolist() == [UNLABELLED] * 2
        assert dataset.classes == CLASS_TASKS[task].labels
        assert dataset.notes == ()


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
        (
            "sst2",
            "a.jsonl",
            '{"sentence": "a"}\n{"sentence": "b", "label": 1}',
            ["line 2", "'label'"],
        ),
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
def test_files_that_are_refused(tmp_path, task, name, content, keys):
    path = write(tmp_path / name, content)
    message = failure(read_all, path, task)
    for key in (path, *keys):
        assert key in message


def test_bad_rows_are_skipped_up_to_a_limit(tmp_path):
    """The others are called by their positions among all rows."""
    path = write(tmp_path / "a.tsv", SST2 + "broken\nfine\t1\n\t0\n")
    bad = BadRecords(2)
    dataset = read(path, bad=bad)[""]
    assert firsts(dataset) == ["a fine film", "dull", "fine"]
    assert ids(dataset) == ["0", "1", "3"]
    assert bad.count == 2
    assert "line 4" in bad.first[0]
    assert "line 6" in bad.first[1]
    assert "line 6" in failure(read_all, path, bad=BadRecords(1))


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record", "parquet"])
def test_tfds(tmp_path, file_format, monkeypatch):
    def records(split: str, start: int, size: int) -> list[bytes]:
        made = []
        for i in range(start, start + size):
            text = f"{split} {i}".encode()
            made.append(writers.example(premise=text, hypothesis=b"h", label=i % 3, idx=i))
        return made

    shards = {
        "train": [records("train", 0, 2), records("train", 10, 3)],
        "validation_matched": [records("matched", 0, 2)],
        "validation_mismatched": [records("mismatched", 0, 1)],
        "test_matched": [records("test", 0, 1)],
    }
    text = tfds.features.Text()
    label = tfds.features.ClassLabel(names=CLASS_TASKS["mnli"].labels)
    features = {"premise": text, "hypothesis": text, "label": label, "idx": np.int64}
    writers.tfds_folder(tmp_path / "glue" / "mnli" / "2.0.0", shards, file_format, **features)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    train, heldout = roles("tfds:glue/mnli", "mnli")
    assert firsts(train) == ["train 0", "train 1", "train 10", "train 11", "train 12"]
    assert train.labels.tolist() == [0, 1, 1, 2, 0]
    assert ids(train) == ["0", "1", "10", "11", "12"]
    got = [file.name[-5:] for file in train.files]
    assert got == ["00002", "00002"]
    assert firsts(heldout) == ["matched 0", "matched 1", "mismatched 0"]
    assert parts(heldout) == [0, 0, 1]
    assert seconds(heldout) == ["h"] * 3


def test_a_tfds_folder_of_another_task(tmp_path):
    """Labels are known by their names, whatever their order."""
    names = tfds.features.ClassLabel(names=["positive", "negative"])
    features = {"sentence": tfds.features.Text(), "label": names}
    shards = {"train": [[writers.example(sentence=b"fine", label=0)]]}
    folder = writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord", **features)
    assert read(folder)["train"].labels.tolist() == [1]
    assert "'question1'" in failure(read_all, folder, "qqp")
    assert "'positive'" in failure(read_all, folder, "cola")


PAIRS = (
    '1.0\tP09-1\tW02-7\tfirst document \\xe9\tsecond "document\n'
    "0.0\tP09-1\tC90-3\tfirst document \\xe9\tthird\n"
)
LISTOPS = "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n( ( ( [SM 5 ) 6 ) ] )\t1\n"


def test_retrieval_as_published(tmp_path):
    """No header, and labels as floats. Equal documents are kept once."""
    write(tmp_path / "new_aan_pairs.train.tsv", PAIRS * 2)
    write(tmp_path / "new_aan_pairs.eval.tsv", PAIRS)
    write(tmp_path / "new_aan_pairs.test.tsv", PAIRS.replace(".0\t", "\t"))
    found = read_all(tmp_path, "retrieval")
    assert set(found) == {"train", "validation", "test"}
    train = found["train"]
    assert train.labels.tolist() == [1, 0, 1, 0]
    assert firsts(train)[0] == "first document \\xe9"
    assert seconds(train)[:2] == ['second "document', "third"]
    assert firsts(train)[0] is firsts(train)[1] is firsts(train)[2]
    assert len(found["validation"]) == 2
    assert found["test"].labels.tolist() == [1, 0]


@pytest.mark.parametrize("line", [0, 1])
def test_retrieval_with_another_number_of_columns(tmp_path, line):
    lines = PAIRS.splitlines()
    lines[line] = lines[line].rpartition("\t")[0]
    path = write(tmp_path / "pairs.tsv", "\n".join(lines) + "\n")
    message = failure(read_all, path, "retrieval")
    assert f"line {line + 1}" in message
    assert "4 cells; expected 5" in message
    bad = BadRecords(1)
    assert len(read(path, "retrieval", bad)[""]) == 1
    assert bad.count == 1


def test_retrieval_of_equal_documents(tmp_path):
    """A first line with two equal cells is no header with two equal names."""
    path = write(tmp_path / "pairs.tsv", "1.0\tP1\tP1\tsame\tsame\n")
    assert read(path, "retrieval")[""].examples.rows[0].texts == ("same", "same")


def test_listops_as_published(tmp_path):
    for split in ("train", "val", "test"):
        write(tmp_path / f"basic_{split}.tsv", LISTOPS)
    train, heldout = roles(tmp_path, "listops")
    assert train.labels.tolist() == [9, 1]
    assert firsts(train)[1] == "( ( ( [SM 5 ) 6 ) ] )"
    assert len(heldout) == 2


def test_listops_with_other_symbols(tmp_path):
    path = write(tmp_path / "basic_train.tsv", LISTOPS.replace("[SM", "[AVG"))
    message = failure(read_all, path, "listops")
    for key in ("line 3", "'[AVG'", "[MIN [MAX [MED [SM ] 0 1"):
        assert key in message


def test_reviews_as_tfds_prepares_them(tmp_path):
    """imdb_reviews: train, test, and reviews without a label."""
    rows = {
        "train": [(b"good", 1), (b"bad", 0)],
        "test": [(b"poor", 0)],
        "unsupervised": [(b"film", -1)],
    }
    shards = {}
    for split, examples in rows.items():
        shards[split] = [[writers.example(text=text, label=label) for text, label in examples]]
    label = tfds.features.ClassLabel(names=("neg", "pos"))
    features = {"text": tfds.features.Text(), "label": label}
    folder = writers.tfds_folder(tmp_path / "1.0.0", shards, "array_record", **features)
    train, heldout = roles(folder, "imdb", heldout_split="test")
    assert train.labels.tolist() == [1, 0]
    assert firsts(heldout) == ["poor"]
    assert read(folder, "imdb")["unsupervised"].labels.tolist() == [UNLABELLED]


def test_a_remote_folder(tmp_path):
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.tsv", SST2)
    train, heldout = roles(writers.remote(tmp_path))
    assert firsts(train) == firsts(heldout) == ["a fine film", "dull"]


def test_published_sst2(shared_data, tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").symlink_to(shared_data(f"glue/sst2_{split}.tsv"))
    datasets = roles(tmp_path)
    assert [len(dataset) for dataset in datasets] == [67_349, 872]
    for dataset in datasets:
        assert set(dataset.labels.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("name", "task", "counts"),
    [
        ("rte.jsonl.xz", "rte", {"train": [1249, 1241], "validation": [146, 131]}),
        ("snli_dev.jsonl.xz", "snli", {"": [3329, 3235, 3278]}),
        ("mnli_matched_7998.jsonl.xz", "mnli", {"": [2821, 2562, 2615]}),
    ],
)
def test_published_pairs(shared_data, name, task, counts):
    """The numbers of entailment, neutral (of RTE, not entailment) and contradiction."""
    found = read_all(shared_data(f"glue/{name}"), task)
    for split, dataset in found.items():
        assert dataset.class_counts().tolist() == counts[split]
    assert set(found) == set(counts)
