import gzip
import json
import lzma

import numpy as np
import pytest
import tensorflow_datasets as tfds

from gmlp_flax.data.finetuning import squad
from gmlp_flax.io.records import BadRecords
from tests.data import writers
from tests.data.finetuning.squad_files import article, colours, entry, read, write
from tests.failures import failure

PARIS = "Paris is the capital of France. Lyon is not."
ENTRY = entry("q1", "What is Paris?", PARIS, "the capital", "capital of France")
CAPITALS = article("Capitals", PARIS, ENTRY, entry("q2", "What is not?", PARIS, "Lyon"))
NOWHERE = entry("q3", "What is Rome?", PARIS, is_impossible=True)


def test_official_json(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS, version="1.1")
    first, second = read(path, "v1.1")
    assert first == ("q1", "Capitals", PARIS, "What is Paris?", (("the capital", 9), ("capital of France", 13)))
    assert second.id == "q2" and not second.impossible
    for packed, module in (("a.json.gz", gzip), ("a.json.xz", lzma)):
        (tmp_path / packed).write_bytes(module.compress(path.read_bytes()))
        assert read(tmp_path / packed, "v1.1") == [first, second]


def test_a_byte_order_mark_and_a_remote_file(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS)
    expected = read(path, "v1.1")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path, "v1.1") == expected == read(f"{writers.remote(tmp_path)}/a.json", "v1.1")


def test_questions_without_answers(tmp_path):
    path = write(tmp_path / "a.json", article("Capitals", PARIS, ENTRY | {"is_impossible": False}, NOWHERE))
    first, second = read(path, "v2.0")
    assert second == ("q3", "Capitals", PARIS, "What is Rome?", ()) and second.impossible and not first.impossible
    assert "question q3: no answer, which only v2.0 allows; set config.squad.version=v2.0" in failure(
        read, path, "v1.1"
    )


def answer(text, start):
    return {"answers": [{"text": text, "answer_start": start}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (answer("the capital", 8), "the answer 'the capital' is not in the context at 8, its answer_start"),
        (answer("the capitol", 9), "the answer 'the capitol' is not in the context at 9"),
        (answer(" ", 5), "an empty answer"),
        (answer("Paris", False), "found bool 'answer_start'"),
        (
            {"answers": [{"text": "Paris"}]},
            "found fields 'text'; expected SQuAD's format, with 'answer_start' of type int",
        ),
        ({"answers": None}, "found fields 'id', 'question', 'answers'; expected SQuAD's"),
        ({"question": " "}, "an empty question"),
        ({"is_impossible": True}, "is_impossible is True beside 2 answer(s)"),
    ],
)
def test_a_bad_question(tmp_path, change, message):
    path = write(tmp_path / "a.json", colours(0), article("Capitals", PARIS, NOWHERE, ENTRY | change))
    found = failure(read, path, "v2.0")
    assert found.startswith(f"{path}, article 2 ('Capitals'), paragraph 1, question q1: ") and message in found
    bad = BadRecords(1)
    assert len(read(path, "v2.0", bad=bad)) == 9 and bad.count == 1 and message in bad.first[0]
    assert "max_bad_records=0" in failure(read, path, "v2.0", bad=BadRecords())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ([1], "found list; expected SQuAD's"),
        ({"articles": []}, "found fields 'articles'; expected SQuAD's"),
        ({"data": []}, "no question in it"),
        ({"data": [{"title": "x"}]}, ", article 1: found fields 'title'; expected "),
        ({"data": [{"title": "x", "paragraphs": [{"qas": []}]}]}, ", article 1 ('x'), paragraph 1: found fields 'qas'"),
        ({"data": [article("x", PARIS, "question")]}, ", paragraph 1, question 1: found str"),
        ({"data": [article("x", "\t", ENTRY)]}, ", paragraph 1, question q1: an empty context"),
        ({"data": [CAPITALS] * 2}, "article 2 ('Capitals'), paragraph 1, question q1: the id 'q1' occurs twice"),
    ],
)
def test_a_bad_file(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found = failure(read, path, "v1.1")
    assert found.startswith(str(path)) and message in found


def test_what_is_no_file(tmp_path):
    assert "nothing at " in failure(read, tmp_path / "a.json", "v1.1")
    write(tmp_path / "b.json", CAPITALS)
    assert f"reading {tmp_path} failed" in failure(read, tmp_path, "v1.1")
    assert "has no splits" in failure(read, tmp_path / "b.json", "v1.1", "train")


def test_sides_that_are_not_there(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS)
    assert "the articles of " in failure(squad.read_side, path, "heldout", "v1.1", heldout_share=0.01)
    assert "has no splits" in failure(squad.read_side, path, "train", "v1.1", split="train")
    assert squad.read_side(path, "heldout", "v1.1", split="train")


def test_a_passage_under_two_titles_is_on_one_side(tmp_path):
    """Of ten passages, each in two articles of other names, none is both trained on and held out."""
    text = "It is {}."
    articles = [
        article(f"{side} {i}", text.format(i), entry(f"{side}-{i}", "What?", text.format(i), str(i)))
        for side in "ab"
        for i in range(10)
    ]
    path = write(tmp_path / "squad.json", *articles)
    train, heldout = (
        {q.context for q in squad.read_side(str(path), side, "v1.1", heldout_share=0.4)}
        for side in ("train", "heldout")
    )
    assert train and heldout and not train & heldout and len(train | heldout) == 10


FEATURES = {
    "id": tfds.features.Text(),
    "title": tfds.features.Text(),
    "context": tfds.features.Text(),
    "question": tfds.features.Text(),
    "answers": tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32}),
}


