"""Tokenizes a corpus once, on all cores, into a folder that training reads. Without --tokenizer it
trains a tokenizer first.

    gmlp prepare corpus.jsonl.xz --out=tokens/books --vocab_size=8000
    gmlp prepare CORPUS --out=DIR --tokenizer=FILE
    gmlp prepare code.txt --out=tokens/code --keep_white_space
    gmlp prepare listops:paper --out=lra/listops

CORPUS is a file or folder of text, JSON lines or parquet (possibly compressed or on gs://), a
folder prepared by TFDS, or tfds:NAME. DIR may be gs://BUCKET/FOLDER. If the command is killed,
repeat it to resume; the result is the same, byte for byte. Training reads the folder with
--config.data.train=DIR. listops:paper, and listops:TRAIN,VALIDATION,TEST with three numbers of
trees, make Long Range Arena's ListOps for --config=lra_listops.
"""

import itertools
import os
import shlex
import time
from typing import Any

from absl import flags

from gmlp_flax.commands import cli
from gmlp_flax.data import checks, listops, splits
from gmlp_flax.data.holdout import HELDOUT, ROLES, TRAIN
from gmlp_flax.data.listops import Grammar
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.text import prepare
from gmlp_flax.data.text.corpus import Corpus, describe
from gmlp_flax.data.text.encoding import PIECE
from gmlp_flax.data.text.prepared import Prepared
from gmlp_flax.data.text.tokenizer import DOCUMENTS, TOKENIZER_FILE, Tokenizer
from gmlp_flax.data.text.word_piece import KEYS
from gmlp_flax.errors import ConfigError
from gmlp_flax.io import cache, files
from gmlp_flax.io.logs import heartbeat, to_stderr
from gmlp_flax.io.records import BadRecords

LISTOPS = "listops:"  # what its name begins with
_GRAMMAR = Grammar()

# Flag -> default, meaning and, of a whole number, least value.
FLAGS: dict[str, tuple] = {
    "split": ("", "A split, or `all`; empty: train, if the corpus has splits."),
    "tokenizer": (
        "",
        "A SentencePiece model, or BERT's vocab.txt or tokenizer.json; empty: train one.",
    ),
    **{key: ("auto", f"With --tokenizer: {comment}.") for key, comment in KEYS.items()},
    "vocab_size": (32_000, "The number of pieces of a tokenizer that is trained.", 1),
    "keep_white_space": (
        False,
        "Train a tokenizer that keeps line breaks, tabs and indentation, as causal models need.",
    ),
    "heldout_share": (0.0, "Share of documents to hold out."),
    "side": ("train", "train or heldout: which documents to tokenize if some are held out."),
    "workers": (0, "The number of cores to use; 0: all.", 0),
    "max_bad_records": (0, "Skip up to this many records that cannot be parsed.", 0),
    "shard_bytes": (prepare.SHARD_BYTES, "Bytes of the corpus in each shard.", 1),
    "cache": ("", "Folder for trained tokenizers; empty: ~/.cache/gmlp_flax."),
    "seed": (0, "listops:SIZE: determines all trees.", 0),
    "lengths": (
        f"{_GRAMMAR.shortest},{_GRAMMAR.longest}",
        "listops:SIZE: the number of a tree's symbols is between these.",
    ),
    "depth": (_GRAMMAR.depth, "listops:SIZE: the maximum number of levels of a tree.", 0),
}


def make_listops(name: str, values: flags.FlagValues) -> None:
    """Makes the data set ListOps, and prints how to train on it.

    Raises:
        DataError: the size or a flag makes no sense, or as in `listops.make`.
    """
    size = name.removeprefix(LISTOPS)
    sizes = listops.PUBLISHED
    if size != "paper":
        sizes = listops.parse_numbers(size, name, len(listops.FILES))
    shortest, longest = listops.parse_numbers(values.lengths, f"--lengths={values.lengths}", 2)
    grammar = Grammar(shortest, longest, values.depth)
    with cli.waiting("making trees"):
        most = listops.make(values.out, sizes, grammar, values.seed)
    trees = [f"{split} {count:,}" for split, count in zip(listops.FILES, sizes, strict=True)]
    print(f"trees         {', '.join(trees)}")
    print(f"to use it     --config=lra_listops --config.data.train={shlex.quote(values.out)}")
    print(f"              with --config.model.length={most + 2} or more, no tree is cut")


