"""SQuAD in its official form, as rows of Hugging Face, and in TFDS folders."""

import gzip
import json
import lzma

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data import splits
from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.data.readers import squad
from gmlp_flax.data.splits import Request
from gmlp_flax.io.records import BadRecords
from tests.data import writers
from tests.data.finetuning.squad_files import article, colours, entry, read, write
from tests.failures import failure

PARIS = "Paris is the capital of France. Lyon is not."
ENTRY = entry("q1", "What is Paris?", PARIS, "the capital", "capital of France")
SECOND_ENTRY = entry("q2", "What is not?", PARIS, "Lyon")
CAPITALS = article("Capitals", PARIS, ENTRY, SECOND_ENTRY)
NOWHERE = entry("q3", "What is Rome?", PARIS, is_impossible=True)

CAPITAL_ANSWERS = (("the capital", 9), ("capital of France", 13))
FIRST = Question("q1", "Capitals", PARIS, "What is Paris?", CAPITAL_ANSWERS)
SECOND = Question("q2", "Capitals", PARIS, "What is not?", (("Lyon", 32),))
THIRD = Question("q3", "Capitals", PARIS, "What is Rome?", ())


def choose(path, role: str, version: str = "v1.1", **options) -> list[Question]:
    """The questions of a role."""
    found = squad.read(str(path), version, BadRecords())
    request = Request(role, **options)
    dataset = splits.choose(found, request)
    return dataset.examples.questions


@pytest.mark.smoke
def test_official_json_is_read(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS, version="1.1")
    assert read(path, "v1.1") == [FIRST, SECOND]
    dataset = squad.read(str(path), "v1.1", BadRecords())[""]
    assert dataset.form == squad.FORM
    assert dataset.columns == ("id", "title", "context", "question", "answers")
    paths = [str(path)]
    assert [file.path for file in dataset.files] == paths


@pytest.mark.parametrize(("suffix", "module"), [("gz", gzip), ("xz", lzma)])
def test_compressed_json_is_read(tmp_path, suffix, module):
    path = write(tmp_path / "a.json", CAPITALS)
    packed = tmp_path / f"a.json.{suffix}"
    packed.write_bytes(module.compress(path.read_bytes()))
    assert read(packed, "v1.1") == [FIRST, SECOND]


def test_remote_files_and_byte_order_marks_are_read(tmp_path):
    path = write(tmp_path / "ä b.json", CAPITALS)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path, "v1.1") == [FIRST, SECOND]
    remote = writers.remote(tmp_path)
    assert read(f"{remote}/ä b.json", "v1.1") == [FIRST, SECOND]


def test_unanswered_questions_need_version_2(tmp_path):
    possible = ENTRY | {"is_impossible": False}
    capitals = article("Capitals", PARIS, possible, NOWHERE)
    path = write(tmp_path / "a.json", capitals)
    assert read(path, "v2.0") == [FIRST, THIRD]
    message = failure(read, path, "v1.1")
    for key in ("question q3", "version=v2.0"):
        assert key in message
    assert read(path, "v1.1", bad=BadRecords(1)) == [FIRST]


@pytest.mark.parametrize("fields", [{}, {"title": None}])
def test_titles_may_be_missing(tmp_path, fields):
    untitled = {"paragraphs": CAPITALS["paragraphs"], **fields}
    path = write(tmp_path / "a.json", untitled)
    untitled_first = FIRST._replace(title="")
    untitled_second = SECOND._replace(title="")
    assert read(path, "v1.1") == [untitled_first, untitled_second]


