import pytest

from gmlp_flax.data import corpora, in_memory
from gmlp_flax.data.errors import DataError
from gmlp_flax.data.selection import Selection, corpus_digest, key
from tests.data.preparing import TEXTS, corpus


@pytest.mark.parametrize("alone", [True, False])
def test_sides_are_those_of_the_corpora_module(alone):
    sides = [list(Selection(0.3, side).pick(iter(TEXTS), alone)) for side in ("train", "heldout")]
    assert tuple(sides) == corpora.split_documents(TEXTS, 0.3)
    assert list(Selection().pick(iter(TEXTS), alone)) == TEXTS


def test_one_document_is_cut_at_a_line():
    text = "one\ntwo\nthree\nfour\n"
    train, heldout = (list(Selection(0.4, side).pick(iter([text]), True)) for side in ("train", "heldout"))
    assert (train, heldout) == (["one\ntwo\n"], ["three\nfour\n"])
    assert len(list(Selection(0.4, "train").pick(iter([text]), False))) in (0, 1)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(0.1, "test"), "side 'test'; expected one of 'train', 'heldout'"),
        (Selection(1.0), "heldout_share=1.0; expected 0 to below 1"),
        (Selection(-0.1), "heldout_share=-0.1; expected"),
        (Selection(0.0, "heldout"), "side 'heldout' needs a heldout_share above 0"),
    ],
)
def test_check(selection, message):
    with pytest.raises(DataError, match=message):
        selection.check()


def test_digests():
    assert corpus_digest(corpus(2)) == corpus_digest(corpus(2)) != corpus_digest(corpus(3))
    assert corpus_digest(in_memory.corpus("a", ["x"])) != corpus_digest(in_memory.corpus("a", ["y"]))
    assert key(1, "a") == key(1, "a") != key("1", "a")
