"""SentencePiece models and WordPiece vocabularies."""

from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.text.preparing import TEXTS, tokenizer
from tests.fuzz.damage import damaged

WORDS = [
    *"[PAD] [UNK] [CLS] [SEP] [MASK] The é".split(),
    *"abcdefghij",
    *(f"##{letter}" for letter in "abcdefghij"),
]


def make(folder):
    bases = [tokenizer().model, "\n".join(WORDS).encode(), "\r\n".join(WORDS).lower().encode()]

    def check(rng):
        path = folder / "tokenizer.model"
        path.write_bytes(damaged(rng.choice(bases), rng))
        found = Tokenizer.load(path)
        for text in (rng.choice(TEXTS), "a [MASK] é \ud800\0\u2028 bad", ""):
            ids, spans = found.encode_with_offsets(text)
            assert len(ids) == len(spans)
            masked = found.encode_masked(text)
            assert all(0 <= token < found.vocab_size for token in masked)
            found.decode(masked)
            [found.piece(token) for token in masked[:5]]
        found.encode_batch(TEXTS[:3], 1)
        _ = found.special_ids, found.checksum

    return check
