"""Byte-pair tokenizers as RoBERTa, ModernBERT and Llama have them, trained on a few lines."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MODERNBERT = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def over_bytes(texts: Sequence[str], special: Sequence[str] = ROBERTA, size: int = 400) -> Any:
    """RoBERTa's: byte pairs over bytes. Its mask takes the blank before it."""
    library = importlib.import_module("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*special[:4], library.AddedToken(special[4], lstrip=True)],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    cls, sep = (special[1], special[2]) if special is MODERNBERT else (special[0], special[2])
    tokenizer.post_processor = library.processors.RobertaProcessing(
        (sep, tokenizer.token_to_id(sep)), (cls, tokenizer.token_to_id(cls))
    )
    return tokenizer


def over_characters(texts: Sequence[str], size: int = 400) -> Any:
    """Llama 2's: byte pairs over characters, with the bytes of others, and without [PAD] and
    [MASK]."""
    library = importlib.import_module("tokenizers")
    tokenizer = library.Tokenizer(
        library.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    )
    tokenizer.normalizer = library.normalizers.Sequence(
        [library.normalizers.Prepend("▁"), library.normalizers.Replace(" ", "▁")]
    )
    decoders = library.decoders
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<unk>", "<s>", "</s>", *of_bytes],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # bytes are no special tokens
    return library.Tokenizer.from_str(json.dumps(document))


def save(tokenizer: Any, folder: Path) -> None:
    """As `save_pretrained` writes it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
