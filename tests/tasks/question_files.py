"""A small SQuAD, and the config of a model of it."""

from pathlib import Path

from gmlp_flax import config as gmlp_config
from gmlp_flax.data.text.tokenizer import Tokenizer
from tests.data.finetuning.squad_files import colours, write

LENGTH = 48


def write_all(folder: Path) -> Path:
    """Writes eight articles as v1.1.json and v2.0.json, where some have a question without an
    answer, and a tokenizer."""
    articles = []
    articles_of_v2 = []
    texts = ["What is the road?"]
    for number in range(8):
        article = colours(number)
        articles.append(article)
        articles_of_v2.append(colours(number, number % 2 == 0))
        texts.append(article["paragraphs"][0]["context"])
    write(folder / "v1.1.json", *articles)
    write(folder / "v2.0.json", *articles_of_v2)
    tokenizer = Tokenizer.train(texts * 9, 320)
    tokenizer.save(folder / "tokenizer.model")
    return folder


def config(folder: Path, version: str = "v1.1", **data):
    """A config of a model that reads 48 tokens."""
    options = gmlp_config.from_file("configs/finetune_squad.py", f"{version},scale=small")
    options.batch_size = 8
    options.steps = 6
    options.eval.batch_size = 8
    options.model.update(layers=2, d_model=8, d_ffn=16, length=LENGTH, vocab_size=320)
    options.model.update(spatial_init_std=0.02, dropout=0.0)
    options.squad.update(stride=8, max_query=12, n_best=5, max_answer=9)
    options.data.tokenizer = str(folder / "tokenizer.model")
    options.data.train = str(folder / f"{version}.json")
    options.data.heldout_share = 0.3
    options.data.update(data)
    return options
