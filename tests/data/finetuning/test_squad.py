import gzip
import json
import lzma
import pickle
import random

import numpy as np
import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.finetuning import squad
from gmlp_flax.data.splits import Side
from gmlp_flax.errors import DataError
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
    assert first == (
        "q1",
        "Capitals",
        PARIS,
        "What is Paris?",
        (("the capital", 9), ("capital of France", 13)),
    )
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
    path = write(
        tmp_path / "a.json", article("Capitals", PARIS, ENTRY | {"is_impossible": False}, NOWHERE)
    )
    first, second = read(path, "v2.0")
    assert (
        second == ("q3", "Capitals", PARIS, "What is Rome?", ())
        and second.impossible
        and not first.impossible
    )
    assert (
        "question q3: no answer, which only v2.0 allows; set config.squad.version=v2.0"
        in failure(read, path, "v1.1")
    )


def answer(text, start):
    return {"answers": [{"text": text, "answer_start": start}]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            answer("the capital", 8),
            "the answer 'the capital' is not in the context at 8, its answer_start",
        ),
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
    path = write(
        tmp_path / "a.json", colours(0), article("Capitals", PARIS, NOWHERE, ENTRY | change)
    )
    found = failure(read, path, "v2.0")
    assert found.startswith(f"{path}, question q1: ") and message in found
    bad = BadRecords(1)
    assert len(read(path, "v2.0", bad=bad)) == 9 and bad.count == 1 and message in bad.first[0]
    assert "max_bad_records=0" in failure(read, path, "v2.0", bad=BadRecords())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ([1], "not SQuAD's JSON"),
        ({"articles": []}, "not SQuAD's JSON ('data')"),
        ({"data": []}, "no question in it"),
        ({"data": [{"title": "x"}]}, "not SQuAD's JSON ('paragraphs')"),
        ({"data": [{"title": "x", "paragraphs": [{"qas": 1}]}]}, "not SQuAD's JSON"),
        (
            {"data": [{"title": 1, "paragraphs": [{"context": "", "qas": [ENTRY]}]}]},
            "question q1: found int 'title'",
        ),
        ({"data": [article("x", PARIS, "question")]}, ", question 1: found str"),
        ({"data": [article("x", "\t", ENTRY)]}, ", question q1: an empty context"),
        ({"data": [CAPITALS] * 2}, ", question q1: the id 'q1' occurs twice"),
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
    assert f"{tmp_path}: expected a plain file" in failure(read, tmp_path, "v1.1")
    assert "has no split 'train'" in failure(read, tmp_path / "b.json", "v1.1", "train")


def test_sides_that_are_not_there(tmp_path):
    path = write(tmp_path / "a.json", CAPITALS)
    assert "the articles of " in failure(
        squad.read_side, path, Side("heldout", heldout_share=0.01), "v1.1"
    )
    assert "has no split 'train'" in failure(squad.read_side, path, Side("train", "train"), "v1.1")
    assert squad.read_side(path, Side("heldout", "train"), "v1.1")


def test_a_passage_under_two_titles_is_on_one_side(tmp_path):
    """Of ten passages, each in two articles of other names, none is both trained on and held
    out."""
    text = "It is {}."
    articles = [
        article(
            f"{side} {i}", text.format(i), entry(f"{side}-{i}", "What?", text.format(i), str(i))
        )
        for side in "ab"
        for i in range(10)
    ]
    path = write(tmp_path / "squad.json", *articles)
    train, heldout = (
        {q.context for q in squad.read_side(str(path), Side(side, heldout_share=0.4), "v1.1")}
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
    path = write(
        tmp_path / "written.json",
        article("Ä", PARIS, ENTRY, NOWHERE),
        *(colours(i, True) for i in range(3)),
    )
    return read(path, "v2.0")


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord", "parquet"])
def test_tfds(tmp_path, monkeypatch, questions, file_format):
    records = [example(question) for question in questions]
    splits = {"train": [records[:5], records[5:20]], "validation": [records[20:]]}
    writers.tfds_folder(tmp_path / "squad" / "v2.0" / "3.0.0", splits, file_format, **FEATURES)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    train, heldout = (
        squad.read_side("tfds:squad/v2.0", Side(side, heldout_share=0.1), "v2.0")
        for side in ("train", "heldout")
    )
    assert train == questions[:20] and heldout == questions[20:]
    assert train[0].context is train[1].context
    assert "the split 'validation' of " in failure(
        squad.read_side, "tfds:squad/v2.0", Side("train", "validation", heldout_share=0.1), "v2.0"
    )
    assert "no split 'dev'" in failure(
        squad.read_side, "tfds:squad/v2.0", Side("train", "dev"), "v2.0"
    )
    assert f"train.{file_format}-00000-of-00002, record 1: no answer" in failure(
        squad.read_side, "tfds:squad/v2.0", Side("train"), "v1.1"
    )


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"junk", "record 1: not a tf.train.Example"),
        ({"context": b"\xff"}, "record 1: not UTF-8 (byte 0xff)"),
        ({"title": []}, "record 1: found 1 'id', 0 'title'"),
        ({"answers/answer_start": [9]}, "2 'answers/text' and 1 starts"),
        (
            {"answers/answer_start": [9, 10]},
            "record 1: the answer 'capital of France' is not in the context at 10",
        ),
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