def answer(text: object, start: object) -> dict:
    return {"answers": [{"text": text, "answer_start": start}]}


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (answer("the capital", 8), "'the capital' is not in the context at 8"),
        (answer("the capitol", 9), "'the capitol' is not in the context at 9"),
        (answer("the capital", -35), "at -35"),
        (answer("Lyon", 10**30), f"at {10**30}"),
        (answer(" ", 5), "an empty answer"),
        (answer("Paris", False), "bool 'answer_start'"),
        (answer("Paris", 0.0), "float 'answer_start'"),
        (answer(["Paris"], 0), "list 'text'"),
        ({"answers": [{"text": "Paris"}]}, "'answer_start' of type int"),
        ({"answers": ["Paris"]}, "found str"),
        ({"answers": {"text": ["Paris"], "answer_start": [0]}}, "dict 'answers'"),
        ({"answers": None}, "'answers'"),
        ({"question": " "}, "an empty question"),
        ({"question": 3}, "int 'question'"),
        ({"is_impossible": True}, "is_impossible is True and there are 2"),
        ({"is_impossible": None}, "is_impossible is None"),
    ],
)
def test_invalid_questions_are_bad_records(tmp_path, change, key):
    changed = ENTRY | change
    damaged = article("Capitals", PARIS, NOWHERE, changed)
    path = write(tmp_path / "a.json", colours(0), damaged)
    message = failure(read, path, "v2.0")
    assert message.startswith(f"{path}, question q1: ")
    assert key in message
    assert "max_bad_records=0" in message
    bad = BadRecords(1)
    assert len(read(path, "v2.0", bad=bad)) == 9
    assert bad.count == 1
    assert key in bad.first[0]


def articles(*values: object) -> dict:
    return {"data": list(values)}


def paragraph(**fields) -> dict:
    return articles({"title": "x", "paragraphs": [fields]})


NUMBER_TITLE = article("Capitals", PARIS, ENTRY) | {"title": 1}
NUMBER_ID = article("x", PARIS, ENTRY | {"id": 7})


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ("", "not SQuAD's JSON"),
        ("{", "not SQuAD's JSON"),
        ('{"id": "1"}\n{"id": "2"}\n', ".jsonl"),
        ("[" * 100_000, "nested too deep"),
        ([1], "not SQuAD's JSON"),
        ({"articles": []}, "'data'"),
        (articles(), "no question"),
        ({"data": {"a": 1}}, "not SQuAD's JSON"),
        (articles({"title": "x"}), "'paragraphs'"),
        (articles("x"), "not SQuAD's JSON"),
        (paragraph(qas=1), "not SQuAD's JSON"),
        (paragraph(context=PARIS), "'qas'"),
        (paragraph(qas=[ENTRY]), "question q1: found fields 'qas'"),
        (paragraph(qas={"a": 1}, context=PARIS), "question 1: found str"),
        (articles(NUMBER_TITLE), "question q1: found int 'title'"),
        (articles(NUMBER_ID), "question 7: found int 'id'"),
        (articles(article("x", "\t", ENTRY)), "question q1: an empty context"),
        (articles(CAPITALS, CAPITALS), "question q1: the id 'q1' occurs twice"),
    ],
)
def test_invalid_json_is_refused(tmp_path, content, key):
    path = tmp_path / "a.json"
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text)
    message = failure(read, path, "v1.1")
    assert message.startswith(str(path))
    assert key in message


def test_json_in_another_encoding_is_refused(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS)
    for encoding in ("utf-16", "utf-16-le"):
        path.write_bytes(json.dumps({"data": [CAPITALS]}).encode(encoding))
        assert str(path) in failure(read, path, "v1.1")


def row(question: Question, /, **changes) -> dict:
    """A question as a row of Hugging Face."""
    texts = [text for text, _ in question.answers]
    starts = [start for _, start in question.answers]
    values = {
        "id": question.id,
        "title": question.title,
        "context": question.context,
        "question": question.question,
        "answers": {"text": texts, "answer_start": starts},
        "more": 1,
    }
    return values | changes


