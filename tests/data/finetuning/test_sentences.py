"""Labelled sentences from every kind of file, and one-line messages of what is wrong."""

import gzip
import json
import lzma

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import sentences
from gmlp_flax.data.finetuning.glue import GLUE_TASKS, own_task
from gmlp_flax.data.finetuning.sentences import UNLABELLED, label_names, open_sentences
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecords
from tests.data import writers

SST2 = "sentence\tlabel\na fine film \t1\ndull\t0\n"
MNLI_HEADER = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1\tgold_label\n"
)


def mnli_row(index: int, premise: str, label: str = "neutral") -> str:
    return f"{index}\tp{index}\tp{index}n\tfiction\t( a )\t( b )\t(A a)\t(B b)\t{premise}\tIt is {index}.\tx\t{label}\n"


def write(path, text):
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(path, task="sst2", side="train", **options):
    return open_sentences(str(path), GLUE_TASKS[task], side, **options)


def failure(path, task="sst2", side="train", **options) -> str:
    with pytest.raises(DataError) as caught:
        read(path, task, side, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.smoke
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_file(tmp_path, suffix):
    packed = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](SST2.encode())
    found = read(write(tmp_path / f"a.tsv{suffix}", packed))
    assert (found.first, found.second, found.ids) == (["a fine film", "dull"], None, ["0", "1"])
    assert found.labels.tolist() == [1, 0] and found.labels.dtype == found.part.dtype == np.int32
    assert found.part.tolist() == [0, 0] and len(found) == 2 and found.dropped == 0
    assert repr(found).endswith(f"a.tsv{suffix}', examples=2)")


# The headers of GLUE's files, a row of each, and its content: first, second, label, id.
GLUE_FILES = {
    "cola": ("", "gj04\t0\t*\tThe ball wriggled.\n", ("The ball wriggled.", None, 0, "0")),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n",
        "1\t702876\t702977\tOne.\tTwo.\r\n",
        ("One.", "Two.", 1, "0"),
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n",
        "133273\t213221\t213222\tHow?\tWhy?\t1\n",
        ("How?", "Why?", 1, "133273"),
    ),
    "mnli": (MNLI_HEADER, mnli_row(7, "They go.", "contradiction"), ("They go.", "It is 7.", 2, "7")),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n",
        "3\tWho?\tHe did.\tnot_entailment\n",
        ("Who?", "He did.", 1, "3"),
    ),
    "rte": ("index\tsentence1\tsentence2\tlabel\n", "9\tA b.\tA.\tentailment\n", ("A b.", "A.", 0, "9")),
    "wnli": ("index\tsentence1\tsentence2\tlabel\n", "4\tA b.\tA.\t1\n", ("A b.", "A.", 1, "4")),
    "snli": (
        "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tcaptionID\tpairID\tlabel1\n",
        "neutral\t( A )\tA man.\tA woman.\t34#4\t34#4r1n\tneutral\n",
        ("A man.", "A woman.", 1, "34#4r1n"),
    ),
}


@pytest.mark.parametrize("task", GLUE_FILES)
def test_the_files_of_glue(tmp_path, task):
    header, row, (first, second, label, own_id) = GLUE_FILES[task]
    found = read(write(tmp_path / "train.tsv", header + row), task)
    assert found.first == [first] and found.second == (None if second is None else [second])
    assert found.labels.tolist() == [label] and found.ids == [own_id]


