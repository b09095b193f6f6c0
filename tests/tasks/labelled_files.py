"""Small data sets of labelled text, as GLUE ships them and as users have them, and their configs."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.finetuning.text_tasks import GLUE_TASKS
from tests.training import tiny

TEXT = " ".join(tiny.WORDS)
PAIRS = "index\tsentence1\tsentence2\tlabel\n"
MNLI = "index\tsentence1\tsentence2\tgold_label\n"
STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
SIZES = {
    "layers": 2,
    "d_model": 8,
    "d_ffn": 16,
    "length": 16,
    "vocab_size": 320,
    "spatial_init_std": 0.5,
    "mask_padding": True,
}


def pair(number: int) -> tuple[str, str]:
    """Two spans of the text of all words. The first is longer for each number."""
    start = number % 40
    end = start + 9 + number
    second_start = 7 * number % 90
    second_end = second_start + 12
    return TEXT[start:end], TEXT[second_start:second_end]


def rows(labels: Iterable[str], first: int = 0) -> str:
    """A tab-separated row for each label: an id that counts up from `first`, a pair, the label."""
    lines = []
    for number, label in enumerate(labels):
        text, second = pair(number)
        lines.append(f"{first + number}\t{text}\t{second}\t{label}\n")
    return "".join(lines)


def write(folder: Path, **contents: str) -> Path:
    """Writes NAME.tsv for each content."""
    for name, content in contents.items():
        (folder / f"{name}.tsv").write_text(content)
    return folder


def rte(folder: Path) -> Path:
    """30 training pairs, and 21 held-out pairs with both labels."""
    entailment, other = GLUE_TASKS["rte"].labels
    train = [entailment, other] * 15
    dev = [other, entailment, entailment] * 7
    train_table = PAIRS + rows(train)
    dev_table = PAIRS + rows(dev, first=100)
    return write(folder, train=train_table, dev=dev_table)


def stsb(folder: Path, has_test: bool = False) -> Path:
    """12 training pairs with scores from 0 to 5, 7 held-out ones, and optionally 5 without a
    score."""
    header = f"{STSB}\tscore"
    train = _stsb_table(header, _score_cells(12), first=0)
    dev = _stsb_table(header, _score_cells(7), first=12)
    write(folder, train=train, dev=dev)
    if has_test:
        write(folder, test=_stsb_table(STSB, [""] * 5, first=19))
    return folder


def _score_cells(count: int) -> list[str]:
    """A tab and a score for each row."""
    cells = []
    for number in range(count):
        score = number % 11 / 2
        cells.append(f"\t{score:.3f}")
    return cells


def _stsb_table(header: str, ends: Sequence[str], first: int) -> str:
    """A row for each end of a row, with pairs from number `first` on."""
    lines = [header]
    for number, end in enumerate(ends):
        text, second = pair(first + number)
        start = f"{number}\tmain\tf\t2012\t{number}\ta\tb"
        lines.append(f"{start}\t{text}\t{second}{end}")
    return "\n".join(lines) + "\n"


def json_rows(path: Path, records: Iterable[dict]) -> Path:
    """Writes a JSON object per line."""
    lines = [json.dumps(record) + "\n" for record in records]
    path.write_text("".join(lines))
    return path


def config(kind: str, vocabulary: str, train: Path, task: str, **data):
    """A config of a task of the class `text_classification` or `text_regression`."""
    options = gmlp_config.default(task=kind)
    options.glue.task = task
    options.batch_size = 8
    options.model.update(SIZES)
    options.data.update(train=str(train), tokenizer=vocabulary, **data)
    return options


def own_config(kind: str, vocabulary: str, folder: Path, labels: Sequence, heldout: str = ""):
    """A config of a CSV table with a text for each label, and of held-out rows "TEXT,LABEL\\n"."""
    lines = ["text,label\n"]
    for number, label in enumerate(labels):
        lines.append(f"{number} {tiny.WORDS[number]},{label}\n")
    (folder / "own.csv").write_text("".join(lines))
    options = config(kind, vocabulary, folder / "own.csv", "own")
    if heldout:
        (folder / "heldout.csv").write_text("text,label\n" + heldout)
        options.data.heldout = str(folder / "heldout.csv")
    return options
