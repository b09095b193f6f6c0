import pytest

from gmlp_flax.data.text.selection import Selection
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.data.text.tokenizer_training import cached_tokenizer, sample_documents
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecords
from tests.data.text.preparing import TEXTS, corpus, tokenizer


def sample(parts, characters, selection=Selection()):
    return list(sample_documents(corpus(parts), selection, characters, BadRecords()))


def test_all_of_a_small_corpus():
    assert sample(3, sum(map(len, TEXTS))) == TEXTS


def test_a_share_of_each_part_of_a_large_one():
    total, parts = sum(map(len, TEXTS)), corpus(4).parts
    taken = sample(4, total // 2)
    assert total // 2 <= sum(map(len, taken)) <= total // 2 + 4
    for part in parts:
        begun = "".join(text for text in taken if text in part.texts)
        assert "".join(part.texts).startswith(begun) and abs(len(begun) - part.size / 2) < max(map(len, TEXTS))


def test_heldout_documents_are_not_trained_on():
    chosen = Selection(0.3, "train")
    assert sample(1, 10**9, chosen) == list(chosen.pick(iter(TEXTS), True))


def test_cache(tmp_path):
    first = cached_tokenizer(corpus(2), 320, tmp_path)
    (file,) = tmp_path.glob("tokenizer-*.model")
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first == Tokenizer.load(file) == tokenizer()
    file.write_bytes(file.read_bytes()[:-9])
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first
    assert cached_tokenizer(corpus(2), 310, tmp_path).vocab_size == 310
    cached_tokenizer(corpus(2), 320, tmp_path, sample=2000)
    assert len(list(tmp_path.glob("tokenizer-*.model"))) == 3


@pytest.mark.parametrize("error", [DataError("line 3: found list"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [0, 50])
def test_what_stops_the_documents_is_raised_as_it_is(error, after):
    def documents():
        yield from TEXTS[:after]
        raise error

    with pytest.raises(type(error)) as caught:
        Tokenizer.train(documents(), 320)
    assert caught.value is error
