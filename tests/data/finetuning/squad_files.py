"""SQuAD's JSON, written by hand."""

import json
from pathlib import Path
from typing import Any

from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.readers import squad
from gmlp_flax.io.records import BadRecords

COLOURS = "red green blue white black brown pink grey".split()
THINGS = "house tree boat stone river garden bridge tower".split()


def entry(name: str, question: str, context: str, *answers: str, **fields: Any) -> dict:
    """A question whose answers are at their first place in the context."""
    found = [{"text": text, "answer_start": context.index(text)} for text in answers]
    return {"id": name, "question": question, "answers": found, **fields}


def article(title: str, context: str, *entries: dict) -> dict:
    """An article of one paragraph."""
    return {"title": title, "paragraphs": [{"context": context, "qas": list(entries)}]}


def write(path: Path, *articles: dict, **fields: Any) -> Path:
    """Writes a data set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": list(articles), **fields}))
    return path


def colours(number: int, impossible: bool = False) -> dict:
    """An article that says which of eight things has which of eight colours, and asks for each; or
    also for a ninth."""
    colour_of = {}
    for position, thing in enumerate(THINGS):
        colour_of[thing] = COLOURS[(position * (number + 1) + number) % 8]
    context = " ".join(f"The {thing} is {colour}." for thing, colour in colour_of.items())
    entries = []
    for thing, colour in colour_of.items():
        entries.append(entry(f"{number}-{thing}", f"What is the {thing}?", context, colour))
    if impossible:
        entries.append(entry(f"{number}-road", "What is the road?", context, is_impossible=True))
    return article(f"article {number}", context, *entries)


def read(
    path: str | Path, version: str, split: str = "", bad: BadRecords | None = None
) -> list[Question]:
    """All questions of a file or of a split."""
    return squad.read(str(path), version, bad or BadRecords())[split].examples.questions
