"""A small SQuAD, and the config of a model of it."""

from pathlib import Path

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.finetuning.squad_files import colours, write

LENGTH = 48


def write_all(folder: Path) -> Path:
    """Eight articles in v1.1.json and in v2.0.json, where some have a question without an answer,
    and a tokenizer."""
    articles = [colours(number) for number in range(8)]
    write(folder / "v1.1.json", *articles)
    write(folder / "v2.0.json", *(colours(number, number % 2 == 0) for number in range(8)))
    texts = [article["paragraphs"][0]["context"] for article in articles]
    tokenizer = Tokenizer.train([*texts, "What is the road?"] * 9, 320)
    tokenizer.save(folder / "tokenizer.model")
    return folder


def config(folder: Path, version: str = "v1.1", **data):
    """Of a model that reads 48 tokens."""
    options = gmlp_config.from_file("configs/finetune_squad.py", f"{version},scale=small")
    options.batch_size = 8
    options.steps = 6
    options.eval.batch_size = 8
    sizes = {"layers": 2, "d_model": 8, "d_ffn": 16, "length": LENGTH, "vocab_size": 320}
    options.model.update(sizes)
    options.model.update(spatial_init_std=0.02, dropout=0.0)
    options.squad.update(stride=8, max_query=12, n_best=5, max_answer=9)
    options.data.tokenizer = str(folder / "tokenizer.model")
    options.data.update({"train": str(folder / f"{version}.json"), "heldout_share": 0.3} | data)
    return options
