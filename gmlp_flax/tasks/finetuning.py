"""What the tasks that finetune a pretrained encoder on texts or pairs of texts share."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gmlp_flax.data import checks
from gmlp_flax.data.dataset import Dataset
from gmlp_flax.data.holdout import HELDOUT, TRAIN
from gmlp_flax.data.text.tokenizer import TOKENIZER_FILE, Tokenizer
from gmlp_flax.errors import DataError
from gmlp_flax.tasks.base import Batch, Inheritance, Shapes
from gmlp_flax.tasks.data.text import TextData, configured_tokenizer
from gmlp_flax.tasks.inference.prediction import batch_of
from gmlp_flax.tasks.text import TextPredictor, TextTask

# BERT's papers finetune at 5e-5 at most, and from 768 channels on.
LARGE_MODELS_RATE = 1e-4
SMALL_WIDTH = 256


class FinetuningData(TextData):
    """Texts for a pretrained encoder. They need its tokenizer."""

    def find_tokenizer(self) -> Tokenizer:
        """See `TextData`: that of the run folder, of the config or of `config.init_from`."""
        tokenizer = configured_tokenizer(self.config, self.run_files)
        if tokenizer is not None:
            return tokenizer
        source = self.config.init_from
        if source:
            raise DataError(
                f"config.init_from={source} has no vocabulary: give a model of text, or "
                "--config.data.tokenizer=FILE"
            )
        raise DataError(
            "there is no vocabulary: give --config.init_from=RUN (books_gmlp comes with "
            "gmlp_flax), or --config.data.tokenizer=FILE"
        )

    @abc.abstractmethod
    def dataset(self, role: str) -> Dataset:
        """See `TaskData`."""

    def notes(self) -> list[str]:
        """See `TaskData`: texts that are trained on and held out."""
        train = self.dataset(TRAIN)
        heldout = self.dataset(HELDOUT)
        overlap = checks.check_overlap(train, heldout)
        return [overlap] if overlap else []


class FinetuningPredictor(TextPredictor):
    """Answers to a text, or to texts with tabs between them."""

    def encode(self, inputs: Sequence[str]) -> dict[str, np.ndarray]:
        """See `Predictor`: "tokens" and "segments"; those of the first window of a long passage."""
        examples = []
        for text in inputs:
            prepared = self.prepare(text)
            examples.append(prepared.examples[0])
        batch = batch_of(examples, self.task.length, self.pad_id)
        return {"tokens": batch["tokens"], "segments": batch["segments"]}


class Finetuning(TextTask):
    """A task on texts, `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, that starts from a pretrained
    encoder.

    Batches have "tokens" and "segments" int32 [batch, length], or [batch, 2, length] if each text
    of a pair is encoded alone, and "index" int32 [batch]. The encoder and the keys of config.model
    that describe its architecture come from `config.init_from`. Without `init_from` the config's
    keys count, and config.data.tokenizer names the vocabulary.
    """

    Data = FinetuningData
    inheritance = Inheritance(model=True, shared=(TOKENIZER_FILE,))
    unit = "examples"

    def example_shapes(self) -> Shapes:
        """See `Task`."""
        text = ((self.length,), jnp.int32)
        number = ((), jnp.int32)
        return {"tokens": text, "segments": text, "index": number}

    def notes(self) -> list[str]:
        """See `Task`: a small model learns little at a rate for models of 100 M parameters."""
        rate = self.config.optimizer.learning_rate
        width = self.config.model.d_model
        if rate > LARGE_MODELS_RATE or width > SMALL_WIDTH:
            return []
        return [
            f"note: the rate {rate:g} suits models as large as BERT-base; this one, {width} wide, "
            "learns little at it: give the config's argument scale=small, or "
            "--config.optimizer.learning_rate=4e-3"
        ]

    def forward(self, params: Any, inputs: Any) -> jax.Array:
        """See `Task`; tokens without "segments" are all in the first segment."""
        if isinstance(inputs, Mapping):
            batch = dict(inputs)
        else:
            segments = jnp.zeros_like(inputs)
            batch = {"tokens": inputs, "segments": segments}
        return self.scores(params, batch, None)

    def scores(self, params: Any, batch: Batch, key: jax.Array | None) -> jax.Array:
        """The model's logits for a batch; `key`, [batch], is given in training."""
        tokens = batch["tokens"]
        segments = batch["segments"]
        mask = self.padding_mask(tokens)
        return self.apply(params, tokens, segments, mask, key)
