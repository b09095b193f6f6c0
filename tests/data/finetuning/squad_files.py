"""Small data sets in the JSON format of SQuAD."""

import json
from pathlib import Path
from typing import Any

from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.readers import squad
from gmlp_flax.io.records import BadRecords

COLOURS = "red green blue white black brown pink grey".split()
THINGS = "house tree boat stone river garden bridge tower".split()


def entry(name: str, question: str, context: str, *answers: str, **fields: Any) -> dict:
    """A question whose answers are at their first position in the context."""
    located = []
    for text in answers:
        start = context.index(text)
        located.append({"text": text, "answer_start": start})
    return {"id": name, "question": question, "answers": located, **fields}


def article(title: str, context: str, *entries: dict) -> dict:
    """An article of one paragraph."""
    paragraph = {"context": context, "qas": list(entries)}
    return {"title": title, "paragraphs": [paragraph]}


def write(path: Path, *articles: dict, **fields: Any) -> Path:
    """Writes a data set."""
    document = {"data": list(articles), **fields}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def colours(number: int, impossible: bool = False) -> dict:
    """An article that gives each of eight things a colour, with a question for each thing.

    If `impossible`, it also has a question for a ninth thing, which is not in the text.
    """
    colour_of = {}
    for position, thing in enumerate(THINGS):
        colour = (position * (number + 1) + number) % 8
        colour_of[thing] = COLOURS[colour]
    sentences = [f"The {thing} is {colour}." for thing, colour in colour_of.items()]
    context = " ".join(sentences)
    entries = []
    for thing, colour in colour_of.items():
        question = f"What is the {thing}?"
        entries.append(entry(f"{number}-{thing}", question, context, colour))
    if impossible:
        entries.append(entry(f"{number}-road", "What is the road?", context, is_impossible=True))
    return article(f"article {number}", context, *entries)


def read(
    path: str | Path, version: str, split: str = "", bad: BadRecords | None = None
) -> list[Question]:
    """All questions of a file or of a split."""
    splits = squad.read(str(path), version, bad or BadRecords())
    return splits[split].examples.questions