def test_no_quoting_and_no_other_ends_of_lines(tmp_path):
    """A quotation mark that never closes swallows rows of QNLI and MNLI in a csv reader; some sentences hold
    characters at which str.splitlines cuts."""
    sentences = ['"A quote that never ends', 'another " one', "a\u2028line", "next\x85line", "form\x0cfeed", "o"]
    found = read(write(tmp_path / "a.tsv", "sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in sentences)))
    assert found.first == sentences


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\t\n\0\ufeff", codec="utf-8"), min_size=1), st.integers(0, 1)
        ),
        min_size=1,
    ).filter(lambda rows: all(text.strip() for text, _ in rows))
)
def test_any_sentence_survives_both_formats(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    tsv = write(folder / "a.tsv", "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    lines = write(folder / "a.jsonl", writers.json_lines(*({"sentence": t, "label": n} for t, n in rows)))
    for found in map(read, (tsv, lines)):
        assert found.first == [text.strip() for text, _ in rows] and found.labels.tolist() == [n for _, n in rows]


def test_json_lines_take_names_and_numbers(tmp_path):
    rows = [
        {"premise": "A b.", "hypothesis": "A.", "label": "entailment", "idx": 5},
        {"sentence1": "A b.", "sentence2": "B.", "label": 1, "idx": 6},
        {"sentence1": "A b.", "sentence2": "C.", "gold_label": "0", "idx": 7},
    ]
    found = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows) + b"\n"), "rte")
    assert found.labels.tolist() == [0, 1, 0] and found.ids == ["5", "6", "7"] and found.second == ["A.", "B.", "C."]


def test_a_folder_as_glue_ships_it(tmp_path):
    for name, premises in (
        ("train", "abc"),
        ("dev_matched", "de"),
        ("dev_mismatched", "fgh"),
        ("test_matched", "i"),
        ("test_mismatched", "jk"),
    ):
        rows = "".join(mnli_row(i, text) for i, text in enumerate(premises))
        write(tmp_path / f"{name}.tsv", MNLI_HEADER + rows)
    write(tmp_path / "original" / "multinli_1.0_train.txt", "not read")
    train, heldout = (read(tmp_path, "mnli", side, heldout_share=0.1) for side in ("train", "heldout"))
    assert train.first == list("abc") and train.part.tolist() == [0, 0, 0]
    assert heldout.first == list("defgh") and heldout.part.tolist() == [0, 0, 1, 1, 1]
    assert heldout.ids == ["0", "1", "0", "1", "2"]
    assert read(tmp_path, "mnli", "heldout", heldout_share=0.1, heldout_split="test").first == list("ijk")
    assert read(tmp_path, "mnli", "heldout", heldout_share=0.1, heldout_split="dev_mismatched").first == list("fgh")
    assert read(tmp_path, "mnli", "heldout").first == list("defgh")  # as a path of its own
    assert read(tmp_path, "mnli", "train", split="dev_matched").first == list("de")


def test_other_names_that_tell_of_splits(tmp_path):
    """SNLI's own archive has each split as .jsonl and as .txt."""
    row = {"sentence1": "A.", "sentence2": "B.", "gold_label": "neutral"}
    for split in ("train", "dev", "test"):
        write(tmp_path / f"snli_1.0_{split}.jsonl", writers.json_lines(row | {"sentence2": split}))
        write(tmp_path / f"snli_1.0_{split}.txt", "other")
    write(tmp_path / "README.txt", "text")
    assert read(tmp_path, "snli", "heldout", heldout_share=0.1).second == ["dev"]
    write(tmp_path / "mine_train.jsonl", b"")
    assert "two files of the split 'train', 'mine_train.jsonl' and 'snli_1.0_train.jsonl'" in failure(tmp_path, "snli")


