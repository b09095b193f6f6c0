"""Random folder trees of texts under random names: each role has the documents that a slow reading
of the documented words of splits says, or the tree is refused."""

import gzip
import shutil
import unicodedata
import zlib

import pyarrow as pa

from gmlp_flax.data import splits
from gmlp_flax.data.readers import text as text_reader
from gmlp_flax.data.splits import Request
from gmlp_flax.errors import DataError
from tests.data import writers

MEANINGS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "eval": "validation",
    "test": "test",
    "testing": "test",
}
SPLIT_WORDS = [*MEANINGS, "TRAIN", "Training", "Valid", "DEV", "Test"]
OTHER_WORDS = [
    "latest",
    "trains",
    "trainset",
    "held",
    "wiki",
    "part",
    "a09b",
    "01",
    "2",
    "été",
    "Data",
]
JOINTS = ("-", "_", ".", " ", "", "-2-", "__")
TEXT_SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".json", ".parquet", ".arrow")
OTHER_SUFFIXES = (".md", ".csv", ".png")
SHARE = 0.3


def make(folder):
    def check(rng):
        root = folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        tree = draw_tree(rng)
        for name, texts in tree.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write(root / name, texts)
        expected = expected_roles(tree)
        try:
            found = read_roles(root)
        except DataError:
            assert not expected, f"refused, expected {expected}\n{list(tree)}"
            raise
        assert found == expected, f"{found}\n{expected}\n{list(tree)}"

    return check


def read_roles(root):
    """Role -> its documents, sorted."""
    found = text_reader.read(str(root))
    roles = {}
    for role in ("train", "heldout"):
        corpus = splits.choose(found, Request(role, heldout_share=SHARE))
        roles[role] = sorted(corpus.examples.read())
    return roles


# The slow reference


def expected_roles(tree):
    """Role -> its documents, sorted; {} if the tree must be refused."""
    by_split = expected_splits(tree)
    key = "" if "" in by_split else "train"
    train = by_split.get(key, [])
    if not train:
        return {}
    if "validation" in by_split:
        return {"train": sorted(train), "heldout": sorted(by_split["validation"])}
    if len(train) == 1:
        return cut_roles(train[0])
    kept = []
    heldout = []
    for text in train:
        is_heldout = zlib.crc32(text.encode()) < SHARE * 2**32
        side = heldout if is_heldout else kept
        side.append(text)
    return {"train": sorted(kept), "heldout": sorted(heldout)}


def cut_roles(text):
    """The two parts of the only document, of one line: its last words, as near to the share as
    words are or, if the nearest are too far away, characters."""
    length = len(text)
    target = round(length * (1 - SHARE))
    half_of_share = round(length * SHARE / 2)
    farthest = max(0, target - half_of_share)
    cut = target
    for position in range(farthest, target):
        if text[position].isspace():
            cut = position + 1
    return {"train": [text[:cut]], "heldout": [text[cut:]]}


def expected_splits(tree):
    """Split -> documents; {} if the tree must be refused."""
    texts = {name: docs for name, docs in tree.items() if name.endswith(TEXT_SUFFIXES)}
    words = {name: word_of_folders(name) for name in texts}
    if not any(words.values()):
        for name in texts:
            words[name] = word_of_file(name)
    if None in words.values():
        return {}
    by_split = {}
    for name, docs in texts.items():
        split = MEANINGS.get(words[name], "")
        by_split.setdefault(split, []).extend(docs)
    if "" in by_split and len(by_split) > 1:
        return {}
    if len(set(words.values())) > len(by_split):  # two words for one split
        return {}
    return by_split


def word_of_folders(name):
    """The word for a split; "" for none."""
    for folder in name.split("/")[:-1]:
        if folder.lower() in MEANINGS:
            return folder.lower()
    return ""


def word_of_file(name):
    """The first word for a split; "" for none, None if the file is refused."""
    base = name.split("/")[-1]
    for suffix in (".gz", ".txt", ".jsonl", ".json", ".parquet", ".arrow"):
        base = base.removesuffix(suffix)
    words = letters_in_a_row(unicodedata.normalize("NFC", base))
    if not words:
        return ""
    ends = [word for word in (words[0], words[-1]) if word in MEANINGS]
    splits = {MEANINGS[word] for word in ends}
    if len(splits) > 1:
        return None
    if ends:
        return ends[0]
    is_inside = any(word in MEANINGS for word in words[1:-1])
    return None if is_inside else ""


def letters_in_a_row(text):
    """Its words, in lower case."""
    words = [""]
    for character in text:
        if character.isalpha():
            words[-1] += character.lower()
        else:
            words.append("")
    return [word for word in words if word]


# Trees


def draw_tree(rng):
    """Name -> documents, for a few files in a few folders; at least one is text."""
    is_tidy = rng.random() < 0.6  # a word of a split first or last in each file's name
    folders = []
    for _ in range(rng.randint(1, 3)):
        depth = rng.choice((0, 0, 1, 1, 2))
        folders.append("/".join(draw_folder(rng, is_tidy) for _ in range(depth)))
    tree = {}
    words = draw_words(rng)
    for number in range(rng.randint(1, 6)):
        suffix = rng.choice((*TEXT_SUFFIXES, *OTHER_SUFFIXES))
        file = draw_tidy_file(rng, words) if is_tidy else draw_name(rng, 3)
        count = 1 if suffix == ".txt" else rng.randint(1, 4)
        texts = [f"document {number} {line} of {rng.random()}" for line in range(count)]
        tree[f"{rng.choice(folders)}/{file}{suffix}".lstrip("/")] = texts
    if any(name.endswith(TEXT_SUFFIXES) for name in tree):
        return tree
    return draw_tree(rng)


def draw_folder(rng, is_tidy):
    if is_tidy:
        return draw_form(rng, rng.choice(OTHER_WORDS))
    return draw_name(rng, 2)


def draw_words(rng):
    """Words for splits: mostly one for each, in any case."""
    if rng.random() < 0.2:
        return SPLIT_WORDS
    chosen = {}
    for word in rng.sample([*MEANINGS], len(MEANINGS)):
        chosen[MEANINGS[word]] = word
    return [word for word in SPLIT_WORDS if word.lower() in chosen.values()]


def draw_tidy_file(rng, split_words):
    words = [rng.choice(split_words), rng.choice(OTHER_WORDS)]
    rng.shuffle(words)
    return draw_form(rng, rng.choice(("-", "_", ".")).join(words))


def draw_name(rng, most):
    words = []
    for _ in range(rng.randint(1, most)):
        words.append(rng.choice([*SPLIT_WORDS, *OTHER_WORDS]))
    return draw_form(rng, rng.choice(JOINTS).join(words))


def draw_form(rng, name):
    return unicodedata.normalize(rng.choice(("NFC", "NFD")), name)


def write(path, texts):
    lines = writers.json_lines(*({"text": text} for text in texts))
    match path.suffix:
        case ".jsonl" | ".json":
            path.write_bytes(lines)
        case ".gz":
            path.write_bytes(gzip.compress(lines))
        case ".parquet":
            writers.parquet(path, text=texts)
        case ".arrow":
            writers.arrow(path, pa.table({"text": texts}))
        case _:
            path.write_text(texts[0])
