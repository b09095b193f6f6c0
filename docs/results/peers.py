"""Our speed beside that of the same models in torch: the table of docs/results/speed.md, from the
files speed-peers-*.csv, which `gmlp benchmark peers --csv=FILE` writes, a file for each maker."""

import dataclasses

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

    def add(self, kind: str, beside: str, line: results_file.Line) -> None:
        """Adds a line of a kind; `beside` is what stands behind the kind in its name."""
        if not beside:
            self.ours[kind] = line
        elif beside.endswith("torch.compile"):
            self.compiled[kind] = line
        else:
            self.eager[kind] = line


def speeds() -> list[Speeds]:
    """Of each model on each processor, in the order of the files; a model's processors are next to
    each other."""
    found: dict[tuple[str, str], Speeds] = {}
    for path in sorted(generate.DATA.glob(FILES)):
        for line in results_file.read(str(path)):
            model, _, what = line["name"].rpartition(": ")
            kind, _, beside = what.partition(", ")
            key = (model, line["processor"])
            if key not in found:
                found[key] = Speeds(*key)
            found[key].add(kind, beside, line)
    models = list(dict.fromkeys(model for model, _ in found))
    return sorted(found.values(), key=lambda measured: models.index(measured.model))


def section() -> str:
    """The table, and where a peer is faster."""
    titles = ["model", "processor", "our step", "step / eager", "step / torch.compile"]
    titles += ["our forward", "forward / eager", "forward / torch.compile"]
    rows = [titles, ["---"] * len(titles)]
    slower = []
    for measured in speeds():
        row = [measured.model, measured.processor]
        for kind in KINDS:
            for lines in (measured.ours, measured.eager, measured.compiled):
                row.append(_cell(lines.get(kind)))
        rows.append(row)
        slower += _slower(measured)
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    links = [f"[{path.stem}](data/{path.name})" for path in sorted(generate.DATA.glob(FILES))]
    files = " · ".join(links)
    lines = "".join(f"- {line}\n" for line in slower) or "- nowhere\n"
    return f"{table}\nThe peer is faster here:\n\n{lines}\n{files}\n"


def _cell(line: results_file.Line | None) -> str:
    """The median and the range of the repeats."""
    if line is None:
        return ""
    median = _digits(line["median"])
    if line["min"] == line["max"]:
        return median
    return f"{median} ({_digits(line['min'])} to {_digits(line['max'])})"


def _digits(number: str) -> str:
    """A number with at most three digits; a file has more."""
    return f"{float(number):.3g}"


def _slower(measured: Speeds) -> list[str]:
    """Each peer whose median is above ours."""
    found = []
    for kind in KINDS:
        for name, lines in (("eager", measured.eager), ("torch.compile", measured.compiled)):
            line = lines.get(kind)
            if line is not None and float(line["median"]) < 1:
                found.append(
                    f"{measured.model}, {measured.processor}: our {kind} has "
                    f"{_digits(line['median'])} of the speed of {name}"
                )
    return found
