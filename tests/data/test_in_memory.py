import pickle

from gmlp_flax.data import in_memory


def test_corpus():
    corpus = in_memory.corpus("mine", ["one", " ", "two \ud800"])
    assert list(corpus.documents()) == ["one", "two \ud800"]
    assert [(part.name, part.size) for part in corpus.parts] == [("mine", 8)]
    assert pickle.loads(pickle.dumps(corpus)) == corpus


def test_fingerprint_is_of_the_content_and_where_documents_end():
    prints = [in_memory.corpus("x", texts).fingerprint for texts in (["ab", "c"], ["a", "bc"], ["abc"], ["ab", "c"])]
    assert len(set(prints)) == 3 and prints[0] == prints[3]
    assert in_memory.corpus("other name", ["abc"]).fingerprint == prints[2]
