import pytest

from gmlp_flax.data.text import tokenizer_training
from gmlp_flax.data.text.selection import Selection
from gmlp_flax.data.text.tokenizer import Tokenizer
from gmlp_flax.data.text.tokenizer_training import cached_tokenizer, train_tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.io.records import BadRecords
from tests.data.text.preparing import TEXTS, corpus, tokenizer


def sample(parts, characters, selection=Selection()):
    return list(tokenizer_training._sample(corpus(parts), selection, characters, BadRecords()))


def test_all_of_a_small_corpus():
    assert sample(3, sum(map(len, TEXTS))) == TEXTS
    assert train_tokenizer(corpus(3), 320) == tokenizer()


def test_a_share_of_each_part_of_a_large_one():
    total = sum(map(len, TEXTS))
    taken = sample(4, total // 2)
    assert total // 2 <= sum(map(len, taken)) <= total // 2 + 4
    sizes = [part.size for part in corpus(4).parts]
    for part, size in zip(corpus(4).parts, sizes, strict=True):
        joined, begun = "".join(part.texts), "".join(text for text in taken if text in part.texts)
        assert joined.startswith(begun) and abs(len(begun) - size / 2) < max(map(len, TEXTS))


def test_heldout_documents_are_not_trained_on():
    chosen = Selection(0.3, "train")
    assert sample(1, 10**9, chosen) == list(chosen.pick(iter(TEXTS), True))


def test_cached(tmp_path):
    first = cached_tokenizer(corpus(2), 320, tmp_path)
    (file,) = tmp_path.glob("tokenizer-*.model")
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first == Tokenizer.load(file)
    file.write_bytes(file.read_bytes()[:-9])
    assert cached_tokenizer(corpus(2), 320, tmp_path) == first
    assert cached_tokenizer(corpus(2), 310, tmp_path).vocab_size == 310
    cached_tokenizer(corpus(2), 320, tmp_path, sample=2000)
    assert len(list(tmp_path.glob("tokenizer-*.model"))) == 3


@pytest.mark.parametrize("error", [DataError("line 3: found list"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", [0, 50])
def test_what_stops_the_documents_is_raised_as_it_is(error, place):
    def documents():
        yield from TEXTS[:place]
        raise error

    with pytest.raises(type(error)) as caught:
        Tokenizer.train(documents(), 320)
    assert caught.value is error


def test_errors():
    with pytest.raises(DataError, match="vocab_size=100 is too small"):
        train_tokenizer(corpus(1), 100)
    with pytest.raises(DataError, match="heldout_share=2 is not between 0 and 1;"):
        train_tokenizer(corpus(1), 100, selection=Selection(2))
