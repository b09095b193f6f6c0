"""SentencePiece models, WordPiece vocabularies and tokenizer.json with WordPiece or byte pairs, alone
or with other files of a tokenizer."""

import json
import shutil

from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.text.byte_pair_files import over_bytes, over_characters
from tests.data.text.preparing import TEXTS, tokenizer
from tests.fuzz.damage import damaged, damaged_json

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*"abcdefghij"]
CONTINUED = [f"##{letter}" for letter in LETTERS]
WORDS = [*SPECIAL, "The", "é", *LETTERS, *CONTINUED]
LINES = "\n".join(WORDS)

NORMALIZER = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
MODEL = {
    "type": "WordPiece",
    "unk_token": "[UNK]",
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
    "vocab": {word: number for number, word in enumerate(WORDS)},
}
ADDED = {
    "id": len(WORDS),
    "content": "<x>",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}
DOCUMENT = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [ADDED],
    "normalizer": NORMALIZER,
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": None,
    "decoder": None,
    "model": MODEL,
}
CONFIG = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": False}
OTHER_FILES = {
    "tokenizer.json": {**DOCUMENT, "added_tokens": []},
    "tokenizer_config.json": CONFIG,
    "added_tokens.json": {"[PAD]": 0},
}


def make(folder):
    with_returns = LINES.replace("\n", "\r\n").lower()
    models = [tokenizer().model, LINES.encode(), with_returns.encode()]
    documents = [DOCUMENT]
    for make_byte_pairs in (over_bytes, over_characters):
        text = make_byte_pairs(TEXTS[:3], size=270).to_str()
        documents.append(json.loads(text))

    def write(path, rng):
        """A tokenizer, and perhaps other files in its folder."""
        kind = rng.randrange(4)
        if kind == 0:
            path.write_bytes(damaged_json(rng.choice(documents), rng))
        elif kind == 1:
            path.write_text(LINES)
        else:
            path.write_bytes(damaged(rng.choice(models), rng))
        for name, content in OTHER_FILES.items():
            if rng.random() < 0.3:
                data = json.dumps(content).encode()
                if rng.random() < 0.7:
                    data = damaged_json(content, rng)
                (path.parent / name).write_bytes(data)

    def check(rng):
        shutil.rmtree(folder / "in", ignore_errors=True)
        (folder / "in").mkdir()
        path = folder / "in" / rng.choice(["tokenizer.model", "vocab.txt", "tokenizer.json"])
        write(path, rng)
        keys = {"do_lower_case": rng.choice(["auto", "auto", "True", "false"])}
        found = Tokenizer.load(rng.choice([path, path.parent]), **keys)
        for text in (rng.choice(TEXTS), "a [MASK] é \ud800\0\u2028 bad <x>", ""):
            ids, spans = found.encode_with_offsets(text)
            assert ids.tolist() == found.encode(text)
            assert spans.shape == (len(ids), 2)
            masked = found.encode_masked(text)
            assert all(0 <= token < found.vocab_size for token in masked)
            found.decode(masked)
            "".join(map(found.piece, masked))
        found.encode_batch(TEXTS[:3], 1)
        assert found.byte_counts().shape == (found.vocab_size,)
        copy = Tokenizer(found.model)
        assert copy.encode(TEXTS[3]) == found.encode(TEXTS[3])
        assert copy.special_ids == found.special_ids

    return check
