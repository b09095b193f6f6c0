"""What all finetuning tasks share: the tokenizer that a pretrained encoder needs, its learning
rate, and arrays as inputs."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from gmlp_flax import config as gmlp_config
from gmlp_flax import tasks
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.tasks.data.base import RunFiles
from gmlp_flax.tasks.finetuning import SMALL_WIDTH, Finetuning
from gmlp_flax.tasks.question_answering import QuestionAnswering
from gmlp_flax.tasks.text_classification import TextClassification
from gmlp_flax.tasks.text_regression import TextRegression
from tests.failures import failure
from tests.training import tiny

NAMES = ("text_classification", "text_regression", "question_answering")


def config(name: str, **model):
    """A config of a task with one layer."""
    options = gmlp_config.default(task=name)
    options.model.update(layers=1, d_model=4, d_ffn=8, length=12, vocab_size=320)
    options.model.update(model)
    return options


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_is_inherited_or_configured(name, vocabulary):
    tokenizer = Tokenizer.load(vocabulary)
    kind = tasks.find(name)
    inherited = RunFiles(inherited={TOKENIZER_FILE: tokenizer.model})
    data = kind.Data(config(name), inherited)
    assert data.tokenizer == tokenizer
    options = config(name)
    options.data.tokenizer = vocabulary
    assert kind.Data(options).tokenizer == tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_missing_tokenizer_is_refused_in_one_line(name):
    data = tasks.find(name).Data(config(name))
    message = failure(lambda: data.tokenizer)
    assert "--config.init_from=RUN" in message
    assert "--config.data.tokenizer=FILE" in message
    options = config(name)
    options.init_from = "digits"
    message = failure(lambda: tasks.find(name).Data(options).tokenizer)
    assert message.startswith("config.init_from=digits has no vocabulary: give a model of text")


def test_run_inherits_from_the_pretrained_run():
    """It takes the encoder and its tokenizer, but the head only if the classes are the same."""
    assert Finetuning.inheritance.model
    assert Finetuning.inheritance.files == (TOKENIZER_FILE,)
    classification = TextClassification.inheritance
    assert classification.model
    assert classification.required == (TOKENIZER_FILE, "labels.json")
    assert classification.heads == {"labels.json": "head/"}
    assert classification.new_params == ("segments/", "pooler/")
    assert TextRegression.inheritance.heads == {"scale.json": "head/"}
    questions = QuestionAnswering.inheritance
    assert questions.model
    assert questions.files == (TOKENIZER_FILE,)
    assert questions.new_params == ("segments/", "spans/")


def test_large_model_learning_rate_on_a_small_model_gets_a_warning():
    options = config("text_classification")
    options.optimizer.learning_rate = 2e-5
    [note] = TextClassification(options).notes()
    assert "the rate 2e-05" in note
    assert "scale=small" in note
    options.optimizer.learning_rate = 4e-3
    assert TextClassification(options).notes() == []
    options.optimizer.learning_rate = 2e-5
    options.model.d_model = SMALL_WIDTH + 1
    assert TextClassification(options).notes() == []


@pytest.mark.parametrize("name", NAMES)
def test_tokens_without_segments_are_in_the_first_segment(name):
    task = tasks.find(name)(config(name))
    params = tiny.random_params(task.shapes())
    tokens = np.arange(5, 29).reshape(2, 12)
    alone = task.forward(params, tokens)
    first_segment = np.zeros_like(tokens)
    first = task.forward(params, {"tokens": tokens, "segments": first_segment})
    assert_array_equal(alone, first)
    second = task.forward(params, {"tokens": tokens, "segments": first_segment + 1})
    assert not np.allclose(alone, second)


@pytest.mark.parametrize("line", ["the\tof and", "the of\tand"])
def test_encoded_lines_have_the_tokens_and_segments_of_a_pair(vocabulary, line):
    options = config("text_classification")
    options.own.second = "second"
    options.glue.task = "own"
    tokenizer = Tokenizer.load(vocabulary)
    task = TextClassification(options, {TOKENIZER_FILE: tokenizer.model})
    batch = task.predictor.encode([line, "the\tand"])
    assert batch.keys() == {"tokens", "segments"}
    text, second_text = line.split("\t")
    first = tokenizer.encode(text)
    second = tokenizer.encode(second_text)
    sep = tokenizer.sep_id
    expected = [tokenizer.cls_id, *first, sep, *second, sep]
    tokens = batch["tokens"][0]
    count = len(expected)
    assert tokens[:count].tolist() == expected
    assert not tokens[count:].any()
    assert batch["segments"][0].sum() == len(second) + 1
