import pytest

from gmlp_flax.data import splits
from gmlp_flax.data.text.selection import EVERYTHING, Selection, open_side
from gmlp_flax.errors import DataError
from tests.data import writers
from tests.data.text.preparing import TEXTS


def picked(share: float, documents: list[str], whole: bool = True) -> tuple[list[str], list[str]]:
    train, heldout = (list(Selection(share, side).pick(iter(documents), whole)) for side in splits.SIDES)
    return train, heldout


@pytest.mark.parametrize("whole", [True, False])
def test_sides_are_by_content(whole):
    train, heldout = picked(0.3, TEXTS, whole)
    assert heldout == [text for text in TEXTS if splits.is_heldout(text, 0.3)]
    assert train == [text for text in TEXTS if not splits.is_heldout(text, 0.3)]
    assert list(EVERYTHING.pick(iter(TEXTS), whole)) == TEXTS


def test_one_document_is_cut_at_a_line():
    text = "one\ntwo\nthree\nfour\n"
    assert picked(0.4, [text]) == (["one\ntwo\n"], ["three\nfour\n"])
    assert sorted(map(len, picked(0.4, [text], whole=False))) == [0, 1]
    document = "".join(f"line {i}\n" for i in range(100))
    (train,), (heldout,) = picked(0.2, [document])
    assert train + heldout == document and train.endswith("\n")
    assert 0.2 <= len(heldout) / len(document) < 0.22


def test_one_line_cannot_be_cut():
    with pytest.raises(DataError, match="side 'train' with heldout_share=0.3"):
        picked(0.3, ["one line"])


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(0.1, "test"), "side 'test'"),
        (Selection(1.0), "heldout_share=1.0"),
        (Selection(0.0, "heldout"), "side 'heldout' needs a heldout_share"),
    ],
)
def test_check(selection, message):
    with pytest.raises(DataError, match=message):
        selection.check()


@pytest.mark.parametrize(
    ("names", "options", "train", "heldout"),
    [
        (("train", "validation"), {}, ("train", 0.0), ("validation", 0.0)),
        (("train",), {}, ("train", 0.2), ("train", 0.2)),
        (("validation",), {}, ("", 0.2), ("", 0.2)),
        (("train", "validation"), {"split": "validation"}, ("validation", 0.2), ("validation", 0.2)),
        (("train", "dev"), {"heldout_split": "dev"}, ("train", 0.0), ("dev", 0.0)),
        (("a", "b"), {}, ("", 0.2), ("", 0.2)),
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