@pytest.mark.parametrize("field", ["tag", "split"])
def test_rows_that_tell_of_their_split(tmp_path, field):
    rows = [
        {"sentence": f"s{i}", "label": 0, "idx": i // 2, field: tag}
        for i, tag in enumerate(("train", "heldout", "train", "test"))
    ]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    assert read(path, heldout_share=0.5).first == ["s0", "s2"]
    assert read(path, side="heldout", heldout_share=0.5).first == ["s1"]
    assert read(path, side="heldout", heldout_share=0.5, heldout_split="test").first == ["s3"]


def test_a_tag_that_is_no_split(tmp_path):
    for tags in (("sport", "news", "sport"), ("train", "news", "train")):
        rows = [{"sentence": f"s{i}", "label": 0, "tag": tag} for i, tag in enumerate(tags)]
        path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
        if "train" not in tags:
            assert len(read(path)) == 3
        else:  # the others may be meant to be held out
            assert "names splits in some rows, and 'news' in another: expected train, validation, test" in failure(path)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_share_is_held_out_by_its_premise(tmp_path, share):
    rows = [{"premise": f"premise {i // 3}{' ' * (i % 2)}", "hypothesis": f"h {i}", "label": i % 3} for i in range(900)]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    train, heldout = (read(path, "mnli", side, heldout_share=share) for side in ("train", "heldout"))
    assert not set(train.first) & set(heldout.first)
    assert sorted([*train.second, *heldout.second]) == sorted(row["hypothesis"] for row in rows)
    assert abs(len(heldout) - 900 * share) < 5 * 3 * (300 * share * (1 - share)) ** 0.5
    # Neither the order of rows nor other rows move an example to the other side.
    fewer = write(tmp_path / "b.jsonl", writers.json_lines(*rows[::-2]))
    assert set(read(fewer, "mnli", "heldout", heldout_share=share).second) <= set(heldout.second)


def test_a_share_of_the_one_split(tmp_path):
    write(tmp_path / "train.tsv", "sentence\tlabel\n" + "".join(f"s {i}\t1\n" for i in range(100)))
    train, heldout = (read(tmp_path, side=side, heldout_share=0.3) for side in ("train", "heldout"))
    assert len(train) + len(heldout) == 100 and len(heldout) > 10
    assert len(read(tmp_path, side="heldout")) == 100
    assert "leave nothing on the side 'heldout'" in failure(tmp_path, side="heldout", heldout_share=1e-9)


def tfds_folder(folder, splits, file_format="tfrecord", names=GLUE_TASKS["mnli"].labels):
    def record(split, i):
        return writers.example(premise=f"{split} {i}".encode(), hypothesis=b"h", label=i % 3, idx=i)

    label, text = tfds.features.ClassLabel(names=list(names)), tfds.features.Text()
    shards = {
        name: [[record(name, 10 * n + i) for i in range(size)] for n, size in enumerate(sizes)]
        for name, sizes in splits.items()
    }
    return writers.tfds_folder(folder, shards, file_format, premise=text, hypothesis=text, label=label, idx=np.int64)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record", "parquet"])
def test_tfds(tmp_path, file_format, monkeypatch):
    sizes = {"train": [2, 3], "validation_matched": [2], "validation_mismatched": [1], "test_matched": [1]}
    tfds_folder(tmp_path / "glue" / "mnli" / "2.0.0", sizes, file_format)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    train, heldout = (read("tfds:glue/mnli", "mnli", side, heldout_share=0.1) for side in ("train", "heldout"))
    assert train.first == ["train 0", "train 1", "train 10", "train 11", "train 12"]
    assert train.labels.tolist() == [0, 1, 1, 2, 0] and train.ids == ["0", "1", "10", "11", "12"]
    assert heldout.first == ["validation_matched 0", "validation_matched 1", "validation_mismatched 0"]
    assert heldout.part.tolist() == [0, 0, 1] and heldout.second == ["h"] * 3


def test_a_tfds_folder_of_another_task(tmp_path):
    path = tfds_folder(tmp_path / "1.0.0", {"train": [2]})
    assert "no feature 'sentence', found 'hypothesis', 'idx', 'label', 'premise'" in failure(path)
    assert "has the labels entailment, neutral, contradiction, but this task's are entail" in failure(path, "rte")
    path = tfds_folder(tmp_path / "2.0.0", {"train": [2]}, names=GLUE_TASKS["mnli"].labels[::-1])
    assert "has the labels contradiction, neutral, entailment" in failure(path, "mnli")


def test_damaged_tfds_records(tmp_path):
    good = writers.example(premise=b"a", hypothesis=b"b", label=1)
    records = [
        good,
        b"\xff no example",
        writers.example(premise=b"\xff", hypothesis=b"b", label=1),
        good,
        writers.example(premise=b"a", label=1),
    ]
    text = tfds.features.Text()
    path = writers.tfds_folder(tmp_path / "1.0.0", {"train": [records]}, "tfrecord", premise=text, hypothesis=text)
    assert "record 1: not a tf.train.Example (0 bad records" in failure(path, "mnli")
    assert len(read(path, "mnli", bad=(bad := BadRecords(3)))) == 2
    assert [message.rpartition("00001, ")[2].partition(" (")[0] for message in bad.first] == [
        "record 1: not a tf.train.Example",
        "record 2: not UTF-8",
        "record 4: no text 'sentence2' or 'hypothesis', found 'label', 'premise'",
    ]


def test_rows_without_a_gold_label_are_left_out_and_counted(tmp_path):
    labels = ("neutral", "-", -1, "contradiction", None)
    rows = [{"sentence1": f"p{i}", "sentence2": "h", "gold_label": label} for i, label in enumerate(labels)]
    found = read(write(tmp_path / "a.jsonl", writers.json_lines(*rows)), "snli")
    assert (found.first, found.dropped, found.labels.tolist()) == (["p0", "p3"], 3, [1, 2])
    rows = [{"sentence1": f"p{i}", "sentence2": "h", "gold_label": "neutral" if i % 3 else None} for i in range(120)]
    path = write(tmp_path / "b.jsonl", writers.json_lines(*rows))
    sides = [read(path, "snli", side, heldout_share=0.3) for side in ("train", "heldout")]
    assert sum(side.dropped for side in sides) == 40 and sum(map(len, sides)) == 80  # each side counts its own
    for side in sides:
        assert 5 < side.dropped < 35


def test_shards_of_splits(tmp_path):
    """Hugging Face's layout, with the labels as numbers and -1 in the test set."""
    folder = tmp_path / "mnli"
    folder.mkdir()

    def shard(name: str, label: int) -> None:
        writers.parquet(folder / f"{name}.parquet", premise=[f"{name} p"], hypothesis=["h"], label=[label], idx=[label])

    for name, label in (
        ("train-00000-of-00002", 0),
        ("train-00001-of-00002", 2),
        ("validation_matched-00000-of-00001", 1),
        ("validation_mismatched-00000-of-00001", 0),
        ("test_matched-00000-of-00001", -1),
    ):
        shard(name, label)
    train, heldout = read(folder, "mnli"), read(folder, "mnli", "heldout", heldout_share=0.05)
    assert (train.first, train.labels.tolist()) == (["train-00000-of-00002 p", "train-00001-of-00002 p"], [0, 2])
    assert (heldout.labels.tolist(), heldout.part.tolist()) == ([1, 0], [0, 1])
    assert read(folder, "mnli", "heldout", heldout_split="test").labels.tolist() == [UNLABELLED]
    (folder / "train-00000-of-00002.parquet").unlink()
    assert "of the 2 shards of 'train', 00000-of-00002 is missing; copy the rest" in failure(folder, "mnli")
    shard("train-00000-of-00001", 0)
    assert "holds two files of the split 'train', 'train-00000-of-00001.parquet' and" in failure(folder, "mnli")


def test_a_folder_of_several_formats(tmp_path):
    """One that has all splits is read; without one, a split would be left out, and another trained on in its place."""
    folder = tmp_path / "sst2"
    write(folder / "train.csv", "sentence,label\nfine,1\ndull,0\n")
    write(folder / "test.tsv", SST2)
    assert "holds splits in several formats, 'test.tsv', 'train.csv', and no format has all: give" in failure(folder)
    write(folder / "test.csv", "sentence,label\ngood,1\n")
    assert read(folder).first == ["fine", "dull"]


def test_a_test_set_is_for_predictions_alone(tmp_path):
    path = write(tmp_path / "test.tsv", "index\tsentence\n0\tgood\n1\tbad\n")
    found = read(path, side="heldout")
    assert found.labels.tolist() == [UNLABELLED] * 2 and found.dropped == 0
    assert "has no labels to train on: expected a column 'gold_label' or 'label' " in failure(path)
    assert read(path, "cola", "heldout").first == ["good", "bad"]  # CoLA's has a header, too


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("sentence\tlabel\nfine\t1\ndull\n", "line 3: 1 columns, separated by tabs, where 2 were expected"),
        ("sentence\tlabel\nfine\t1\t2\n", "line 2: 3 columns"),
        ("text\tlabel\nfine\t1\n", "line 1: no column 'sentence' in the header, found 'text', 'label'; give"),
        (
            "sentence\tlabel\nfine\t2\n",
            "line 2: the label '2'; expected 'negative', 'positive', or its number from 0 to 1",
        ),
        ("sentence\tlabel\nfine\t\n", "line 2: the label ''; expected"),
        ("sentence\tlabel\nfine\t1\n  \t1\n", "line 3: an empty sentence 'sentence'"),
        ("sentence\tlabel\n\nfine\t1\n\t\n", "line 4: an empty sentence 'sentence'"),
        ("index\tsentence\tlabel\n1\ta\t1\n2\tb\t1\n1\tc\t1\n", "line 4: the id '1' is also that of an earlier row"),
        (SST2.encode() + b"un caf\xe9\t1\n", "line 4: not UTF-8 (byte 0xe9); convert it"),
        (SST2.encode("utf-16-le"), "line 1: not UTF-8 (a zero byte, as UTF-16 has)"),
        ("sentence\tlabel\n", "holds no example"),
        ("", "holds no example"),
    ],
)
def test_bad_tsv(tmp_path, content, words):
    path = write(tmp_path / "a.tsv", content)
    message = failure(path)
    assert words in message and "a.tsv" in message


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "{'sentence': 1}",
            "not JSON (Expecting property name enclosed in double quotes); expected one object per line",
        ),
        ('["fine", 1]', "found list; expected an object"),
        ('{"text": "fine", "label": 1}', "no text 'sentence', found 'label', 'text'"),
        ('{"sentence": 3, "label": 1}', "no text 'sentence', found 'label', 'sentence'"),
        ('{"sentence": "", "label": 1}', "an empty sentence 'sentence'"),
        ('{"sentence": "fine", "label": "good"}', "the label 'good'; expected 'negative', 'positive'"),
        ('{"sentence": "fine", "label": true}', "the label True; expected"),
        ('{"sentence": "fine", "label": 1.0}', "the label 1.0; expected"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_bad_json_lines(tmp_path, line, words):
    path = write(tmp_path / "a.jsonl", f"{json.dumps({'sentence': 'dull', 'label': 0})}\n{line}\n")
    message = failure(path)
    assert f"a.jsonl, line 2: {words}" in message and "max_bad_records=0" in message


def test_bad_rows_are_skipped_up_to_a_limit(tmp_path):
    path = write(tmp_path / "a.tsv", SST2 + "broken\nfine\t1\n\t0\n")
    bad = BadRecords(2)
    found = read(path, bad=bad)
    assert found.first == ["a fine film", "dull", "fine"] and found.ids == ["0", "1", "3"]
    assert bad.count == 2 and "line 4: 1 columns" in bad.first[0] and "line 6: an empty" in bad.first[1]
    assert "line 6" in failure(path, bad=BadRecords(1))


def test_bad_paths(tmp_path):
    assert "expected a file or a folder" in failure(tmp_path / "none.tsv")
    assert "expected .tsv, .jsonl, .ndjson, .json, .csv, .parquet, .txt, or text with .gz" in failure(
        write(tmp_path / "a.xlsx", SST2)
    )
    (tmp_path / "empty").mkdir()
    assert "expected train.tsv and dev.tsv" in failure(tmp_path / "empty")
    assert "truncated or not a .gz archive" in failure(write(tmp_path / "a.tsv.gz", gzip.compress(b"x" * 99)[:-9]))


def test_bad_splits(tmp_path):
    path = write(tmp_path / "sst2" / "train.tsv", SST2)
    assert "has no split 'dev': it names no splits" in failure(path, split="dev")
    folder = tmp_path / "sst2"
    assert "has no split 'dev': it has 'train'" in failure(folder, heldout_split="dev")
    write(folder / "test.tsv", SST2)
    for other in ("trian", "my_train"):
        assert f"has no split '{other}': it has 'test', 'train'; set split" in failure(folder, split=other)
    assert "has no split for this side, only 'test', 'train'" in failure(folder, side="heldout")
    same = failure(folder, split="test", heldout_split="test", heldout_share=0.5)
    assert "the split 'test' " in same and "both trained on and held out" in same


@pytest.mark.parametrize(
    ("name", "task", "train", "heldout"),
    [
        ("sst2_train.tsv", "sst2", 67_349, None),
        ("sst2_dev.tsv", "sst2", 872, None),
        ("", "sst2", 67_349, 872),
        ("rte.jsonl.xz", "rte", 2_490, 277),
        ("snli_dev.jsonl.xz", "snli", 9_842, None),
        ("mnli_matched_7998.jsonl.xz", "mnli", 7_998, None),
    ],
)
def test_real_data(shared_data, name, task, train, heldout):
    path = shared_data(f"glue/{name}")
    found = read(path, task)
    assert len(found) == train and set(found.labels.tolist()) == set(range(len(GLUE_TASKS[task].labels)))
    if heldout is not None:
        assert len(read(path, task, "heldout", heldout_share=0.05)) == heldout
    else:
        sides = [read(path, task, side, heldout_share=0.1) for side in ("train", "heldout")]
        assert not set(sides[0].first) & set(sides[1].first) and sum(map(len, sides)) == train
        assert 0.05 * train < len(sides[1]) < 0.15 * train


def test_own_labels_may_be_negative_and_empty_cells_have_none(tmp_path):
    rows = (f"text {i}\t{(-1, 0, 10, '')[i % 4]}\n" for i in range(8))
    path = write(tmp_path / "a.tsv", "text\tlabel\n" + "".join(rows))
    task = own_task(("text",), "label")
    task = task._replace(labels=label_names(path, task))
    assert task.labels == ("-1", "0", "10")
    found = open_sentences(path, task, "train")
    assert found.labels.tolist() == [0, 1, 2] * 2 and found.dropped == 2
    write(tmp_path / "b.tsv", "text\tlabel\nx\t7\n")
    with pytest.raises(DataError, match="the label '7'; expected '-1', '0', '10' .0 bad"):
        open_sentences(str(tmp_path / "b.tsv"), task, "train")


def test_classes_of_tfds_may_be_numbers(tmp_path):
    """Records hold a class's position; -1 is none."""
    features = {"text": tfds.features.Text(), "stars": tfds.features.ClassLabel(names=["1", "2"])}
    made = [writers.example(text=text.encode(), stars=stars) for text, stars in (("a", 0), ("b", 1), ("c", -1))]
    folder = writers.tfds_folder(tmp_path / "1.0.0", {"train": [made]}, "tfrecord", **features)
    task = own_task(("text",), "stars")
    task = task._replace(labels=label_names(str(folder), task))
    found = open_sentences(str(folder), task, "train")
    assert task.labels == ("1", "2") and found.first == ["a", "b"] and found.labels.tolist() == [0, 1]


def test_own_columns_and_labels(tmp_path):
    """Labels are those of the data: numbers by size, words by letters; a column that holds no classes is refused."""
    rows = ["review\tstars\ttag"] + [f"text {i}\t{(10, 9, 2)[i % 3]}\t{'dev' if i > 5 else 'train'}" for i in range(8)]
    path = write(tmp_path / "reviews.tsv", "\n".join(rows) + "\n")
    task = own_task(("review",), "stars")
    task = task._replace(labels=label_names(path, task))
    assert task.labels == ("2", "9", "10")
    train, heldout = (open_sentences(path, task, side, heldout_share=0.1) for side in ("train", "heldout"))
    assert train.labels.tolist() == [2, 1, 0, 2, 1, 0] and train.second is None
    assert heldout.first == ["text 6", "text 7"] and heldout.labels.tolist() == [2, 1]
    assert label_names(tfds_folder(tmp_path / "2.0.0", {"train": [2]}), own_task(("premise",), "label")) == (
        GLUE_TASKS["mnli"].labels
    )
    with pytest.raises(DataError, match="has 8 different values in the column of labels, 'review': expected 2 to 7"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sentences, "_MOST_LABELS", 7)
            label_names(path, own_task(("stars",), "review"))
    with pytest.raises(DataError, match="has 0 different values in the column of labels, 'star'"):
        label_names(path, own_task(("review",), "star"))
    with pytest.raises(DataError, match="no column 'reviews' in the header, found 'review', 'stars', 'tag'"):
        label_names(path, own_task(("reviews",), "stars"))


OWN = own_task(("text",), "label", ("neg", "pos"))


@pytest.mark.parametrize(("rows", "words"), [
    ([{"text": "a", "label": "neg", "split": "train"}, {"text": "b", "label": "pos", "split": "unused"},
      {"text": "c", "label": "pos", "split": "test"}],
     "names splits in some rows, and 'unused' in another: expected train, validation, test in each"),
    ([{"id": [0], "text": "a", "label": "neg"}], "the id [0]; expected a text or a number"),
    ([{"id": 7, "text": "a", "label": "neg"}, {"id": 7, "text": "b", "label": "pos"}], "give each its own, or rename the column"),
    ([{"text": "a", "label": ["neg"]}], "the label ['neg']; expected a word or a number"),
    ([{"text": "a", "label": float("nan")}], "the label nan; expected a word or a number"),
    ([{"text": "a", "label": 1}], "the label 1; expected 'neg', 'pos'"),  # which of the two would be a guess
])  # fmt: skip
def test_own_rows_that_could_be_misread_are_refused(tmp_path, rows, words):
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    with pytest.raises(DataError) as caught:
        open_sentences(path, OWN, "train")
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_own_labels_are_stripped_and_splits_have_any_case(tmp_path):
    rows = [
        {"text": f"t{i}", "label": ("neg", "neg ", "pos")[i % 3], "split": ("Train", "Validation")[i > 5]}
        for i in range(8)
    ]
    path = write(tmp_path / "a.jsonl", writers.json_lines(*rows))
    assert label_names(path, OWN) == ("neg", "pos")
    train, heldout = (open_sentences(path, OWN, side, heldout_share=0.1) for side in ("train", "heldout"))
    assert train.labels.tolist() == [0, 0, 1] * 2 and heldout.first == ["t6", "t7"]
    write(tmp_path / "b.jsonl", writers.json_lines({"text": "a", "label": {"a": 1}}, {"text": "a", "label": "b"}))
    with pytest.raises(DataError, match=r"the label {'a': 1}; expected a word or a number"):
        label_names(str(tmp_path / "b.jsonl"), OWN)


def test_two_columns_of_one_name_are_refused(tmp_path):
    path = write(tmp_path / "a.tsv", "text\ttext\tlabel\na\tb\tneg\n")
    with pytest.raises(DataError, match="line 1: two columns of the header are named 'text': rename one"):
        open_sentences(path, OWN, "train")


def test_no_line_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("gmlp_flax.io.files.MOST", 1000)
    path = write(tmp_path / "a.tsv.xz", lzma.compress(b"sentence\tlabel\n" + b"x" * 5000))
    assert "line 2 has more than 0 MiB" in failure(path)