@pytest.mark.parametrize(
    ("version", "counts"), [("v1.1", (36, 7614, 0)), ("v2.0", (26, 8721, 4400))]
)
def test_published(shared_data, version, counts):
    questions = read(shared_data(f"squad/squad_{version}_dev.json.xz"), version)
    titles = {question.title for question in questions}
    assert (
        len(titles),
        len(questions),
        sum(question.impossible for question in questions),
    ) == counts


WORDS = (
    "the name of a class is bound to an object in its scope . , 1984's ( x ) 日本 naïve 🙂".split()
)


def slow_windows(tokens, room, stride):
    """(begin, number of tokens) of each window, by BERT's loop."""
    found, begin = [], 0
    while True:
        size = min(tokens - begin, room)
        found.append((begin, size))
        if begin + size == tokens:
            return found
        begin += min(size, stride)


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 30))
def test_widest_context(tokens, room, stride):
    windows = slow_windows(tokens, room, stride)
    found = squad.widest_context(*map(np.array, zip(*windows, strict=True)), tokens)
    for token in range(tokens):
        best = None
        for i, (begin, size) in enumerate(windows):
            if begin <= token < begin + size:
                context = min(token - begin, begin + size - 1 - token) + 0.01 * size
                if best is None or context > best[0]:
                    best = context, i
        assert found[token] == best[1]


@st.composite
def passages(draw):
    """A passage of words and spaces, and the begin and end of an answer in it."""
    rng = random.Random(draw(st.integers(0, 10**6)))
    text = "".join(
        rng.choice(WORDS) + rng.choice([" ", " ", "  ", ""])
        for _ in range(draw(st.integers(1, 40)))
    )
    start = draw(st.integers(0, len(text) - 1))
    return text, start, draw(st.integers(start + 1, len(text)))


def make(text, start, stop, question="what is a class ?", name="q"):
    answers = ((text[start:stop], start),) if start < stop else ()
    return squad.Question(name, "title", text, question, answers)


@given(passages(), st.integers(1, 8), st.integers(1, 10), st.sampled_from([1, 3, 9]))
def test_windows_against_a_slow_reference(tokenizer, passage, stride, spare, max_query):
    text, start, stop = passage
    # Two questions before it, one on another passage.
    questions = [make("Some other text.", 0, 4), make(text, 0, 0), make(text, start, stop)]
    length = max_query + squad.SPECIALS + spare
    windows = squad.Windows(questions, tokenizer, length=length, stride=stride, max_query=max_query)
    query = tokenizer.encode("what is a class ?")[:max_query]
    ids, spans = tokenizer.encode_with_offsets(text)
    answer = text[start:stop].strip()
    left = start + text[start:stop].find(answer)
    inside = [i for i, (a, b) in enumerate(spans) if b > left and a < left + len(answer) and answer]
    room = length - len(query) - 3
    expected = []
    for begin, size in slow_windows(len(ids), room, stride):
        tokens = [
            tokenizer.cls_id,
            *query,
            tokenizer.sep_id,
            *ids[begin : begin + size],
            tokenizer.sep_id,
        ]
        segments = [0] * (len(query) + 2) + [1] * (size + 1)
        whole = inside and begin <= inside[0] and inside[-1] < begin + size
        places = (
            [place - begin + len(query) + 2 for place in (inside[0], inside[-1])]
            if whole
            else [0, 0]
        )
        padding = [0] * (length - len(tokens))
        expected.append((tokens + padding, segments + padding, *places))
    numbers = windows.of_question(2)
    found = [windows[i] for i in numbers]
    assert [
        (w["tokens"].tolist(), w["segments"].tolist(), w["start"], w["end"]) for w in found
    ] == expected
    assert [w["index"] for w in found] == list(numbers) and numbers.stop == len(windows)
    assert (
        {w["tokens"].dtype.name for w in found}
        == {"int32"}
        == {w["start"].dtype.name for w in found}
    )
    assert all(windows[i]["start"] == 0 == windows[i]["end"] for i in windows.of_question(1))
    assert [target == squad.NO_TARGET for target in windows.targets] == [False, True, not inside]
    np.testing.assert_array_equal(windows.spans(2), spans)
    trained = squad.Windows(
        questions, tokenizer, length=length, stride=stride, max_query=max_query, training=True
    )
    assert (
        trained.left_out == (not inside) and trained.questions == questions[: 3 - trained.left_out]
    )
    for i in range(len(trained)):
        assert all(np.array_equal(trained[i][name], value) for name, value in windows[i].items())


def test_no_room(tokenizer):
    with pytest.raises(
        DataError, match="^length=12 has no room for a passage beside squad.max_query=9 "
    ):
        squad.Windows([make("text", 0, 4)], tokenizer, length=12, stride=4, max_query=9)
    assert len(squad.Windows([make("text", 0, 4)], tokenizer, length=13, stride=4, max_query=9)) > 0


def test_a_source(tokenizer):
    windows = squad.Windows(
        [make("some text " * 9, 5, 9)], tokenizer, length=32, stride=8, max_query=8
    )
    assert len(windows) > 1
    copy = pickle.loads(pickle.dumps(windows))
    assert all((copy[i]["tokens"] == windows[i]["tokens"]).all() for i in range(len(windows)))