def write_rows(path, *rows: dict) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".jsonl" in path.name:
        content = writers.json_lines(*rows)
        compressed = gzip.compress(content) if path.suffix == ".gz" else content
        path.write_bytes(compressed)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        writers.arrow(path, pa.Table.from_pylist(list(rows)))
    return str(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_rows_are_questions(tmp_path, name):
    """Equal passages become one object."""
    path = write_rows(tmp_path / name, row(FIRST), row(SECOND), row(THIRD))
    found = read(path, "v2.0")
    assert found == [FIRST, SECOND, THIRD]
    first, second, third = found
    assert first.context is second.context
    assert first.context is third.context
    message = failure(read, path, "v1.1")
    assert path in message
    assert "version=v2.0" in message


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_rows_have_the_fingerprint_of_the_official_form(tmp_path, name):
    path = write_rows(tmp_path / name, row(FIRST), row(SECOND), row(THIRD))
    three_questions = article("Capitals", PARIS, ENTRY, SECOND_ENTRY, NOWHERE)
    official = write(tmp_path / "b.json", three_questions)
    fingerprints = []
    for source in (path, str(official)):
        splits_of_source = squad.read(source, "v2.0", BadRecords())
        dataset = splits_of_source[""]
        fingerprints.append(dataset.fingerprint)
    of_rows, of_official = fingerprints
    assert of_rows == of_official


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_ids_of_rows_may_be_numbers(tmp_path, name):
    first = row(FIRST, id=7)
    second = row(SECOND, id=2**62)
    path = write_rows(tmp_path / name, first, second)
    ids = [question.id for question in read(path, "v1.1")]
    assert ids == ["7", str(2**62)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("has_column", [True, False])
def test_rows_may_have_no_titles(tmp_path, name, has_column):
    rows = [row(FIRST, title=None), row(SECOND, title=None)]
    if not has_column:
        for values in rows:
            del values["title"]
    path = write_rows(tmp_path / name, *rows)
    titles = [question.title for question in read(path, "v1.1")]
    assert titles == ["", ""]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.arrow"])
def test_answer_positions_count_a_byte_order_mark(tmp_path, name):
    answers = (("Lyon", 33),)
    marked = SECOND._replace(context=f"\ufeff{PARIS}", answers=answers)
    path = write_rows(tmp_path / name, row(marked))
    assert read(path, "v1.1") == [marked]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"id": None}, "id"),
        ({"id": True}, "id"),
        ({"id": ["a"]}, "id"),
        ({"title": 3}, "int 'title'"),
        ({"context": None}, "'context'"),
        ({"context": " "}, "an empty context"),
        ({"question": ["a"]}, "list 'question'"),
        ({"answers": None}, "'answers'"),
        ({"answers": [{"text": "Paris", "answer_start": 0}]}, "list 'answers'"),
        ({"answers": {"text": ["Paris"]}}, "'answer_start'"),
        ({"answers": {"text": ["Paris"], "answer_start": []}}, "1 answers and 0 starts"),
        ({"answers": {"text": "Paris", "answer_start": [0]}}, "str 'text'"),
        ({"answers": {"text": [3], "answer_start": [0]}}, "the answer 3"),
        ({"answers": {"text": ["aris"], "answer_start": [True]}}, "True"),
        ({"answers": {"text": ["Paris"], "answer_start": ["0"]}}, "'0'"),
        ({"answers": {"text": ["Paris"], "answer_start": [1]}}, "at 1"),
    ],
)
def test_invalid_rows_are_bad_records(tmp_path, change, key):
    path = write_rows(tmp_path / "a.jsonl", row(SECOND), row(FIRST, **change))
    message = failure(read, path, "v2.0")
    assert message.startswith(f"{path}, line 2: ")
    assert key in message
    assert read(path, "v2.0", bad=BadRecords(1)) == [SECOND]


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("a.jsonl", b"", "no question"),
        ("a.jsonl", b"[]", "line 1"),
        ("a.jsonl", b"{", "line 1"),
        ("a.jsonl", b'{"id": "\xff"}', "line 1"),
        ("a.parquet", b"", "parquet"),
        ("a.parquet.gz", b"", "decompress"),
        ("a.csv", b"id,context\n", ".csv"),
        ("a.txt", b"{}", ".txt"),
        ("dataset_info.json", b"{}", "dataset_info"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, key):
    path = tmp_path / name
    path.write_bytes(content)
    message = failure(read, path, "v1.1")
    assert str(path) in message
    assert key in message


def test_repeated_ids_are_refused(tmp_path):
    """Here they are in two files of a split."""
    write_rows(tmp_path / "train-1.jsonl", row(FIRST))
    write_rows(tmp_path / "train-2.parquet", row(SECOND, id="q1"))
    message = failure(read, tmp_path, "v1.1", "train")
    assert "train-2.parquet" in message
    assert "'q1'" in message


def test_files_are_splits_by_name(tmp_path):
    write(tmp_path / "train-v1.1.json", CAPITALS)
    write(tmp_path / "dev-v1.1.json", colours(1))
    (tmp_path / "README.md").write_text("")
    folder = str(tmp_path)
    found = squad.read(folder, "v1.1", BadRecords())
    assert set(found) == {"train", "validation"}
    train = found["train"]
    assert train.examples.questions == [FIRST, SECOND]
    assert train.split == "train"
    assert ".md 1" in train.notes[0]
    validation = found["validation"]
    assert len(validation) == 8
    heldout = choose(tmp_path, HELDOUT, heldout_share=0.1)
    assert heldout == validation.examples.questions


