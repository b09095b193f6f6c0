"""Our speed beside that of the same models in torch: the table of docs/results/speed.md, from the
files speed-peers-*.csv, which `gmlp benchmark peers --csv=FILE` writes, a file for each maker."""

import dataclasses
from collections import defaultdict
from pathlib import Path

from docs import generate
from gmlp_flax.benchmarks import results_file

FILES = "speed-peers-*.csv"
KINDS = {"step": "our step", "forward": "our forward"}


@dataclasses.dataclass
class Speeds:
    """What a machine measured of a model.

    Attributes:
        model, processor: which.
        ours: kind of KINDS -> the line of our examples per second; it may be missing.
        eager, compiled: kind -> the line of our speed over the peer's.
    """

    model: str
    processor: str
    ours: dict[str, results_file.Line] = dataclasses.field(default_factory=dict)
    eager: dict[str, results_file.Line] = dataclasses.field(default_factory=dict)
    compiled: dict[str, results_file.Line] = dataclasses.field(default_factory=dict)

    def add(self, kind: str, peer: str, line: results_file.Line) -> None:
        """Adds a line of a kind; `peer` is what follows the kind in its name, as in "ours / timm", or
        empty for our rate."""
        if not peer:
            self.ours[kind] = line
        elif peer.endswith("torch.compile"):
            self.compiled[kind] = line
        else:
            self.eager[kind] = line


def speeds() -> list[Speeds]:
    """Of each model on each processor, in the order of the files; a model's processors are next to
    each other."""
    by_model: dict[str, dict[str, Speeds]] = defaultdict(dict)
    for path in files():
        for line in results_file.read(str(path)):
            model, _, call = line["name"].rpartition(": ")
            kind, _, peer = call.partition(", ")
            processor = line["processor"]
            by_processor = by_model[model]
            if processor not in by_processor:
                by_processor[processor] = Speeds(model, processor)
            by_processor[processor].add(kind, peer, line)
    measured: list[Speeds] = []
    for by_processor in by_model.values():
        measured += by_processor.values()
    return measured


def files() -> list[Path]:
    """The CSV files."""
    return sorted(generate.DATA.glob(FILES))


def section() -> str:
    """The table, and where a peer is faster."""
    titles = ["model", "processor", "our step", "step / eager", "step / torch.compile"]
    titles += ["our forward", "forward / eager", "forward / torch.compile"]
    rows = []
    slower = []
    for measured in speeds():
        cells = [measured.model, measured.processor]
        for kind in KINDS:
            cells.append(_cell(measured.ours.get(kind)))
            cells.append(_cell(measured.eager.get(kind)))
            cells.append(_cell(measured.compiled.get(kind)))
        rows.append(cells)
        for sentence in _slower(measured):
            slower.append(f"- {sentence}\n")
    table = generate.markdown_table(titles, rows)
    links = " · ".join(f"[{path.stem}](data/{path.name})" for path in files())
    lines = "".join(slower) or "- nowhere\n"
    return f"{table}\nThe peer is faster here:\n\n{lines}\n{links}\n"


def _cell(line: results_file.Line | None) -> str:
    """The median and the range of the repeats."""
    if line is None:
        return ""
    median = _digits(line["median"])
    low = _digits(line["min"])
    high = _digits(line["max"])
    if line["min"] == line["max"]:
        return median
    return f"{median} ({low} to {high})"


def _digits(number: str) -> str:
    """A number with at most three digits; a file has more."""
    return f"{float(number):.3g}"


def _slower(measured: Speeds) -> list[str]:
    """Each peer whose median is above ours."""
    by_peer = {"eager": measured.eager, "torch.compile": measured.compiled}
    title = f"{measured.model}, {measured.processor}"
    sentences = []
    for kind in KINDS:
        for peer, lines in by_peer.items():
            line = lines.get(kind)
            if line is None or float(line["median"]) >= 1:
                continue
            speed = _digits(line["median"])
            sentences.append(f"{title}: our {kind} runs at {speed} times the speed of {peer}")
    return sentences
