"""Byte-pair tokenizers like those of RoBERTa, ModernBERT and Llama, trained on a few lines."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MODERNBERT = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]


def over_bytes(
    texts: Sequence[str], special: Sequence[str] = ROBERTA, size: int = 400, prefix: bool = False
) -> Any:
    """RoBERTa's: byte pairs over bytes. Its mask takes the blank before it; with `prefix`, a text
    gets a blank before it."""
    library = importlib.import_module("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = library.decoders.ByteLevel()
    mask = library.AddedToken(special[4], lstrip=True)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*special[:4], mask],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    cls = special[1] if special is MODERNBERT else special[0]
    sep = special[2]
    cls_and_id = (cls, tokenizer.token_to_id(cls))
    sep_and_id = (sep, tokenizer.token_to_id(sep))
    tokenizer.post_processor = library.processors.RobertaProcessing(sep_and_id, cls_and_id)
    return tokenizer


def over_characters(texts: Sequence[str], size: int = 400) -> Any:
    """Llama 2's: byte pairs over characters, with the bytes of others, and without [PAD] and
    [MASK]."""
    library = importlib.import_module("tokenizers")
    model = library.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = library.Tokenizer(model)
    prepend = library.normalizers.Prepend("▁")
    replace = library.normalizers.Replace(" ", "▁")
    tokenizer.normalizer = library.normalizers.Sequence([prepend, replace])
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
    document["added_tokens"] = document["added_tokens"][:3]  # bytes are not special tokens
    return library.Tokenizer.from_str(json.dumps(document))


def save(tokenizer: Any, folder: Path) -> None:
    """As `save_pretrained` writes it."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "TokenizersBackend"}')