def test_splits_in_only_some_names_are_refused_or_ignored(tmp_path):
    write(tmp_path / "train-v1.1.json", CAPITALS)
    write(tmp_path / "predictions.json", colours(2))
    folder = str(tmp_path)
    message = failure(squad.read, folder, "v1.1", BadRecords())
    assert "'predictions.json'" in message
    whole = squad.read(folder, "v1.1", BadRecords(), ignore_splits=True)
    assert len(whole[""]) == 10


def test_layouts_of_hugging_face_are_read(tmp_path):
    for split, question in (("train", FIRST), ("validation", SECOND)):
        path = tmp_path / "plain_text" / f"{split}-00000-of-00001.parquet"
        write_rows(path, row(question))
    (tmp_path / "dataset_infos.json").write_text("{}")
    assert read(tmp_path, "v1.1", "train") == [FIRST]
    assert read(tmp_path, "v1.1", "validation") == [SECOND]


def test_splits_of_save_to_disk_are_read(tmp_path):
    (tmp_path / "dataset_dict.json").write_text("{}")
    for split, question in (("train", FIRST), ("mine", SECOND)):
        path = tmp_path / split / "data-00000-of-00001.arrow"
        write_rows(path, row(question))
        (tmp_path / split / "state.json").write_text("{}")
    assert read(tmp_path, "v1.1", "train") == [FIRST]
    assert read(tmp_path, "v1.1", "mine") == [SECOND]


@pytest.mark.parametrize(
    ("files", "key"),
    [
        ([], "no files"),
        (["a.txt"], ".txt 1"),
        (["state.json"], ".json 1"),
        (["train.json", "notes.json"], "'notes.json'"),
        (["train-00000-of-00002.parquet"], "00001-of-00002"),
    ],
)
def test_partial_splits_and_folders_without_questions_are_refused(tmp_path, files, key):
    for name in files:
        write(tmp_path / name, CAPITALS)
    folder = str(tmp_path)
    message = failure(squad.read, folder, "v1.1", BadRecords())
    assert str(tmp_path) in message
    assert key in message


def test_a_single_shard_may_be_read(tmp_path):
    path = write_rows(tmp_path / "train-00000-of-00002.jsonl", row(FIRST))
    assert read(path, "v1.1") == [FIRST]


def test_missing_files_are_refused(tmp_path):
    assert "a.json" in failure(read, tmp_path / "a.json", "v1.1")


def test_articles_are_held_out_by_title(tmp_path):
    """Golden values: a change of the hash would move articles of existing runs."""
    villages = []
    for number in range(40):
        village = colours(number)
        (passage,) = village["paragraphs"]
        passage["context"] += f" This is village {number}."  # equal passages have one role
        villages.append(village)
    path = write(tmp_path / "a.json", *villages)
    titles = {question.title for question in choose(path, HELDOUT, heldout_share=0.2)}
    numbers = (0, 4, 8, 20, 24, 28, 30, 34, 38)
    expected = {f"article {number}" for number in numbers}
    assert titles == expected


def test_passages_with_two_titles_have_one_role(tmp_path):
    """None of ten passages, each in two articles, is both trained on and held out."""
    twice = []
    for number in range(10):
        text = f"It is {number}."
        for name in (f"a {number}", f"b {number}"):
            question = entry(name, "What?", text, str(number))
            twice.append(article(name, text, question))
    path = write(tmp_path / "squad.json", *twice)
    contexts = []
    for role in ROLES:
        questions = choose(path, role, heldout_share=0.4)
        contexts.append({question.context for question in questions})
    train, heldout = contexts
    assert train
    assert heldout
    assert not train & heldout
    assert len(train | heldout) == 10


def test_empty_roles_are_refused(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS)
    assert "'heldout'" in failure(choose, path, HELDOUT, heldout_share=0.01)


FEATURES = {
    "id": tfds.features.Text(),
    "title": tfds.features.Text(),
    "context": tfds.features.Text(),
    "question": tfds.features.Text(),
    "answers": tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32}),
}


def example(question: Question, /, **changes) -> bytes:
    """A question as TFDS serializes it."""
    texts = [text.encode() for text, _ in question.answers]
    starts = [start for _, start in question.answers]
    values = {
        "id": question.id.encode(),
        "title": question.title.encode(),
        "context": question.context.encode(),
        "question": question.question.encode(),
        "answers/text": texts,
        "answers/answer_start": starts,
        "is_impossible": int(question.impossible),
    }
    return writers.example(**values | changes)