def example(question, **changes) -> bytes:
    """A question as TFDS serialises it."""
    values = {
        "id": question.id.encode(),
        "title": question.title.encode(),
        "context": question.context.encode(),
        "question": question.question.encode(),
        "answers/text": [text.encode() for text, _ in question.answers],
        "answers/answer_start": [start for _, start in question.answers],
        "is_impossible": int(question.impossible),
    }
    return writers.example(**values | changes)


@pytest.fixture
def questions(tmp_path):
    path = write(tmp_path / "written.json", article("Ä", PARIS, ENTRY, NOWHERE), *(colours(i, True) for i in range(3)))
    return read(path, "v2.0")


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord", "parquet"])
def test_tfds(tmp_path, monkeypatch, questions, file_format):
    records = [example(question) for question in questions]
    splits = {"train": [records[:5], records[5:20]], "validation": [records[20:]]}
    writers.tfds_folder(tmp_path / "squad" / "v2.0" / "3.0.0", splits, file_format, **FEATURES)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    train, heldout = (
        squad.read_side("tfds:squad/v2.0", side, "v2.0", heldout_share=0.1) for side in ("train", "heldout")
    )
    assert train == questions[:20] and heldout == questions[20:]
    assert train[0].context is train[1].context
    assert "the split 'validation' of " in failure(
        squad.read_side, "tfds:squad/v2.0", "train", "v2.0", split="validation", heldout_share=0.1
    )
    assert "no split 'dev'" in failure(squad.read_side, "tfds:squad/v2.0", "train", "v2.0", split="dev")
    assert f"train.{file_format}-00000-of-00002, record 1: no answer" in failure(
        squad.read_side, "tfds:squad/v2.0", "train", "v1.1"
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"junk", "record 1: not a tf.train.Example"),
        ({"context": b"\xff"}, "record 1: not UTF-8 (byte 0xff)"),
        ({"title": []}, "record 1: found 1 'id', 0 'title'"),
        ({"answers/answer_start": [9]}, "2 'answers/text' and 1 starts"),
        ({"answers/answer_start": [9, 10]}, "record 1: the answer 'capital of France' is not in the context at 10"),
    ],
)
def test_damaged_tfds_records(tmp_path, questions, record, message):
    damaged = record if isinstance(record, bytes) else example(questions[0], **record)
    splits = {"train": [[example(questions[2]), damaged]]}
    folder = writers.tfds_folder(tmp_path / "1.0.0", splits, "tfrecord", **FEATURES)
    assert message in failure(read, folder, "v2.0", "train")
    assert read(folder, "v2.0", "train", bad=BadRecords(1)) == [questions[2]]


def test_tfds_folders_of_something_else(tmp_path, questions):
    folder = writers.tfds_folder(tmp_path / "1.0.0", {"train": [[b""]]}, "tfrecord")
    assert "record 0: found 0 'id'" in failure(read, folder, "v1.1", "train")


@pytest.mark.parametrize(("version", "counts"), [("v1.1", (36, 7614, 0)), ("v2.0", (26, 8721, 4400))])
def test_published(shared_data, version, counts):
    questions = read(shared_data(f"squad/squad_{version}_dev.json.xz"), version)
    titles = {question.title for question in questions}
    assert (len(titles), len(questions), sum(question.impossible for question in questions)) == counts
