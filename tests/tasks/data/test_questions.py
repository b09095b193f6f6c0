"""Questions on passages as windows of a model, and the notes on them."""

import pytest
from numpy.testing import assert_array_equal

from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.tasks.data.questions import QuestionData, windows_of
from tests.data.finetuning.squad_files import article, colours, entry, write
from tests.failures import failure
from tests.tasks import by_hand, question_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight articles of both versions, and a tokenizer."""
    return question_files.write_all(tmp_path_factory.mktemp("squad"))


def question_data(folder, version: str = "v1.1", **data) -> QuestionData:
    config = question_files.config(folder, version, **data)
    return QuestionData(config)


def questions_of(data, role: str) -> list:
    """The questions of a role."""
    return data.dataset(role).examples.questions


def test_article_is_in_one_split(folder):
    data = question_data(folder)
    train = {question.context for question in questions_of(data, TRAIN)}
    heldout = {question.context for question in questions_of(data, HELDOUT)}
    assert not train & heldout
    assert len(train | heldout) == 8
    assert data.notes() == []


def test_windows_follow_the_config(folder):
    data = question_data(folder)
    windows = by_hand.all_examples(data.examples(HELDOUT))
    questions = questions_of(data, HELDOUT)
    expected = windows_of(data.config, data.tokenizer, questions)
    assert len(windows) == len(expected)
    assert data.evaluation_examples() == len(expected)
    assert data.examples(HELDOUT).length == 48
    assert len(windows[0]["tokens"]) == 48
    for index in (0, len(windows) - 1):
        for name, value in expected[index].items():
            assert_array_equal(windows[index][name], value)


def test_passages_in_both_splits_are_counted(folder, tmp_path):
    old = colours(0)
    new = colours(20)
    new["paragraphs"][0]["context"] += " The end."
    path = write(tmp_path / "heldout.json", old, new)
    data = question_data(folder, heldout=str(path))
    [note] = data.notes()
    assert "50%" in note
    write(path, new)
    data = question_data(folder, heldout=str(path))
    assert data.notes() == []


@pytest.mark.parametrize("version", ["v1.1", "v2.0"])
def test_lines_and_summary(folder, version):
    data = question_data(folder, version)
    dataset = data.dataset(TRAIN)
    count = len(dataset)
    [line, *_] = data.lines(TRAIN)
    for fact in ("train: ", f"{count} questions", f"{version}.json"):
        assert fact in line
    summary = data.summary(TRAIN)
    assert summary.units == "questions"
    assert summary.examples == count
    assert summary.classes == {}
    contexts = []
    for question in questions_of(data, TRAIN):
        contexts.append(question.context)
    encoded = data.tokenizer.encode_batch(contexts)
    lengths = [len(ids) for ids in encoded]
    tokens = summary.tokens
    assert tokens.examples == count
    assert tokens.longest == max(lengths)
    assert tokens.cut == 0  # long passages are read in windows


@pytest.fixture
def odd(folder, tmp_path):
    """Training data with an answer that is part of a word, one without a token, and one that is not
    in its passage."""
    context = "red\u00ad \u200d green greenish"
    good = entry("a", "which?", context, "red")
    part_of_a_word = entry("b", "which?", context, "gr")
    without_token = entry("c", "which?", context, "\u200d")
    wrong = entry("d", "which?", context, "red")
    wrong["answers"] = [{"text": "blue", "answer_start": 0}]
    questions = article("x", context, good, part_of_a_word, without_token, wrong)
    path = write(tmp_path / "a.json", questions)
    heldout = str(folder / "v1.1.json")
    return question_data(folder, train=str(path), heldout=heldout, max_bad_records=1)


def test_skipped_questions_are_reported(odd, capsys):
    ids = [question.id for question in odd.examples(TRAIN).questions]
    assert ids == ["a", "b"]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("train questions: 1 of 3 have an answer that no token holds")
    note = odd.lines(TRAIN)[-1]
    assert note.startswith("1 bad record skipped, the first: ")
    assert "question d" in note
    odd.examples(HELDOUT)
    assert capsys.readouterr().err == ""


def test_bad_held_out_questions_are_skipped_up_to_the_limit(odd):
    data = odd.config.data
    data.update(train=data.heldout, heldout=data.train)
    ids = []
    for question in questions_of(odd, HELDOUT):
        ids.append(question.id)
    assert ids == ["a", "b", "c"]
    assert "question d" in odd.lines(HELDOUT)[-1]
    data.max_bad_records = 0
    message = failure(QuestionData(odd.config).dataset, HELDOUT)
    assert message.startswith("config.data.heldout: ")
    assert "question d" in message


def titles_of(data, role: str) -> set[str]:
    """The titles of the articles of a role."""
    return {question.title for question in questions_of(data, role)}


def test_split_all_reads_every_file(folder, tmp_path):
    articles = [colours(number) for number in range(8)]
    write(tmp_path / "train-v1.1.json", *articles[:6])
    write(tmp_path / "dev-v1.1.json", *articles[6:])
    data = question_data(folder, train=str(tmp_path), split="all")
    train = titles_of(data, TRAIN)
    heldout = titles_of(data, HELDOUT)
    assert len(train) > 2
    assert not train & heldout
    assert len(train | heldout) == 8


@pytest.fixture
def spoiled(folder, tmp_path):
    """A folder with eight good articles and one that has a bad question."""
    articles = [colours(number) for number in range(9)]
    [paragraph] = articles[8]["paragraphs"]
    bad_question = paragraph["qas"][0]
    bad_question["answers"] = [{"text": "lost", "answer_start": 0}]
    write(tmp_path / "train-v1.1.json", *articles)
    return tmp_path


def test_bad_questions_of_a_shared_file_are_skipped(folder, spoiled):
    path = str(spoiled / "train-v1.1.json")
    data = question_data(folder, train=path, max_bad_records=1)
    assert sum(by_hand.split_sizes(data)) == 9 * 8 - 1
    for role in ROLES:
        assert "8-house" in data.lines(role)[-1]


def test_bad_questions_are_refused_unless_allowed(folder, spoiled):
    data = question_data(folder, train=str(spoiled / "train-v1.1.json"))
    assert "max_bad_records=0" in failure(data.dataset, TRAIN)


def test_bad_questions_are_skipped_if_another_split_is_unread(folder, spoiled):
    write(spoiled / "test-v1.1.json", colours(20))
    data = question_data(folder, train=str(spoiled), max_bad_records=1)
    assert sum(by_hand.split_sizes(data)) == 9 * 8 - 1


def test_search_skips_bad_questions_of_the_split_it_divides(folder, spoiled):
    """And does not read the other split."""
    (spoiled / "dev-v1.1.json").write_text("not JSON")
    options = {"max_bad_records": 1, "search": True, "heldout_share": 0.3}
    data = question_data(folder, train=str(spoiled), **options)
    sizes = by_hand.split_sizes(data)
    assert min(sizes) > 0
    assert sum(sizes) < 9 * 8
    data.config.data.search = False
    report = QuestionData(data.config)
    assert "dev-v1.1.json" in failure(report.dataset, HELDOUT)


def test_length_without_room_for_a_passage_is_refused(folder):
    data = question_data(folder)
    data.config.model.length = 15
    message = failure(data.evaluation_examples)
    assert message.startswith("config.model.length: length=15")
    assert "max_query=12" in message


def test_error_for_missing_data_names_the_path(folder):
    data = question_data(folder, train="")
    assert "tfds:squad/v1.1" in failure(data.dataset, TRAIN)