@pytest.fixture
def questions(tmp_path):
    """Two on Paris, and nine on each of three articles."""
    capitals = article("Ä", PARIS, ENTRY, NOWHERE)
    things = []
    for number in range(3):
        things.append(colours(number, impossible=True))
    path = write(tmp_path / "written.json", capitals, *things)
    return read(path, "v2.0")


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord", "parquet"])
def test_tfds_folders_are_read(tmp_path, monkeypatch, questions, file_format):
    records = [example(question) for question in questions]
    shards = {
        "train": [records[:5], records[5:20]],
        "validation": [records[20:]],
    }
    folder = tmp_path / "squad" / "v2.0" / "3.0.0"
    writers.tfds_folder(folder, shards, file_format, **FEATURES)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    name = "tfds:squad/v2.0"
    train = choose(name, TRAIN, "v2.0", heldout_share=0.1)
    heldout = choose(name, HELDOUT, "v2.0", heldout_share=0.1)
    assert train == questions[:20]
    assert heldout == questions[20:]
    first, second, *_ = train
    assert first.context is second.context
    message = failure(read, name, "v1.1", "train")
    assert f"train.{file_format}-00000-of-00002, record 1" in message
    assert "'test'" in failure(choose, name, TRAIN, "v2.0", split="test")


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (b"junk", "not a tf.train.Example"),
        ({"context": b"\xff"}, "not UTF-8 (byte 0xff)"),
        ({"title": []}, "0 texts in 'title'"),
        ({"id": [b"a", b"b"]}, "2 texts in 'id'"),
        ({"answers/answer_start": [9]}, "2 answers and 1 starts"),
        ({"answers/answer_start": [9, 10]}, "'capital of France' is not in the context at 10"),
    ],
)
def test_damaged_tfds_records_are_bad_records(tmp_path, questions, record, key):
    first, _, third, *_ = questions
    damaged = record if isinstance(record, bytes) else example(first, **record)
    shards = {"train": [[example(third), damaged]]}
    folder_path = tmp_path / "1.0.0"
    folder = writers.tfds_folder(folder_path, shards, "tfrecord", **FEATURES)
    message = failure(read, folder, "v2.0", "train")
    assert "record 1" in message
    assert key in message
    assert read(folder, "v2.0", "train", bad=BadRecords(1)) == [third]


def test_tfds_records_with_a_wrong_checksum_are_bad_records(tmp_path, questions):
    _, _, third, fourth, *_ = questions
    examples = [example(third), example(fourth)]
    shards = {"train": [examples]}
    folder_path = tmp_path / "1.0.0"
    folder = writers.tfds_folder(folder_path, shards, "tfrecord", **FEATURES)
    path = folder / "c4-train.tfrecord-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)
    message = failure(read, folder, "v2.0", "train")
    assert "record 1: fails its checksum" in message
    assert read(folder, "v2.0", "train", bad=BadRecords(1)) == [third]


def test_answer_positions_in_tfds_count_a_byte_order_mark(tmp_path):
    answers = (("Lyon", 33),)
    marked = SECOND._replace(context=f"\ufeff{PARIS}", answers=answers)
    shards = {"train": [[example(marked)]]}
    folder = writers.tfds_folder(tmp_path / "1.0.0", shards, "tfrecord", **FEATURES)
    assert read(folder, "v1.1", "train") == [marked]


def test_other_tfds_folders_are_refused(tmp_path):
    folder = writers.tfds_folder(tmp_path / "1.0.0", {"train": [[b""]]}, "tfrecord")
    assert "0 texts in 'id'" in failure(read, folder, "v1.1", "train")


@pytest.mark.parametrize(
    ("version", "articles", "questions", "impossible"),
    [
        ("v1.1", 36, 7614, 0),
        ("v2.0", 26, 8721, 4400),
    ],
)
def test_counts_of_published_questions(shared_data, version, articles, questions, impossible):
    path = shared_data(f"squad/squad_{version}_dev.json.xz")
    found = read(path, version)
    titles = {question.title for question in found}
    unanswered = [question for question in found if question.impossible]
    assert len(titles) == articles
    assert len(found) == questions
    assert len(unanswered) == impossible
