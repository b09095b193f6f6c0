import pytest

from gmlp_flax.data import splits
from gmlp_flax.data.text.corpora import open_corpus
from gmlp_flax.data.text.selection import EVERYTHING, Selection, describe, open_side
from gmlp_flax.errors import DataError
from tests.data import writers
from tests.data.text.preparing import TEXTS


def picked(share: float, documents: list[str], whole: bool = True) -> tuple[list[str], list[str]]:
    train, heldout = (list(Selection(share, side).pick(iter(documents), whole)) for side in splits.SIDES)
    return train, heldout


@pytest.mark.parametrize("whole", [True, False])
def test_sides_are_by_content(whole):
    train, heldout = picked(0.3, TEXTS, whole)
    assert heldout == [text for text in TEXTS if splits.is_on("heldout", text, 0.3)]
    assert train == [text for text in TEXTS if not splits.is_on("heldout", text, 0.3)]
    assert list(EVERYTHING.pick(iter(TEXTS), whole)) == TEXTS


def test_one_document_is_cut_at_a_line():
    text = "one\ntwo\nthree\nfour\n"
    assert picked(0.4, [text]) == (["one\ntwo\n"], ["three\nfour\n"])
    assert sorted(map(len, picked(0.4, [text], whole=False))) == [0, 1]
    document = "".join(f"line {i}\n" for i in range(100))
    (train,), (heldout,) = picked(0.2, [document])
    assert train + heldout == document and train.endswith("\n")
    assert 0.2 <= len(heldout) / len(document) < 0.22


def test_a_search_holds_out_another_part():
    (train, reported), (searched_train, searched) = picked(0.3, TEXTS), picked(-0.3, TEXTS)
    assert set(searched_train) == set(TEXTS) - set(reported) - set(searched) and set(searched) <= set(train)
    lines = [f"line {i}\n" for i in range(100, 200)]
    assert picked(-0.2, ["".join(lines)]) == (["".join(lines[:60])], ["".join(lines[60:80])])


def test_one_line_cannot_be_cut():
    with pytest.raises(DataError, match="side 'train' with heldout_share=0.3"):
        picked(0.3, ["one line"])


@pytest.mark.parametrize(
    ("names", "options", "train", "heldout"),
    [
        (("train", "validation"), {}, ("train", 0.0), ("validation", 0.0)),
        (("train",), {}, ("train", 0.2), ("train", 0.2)),
        (("validation",), {}, ("", 0.2), ("", 0.2)),
        (("train", "validation"), {"split": "validation"}, ("validation", 0.2), ("validation", 0.2)),
        (("train", "dev"), {"heldout_split": "dev"}, ("train", 0.0), ("dev", 0.0)),
        (("a", "b"), {}, ("", 0.2), ("", 0.2)),
        (("train", "validation"), {"split": "all"}, ("", 0.2), ("", 0.2)),
        (("train", "test"), {"split": "test"}, ("test", 0.2), ("test", 0.2)),
        (("test", "train_x", "valid", "dev"), {}, ("train", 0.0), ("dev", 0.0)),
    ],
)
def test_sides_of_a_corpus(tmp_path, names, options, train, heldout):
    for name in names:
        (tmp_path / f"{name}-00000-of-00001.jsonl").write_bytes(writers.json_lines({"text": name}))
    for side, (split, share) in zip(splits.SIDES, (train, heldout), strict=True):
        corpus, selection = open_side(str(tmp_path), side, **({"heldout_share": 0.2} | options))
        assert corpus.name == (f"{tmp_path} ({split})" if split else str(tmp_path))
        assert selection == (Selection(share, side) if share else EVERYTHING)


def test_a_split_that_a_corpus_does_not_have(tmp_path):
    (tmp_path / "train-00000-of-00001.jsonl").write_bytes(writers.json_lines({"text": "a"}))
    with pytest.raises(DataError, match="has no split 'dev': it has 'train'"):
        open_side(str(tmp_path), "train", heldout_split="dev", heldout_share=0.1)


def make(folder, *names):
    """A folder of files with one document each."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(writers.json_lines({"text": name}))
    return str(folder)


def test_no_split_for_a_side(tmp_path):
    path = make(tmp_path, "test_1.jsonl", "valid_1.jsonl")
    with pytest.raises(DataError, match="splits 'test', 'valid', and none for the side 'train': name one with split"):
        open_side(path, "train", heldout_share=0.1)
    path = make(tmp_path / "other", "test.jsonl", "train.jsonl")
    with pytest.raises(DataError, match="splits 'test', 'train', and none for the side 'heldout'.*with heldout_split"):
        open_side(path, "heldout")
    assert list(open_side(path, "heldout", heldout_split="test")[0].documents()) == ["test.jsonl"]


def test_the_files_of_the_sides_are_told(tmp_path):
    path = make(tmp_path, *(f"{name}_{i}.jsonl" for name in ("train", "val") for i in range(4)), "Test/a.jsonl", "b.md")
    opened = [open_side(path, side, heldout_share=0.1)[0] for side in splits.SIDES]
    assert describe(dict(zip(("to train on", "held out"), opened, strict=True))) == (
        "text: 4 files (train_0.jsonl, train_1.jsonl, train_2.jsonl, ...) to train on; "
        "4 files (val_0.jsonl, val_1.jsonl, val_2.jsonl, ...) held out; not read: 2 files (Test/a.jsonl, b.md)"
    )
    assert describe({"read": open_corpus(path, "test")}, 0.05).startswith(
        "text: 1 file (Test/a.jsonl) read; 5 % of the documents held out; not read: 9 files"
    )


def test_a_file_on_both_sides(tmp_path):
    path = make(tmp_path / "a", "x.jsonl", "in/y.jsonl")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.jsonl").symlink_to(tmp_path / "a" / "in" / "y.jsonl")
    (tmp_path / "c").symlink_to(tmp_path / "a")
    for other in ("a", "a/in", "a/in/y.jsonl", "b", "c", "c/in"):
        with pytest.raises(DataError, match="is held out and also trained on"):
            describe({"to train on": open_corpus(path), "held out": open_corpus(str(tmp_path / other))})
