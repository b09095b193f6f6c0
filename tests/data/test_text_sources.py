import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gmlp_flax.data.errors import DataError
from gmlp_flax.data.text_sources import read_documents, split_documents


def write_lines(path, *records, opener=open):
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def failure(path) -> str:
    with pytest.raises(DataError) as caught:
        list(read_documents(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_text_file_is_one_document(tmp_path):
    path = tmp_path / "notes.md"
    path.write_bytes(b"\xef\xbb\xbfone\ntwo \xe2\x82\xac\n")
    assert list(read_documents(path)) == ["one\ntwo €\n"]


@pytest.mark.parametrize("suffix, opener", [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_json_lines(tmp_path, suffix, opener):
    path = write_lines(tmp_path / f"a.jsonl{suffix}", {"text": "one"}, {"id": 3, "text": "two\n€"}, opener=opener)
    assert list(read_documents(path)) == ["one", "two\n€"]


def test_folder_is_read_recursively_in_order_of_names(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "c" / "2.txt").write_text("two")
    (tmp_path / "b" / "empty.txt").write_text(" \n")
    (tmp_path / "b" / "picture.png").write_bytes(b"\xff")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / "a.txt").write_text("one")
    write_lines(tmp_path / "z.jsonl.xz", {"text": "three"}, opener=lzma.open)
    assert list(read_documents(tmp_path)) == ["one", "two", "three"]


def test_missing_path_is_reported_before_reading(tmp_path):
    with pytest.raises(DataError, match=r"no text at '.*nowhere': expected a file or a folder; check the path"):
        read_documents(tmp_path / "nowhere")


def test_folder_without_text(tmp_path):
    (tmp_path / "a.png").touch()
    assert "holds no readable text: expected files ending in .txt, .txt.gz" in failure(tmp_path)


def test_empty_corpus(tmp_path):
    (tmp_path / "a.txt").touch()
    assert "holds no text: 1 file(s) read, all empty" in failure(tmp_path)


def test_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ncaf\xe9\n")
    assert "a.txt, line 2: not UTF-8 (byte 0xe9); convert it" in failure(tmp_path / "a.txt")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "one"}\n{"text": "caf\xe9"}\n')
    assert "b.jsonl, line 2: not UTF-8 (byte 0xe9)" in failure(tmp_path / "b.jsonl")


def test_bad_json_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": \n')
    assert "a.jsonl, line 2: not JSON (Expecting value); expected one object a line" in failure(tmp_path)


@pytest.mark.parametrize(
    "record, found", [({"body": "x", "id": 1}, "fields 'body', 'id'"), ({"text": 3}, "fields 'text'"), ([1], "list")]
)
def test_missing_text_field(tmp_path, record, found):
    path = write_lines(tmp_path / "a.jsonl", {"text": "one"}, record)
    assert f"a.jsonl, line 2: found {found}; expected an object with a string field 'text'" in failure(path)


@pytest.mark.parametrize("suffix, opener", [(".gz", gzip.open), (".xz", lzma.open)])
def test_truncated_archive(tmp_path, suffix, opener):
    path = write_lines(tmp_path / f"a.jsonl{suffix}", *({"text": str(i**9)} for i in range(99)), opener=opener)
    path.write_bytes(path.read_bytes()[:-20])
    assert f"a.jsonl{suffix}: truncated or not a {suffix} archive" in failure(path)
    path.write_bytes(b"plain text")
    assert f"a.jsonl{suffix}: truncated or not a {suffix} archive" in failure(path)


def test_unreadable_file(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone")
    assert "a.txt: cannot be read (No such file or directory)" in failure(tmp_path)


@given(st.lists(st.text(), min_size=2, max_size=30), st.randoms())
def test_split_depends_on_content_alone(documents, random):
    shuffled = documents * 2
    random.shuffle(shuffled)
    try:
        train, heldout = split_documents(documents, 0.5)
    except DataError:
        return
    again = split_documents(shuffled, 0.5)
    assert [sorted(side) for side in again] == [sorted(train * 2), sorted(heldout * 2)]
    assert not set(train) & set(heldout)


def test_split_share():
    train, heldout = split_documents((f"document {i}" for i in range(2000)), 0.1)
    assert len(train) + len(heldout) == 2000
    assert 150 < len(heldout) < 250


def test_single_document_is_cut_at_a_line():
    document = "".join(f"line {i}\n" for i in range(100))
    (train,), (heldout,) = split_documents([document], 0.2)
    assert train + heldout == document
    assert train.endswith("\n")
    assert 0.2 <= len(heldout) / len(document) < 0.22


@pytest.mark.parametrize("documents", [[], ["one line"], ["same", "same"]])
def test_empty_side(documents):
    message = rf"{len(documents)} document\(s\) split with heldout_share=0.3 leave no (training|held-out) text; use"
    with pytest.raises(DataError, match=message):
        split_documents(documents, 0.3)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_bad_share(share):
    with pytest.raises(DataError, match="is not between 0 and 1; 0.05 holds out"):
        split_documents(["one", "two"], share)


def test_real_books(shared_data):
    documents = read_documents(shared_data("text/books_130.jsonl.xz"))
    assert len(next(documents)) > 10_000
    documents.close()
