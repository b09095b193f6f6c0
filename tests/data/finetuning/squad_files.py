"""SQuAD's JSON, written by hand."""

import json
from pathlib import Path

from gmlp_flax.data.finetuning import squad
from gmlp_flax.data.splits import Side

COLOURS = "red green blue white black brown pink grey".split()
THINGS = "house tree boat stone river garden bridge tower".split()


def entry(name: str, question: str, context: str, *answers: str, **more) -> dict:
    """A question whose answers are at their first place in the context."""
    found = [{"text": text, "answer_start": context.index(text)} for text in answers]
    return {"id": name, "question": question, "answers": found, **more}


def article(title: str, context: str, *entries: dict) -> dict:
    """An article of one paragraph."""
    return {"title": title, "paragraphs": [{"context": context, "qas": list(entries)}]}


def write(path: Path, *articles: dict, **more) -> Path:
    """Writes a data set."""
    path.write_text(json.dumps({"data": list(articles), **more}))
    return path


def colours(number: int, impossible: bool = False) -> dict:
    """An article that says which of eight things has which of eight colours, and asks for each; or
    also for a ninth."""
    pairs = [(COLOURS[(i * (number + 1) + number) % 8], thing) for i, thing in enumerate(THINGS)]
    context = " ".join(f"The {thing} is {colour}." for colour, thing in pairs)
    entries = [
        entry(f"{number}-{thing}", f"What is the {thing}?", context, colour)
        for colour, thing in pairs
    ]
    if impossible:
        entries.append(entry(f"{number}-road", "What is the road?", context, is_impossible=True))
    return article(f"article {number}", context, *entries)


def read(path, version, split="", bad=None):
    """All questions of a file or of a split."""
    return squad.read_side(path, Side("train", split), version, bad)