def report(made: Prepared, seconds: float, role: str) -> None:
    """Prints the size of the result, and how to train on it."""
    rate = made.tokens / max(seconds, 1e-9)
    vocabulary = made.tokenizer.vocab_size
    tokenizer = os.path.join(made.folder, TOKENIZER_FILE)
    print(f"documents        {made.documents:,}")
    print(f"tokens           {made.tokens:,} ({rate:,.0f} per second, this time)")
    print(f"shards           {len(made.files)}, in {made.folder}")
    print(f"skipped records  {made.skipped}")
    for message in made.skipped_first[:5]:
        print(f"                 {message}")
    print(f"tokenizer        {tokenizer}, {vocabulary} pieces")
    folder = shlex.quote(made.folder)
    size = f"--config.model.vocab_size={vocabulary} (or more)"
    print(f"to use it        --config.data.{role}={folder} {size}")


def _role(split: str, values: flags.FlagValues) -> str:
    """The role in which training reads the result: "train" or "heldout"."""
    if values.heldout_share or not splits.is_held_out(split):
        return values.side
    return HELDOUT


def check_flags(values: flags.FlagValues) -> None:
    """Raises ConfigError if a flag about what is held out makes no sense."""
    if values.side not in ROLES:
        raise ConfigError(f"--side={values.side}: expected one of {', '.join(ROLES)}")
    is_share = 0 <= values.heldout_share < 1
    is_needed = values.side == HELDOUT and not values.heldout_share
    if not is_share or is_needed:
        raise ConfigError(
            f"--heldout_share={values.heldout_share}: expected a share, 0.05 for 5 % of the "
            "documents"
        )


def open_tokenizer(corpus: Corpus, train: Corpus, values: flags.FlagValues) -> Tokenizer:
    """The tokenizer of --tokenizer, whose share of [UNK] is printed; else one that is trained.

    Args:
        corpus: what is prepared.
        train: the documents to train a tokenizer on.
        values: of the flags.
    """
    if not values.tokenizer:
        folder = values.cache or cache.default_folder()
        return prepare.cached_tokenizer(
            train, values.vocab_size, folder, values.max_bad_records, values.keep_white_space
        )
    if values.keep_white_space:
        raise ConfigError(
            "--keep_white_space is about a tokenizer that is trained: leave --tokenizer out"
        )
    settings = {key: str(values[key].value) for key in KEYS}
    tokenizer = Tokenizer.load(values.tokenizer, **settings)
    if tokenizer.note:
        to_stderr(tokenizer.note)
    if tokenizer.may_be_unknown:
        documents = corpus.examples.read(BadRecords(values.max_bad_records))
        texts = [text[:PIECE] for text in itertools.islice(documents, DOCUMENTS)]
        ids = tokenizer.encode_batch(texts)
        to_stderr(checks.check_unknown(ids, tokenizer, corpus.name))
    return tokenizer


def main(argv: list[str]) -> None:
    """Prepares a corpus. Raises ConfigError if a flag is missing or does not count."""
    values = flags.FLAGS
    name = argv[1]
    cli.require("out")
    if name.startswith(LISTOPS):
        make_listops(name, values)
        return
    check_flags(values)
    ignore_splits = values.split == splits.ALL
    read = text_reader.read(name, ignore_splits)
    whole: Any = splits.choose(read, splits.Request(TRAIN, values.split))
    corpus = whole
    train = whole
    if values.heldout_share:
        corpus = whole.hold_out(values.side, values.heldout_share)
        train = whole.hold_out(TRAIN, values.heldout_share)
    for line in (describe(corpus, "read"), *corpus.notes):
        to_stderr(line)
    role = _role(corpus.split, values)
    if role == HELDOUT and not values.heldout_share and not values.tokenizer:
        to_stderr(
            "note: a tokenizer is trained on this split alone; if these tokens are to be held out "
            "from a training on other tokens, pass the tokenizer of those with --tokenizer"
        )
    with heartbeat(f"looking into {values.out}"):
        files.listdir(values.out)  # an unreachable bucket costs no training of a tokenizer
    tokenizer = open_tokenizer(corpus, train, values)
    began = time.perf_counter()
    limits = prepare.Limits(values.workers, values.max_bad_records, values.shard_bytes)
    made = prepare.prepare(corpus, tokenizer, values.out, limits)
    seconds = time.perf_counter() - began
    report(made, seconds, role)


def run() -> None:
    """The command line."""
    flags.DEFINE_string("out", None, "Folder for the result.")
    for name, definition in FLAGS.items():
        cli.define(name, *definition)
    cli.run(main, "CORPUS")
