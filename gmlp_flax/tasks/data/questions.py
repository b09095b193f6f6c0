"""Questions on passages, cut into windows of tokens."""

import functools
from typing import Any

from ml_collections import ConfigDict

from gmlp_flax.data.dataset import Dataset, Splits
from gmlp_flax.data.finetuning.questions import Question
from gmlp_flax.data.finetuning.windows import Windows
from gmlp_flax.data.fingerprints import spread
from gmlp_flax.data.holdout import TRAIN
from gmlp_flax.data.readers import squad
from gmlp_flax.data.summary import Tokens, count_tokens
from gmlp_flax.data.text.tokenizer import DOCUMENTS
from gmlp_flax.io.records import BadRecords
from gmlp_flax.tasks.data import config as data_config
from gmlp_flax.tasks.data.text import report_unknown
from gmlp_flax.tasks.finetuning import FinetuningData


def windows_of(
    config: ConfigDict, tokenizer: Any, questions: list[Question], training: bool = False
) -> Windows:
    """The windows of questions, of the sizes that the config says; see `Windows`."""
    return Windows(
        questions,
        tokenizer,
        length=config.model.length,
        stride=config.squad.stride,
        max_query=config.squad.max_query,
        training=training,
    )


class QuestionData(FinetuningData):
    """Questions of SQuAD, or in its forms."""

    @functools.cache  # noqa: B019 - data live as long as their run
    def dataset(self, role: str) -> Dataset:
        """The questions of a role; raises DataError if they cannot be read."""
        version = self.config.squad.version
        bad = BadRecords(self.config.data.max_bad_records)

        def read(path: str, ignore_splits: bool) -> Splits:
            """The splits of the questions at a path."""
            return squad.read(path, version, bad, ignore_splits)

        expected = f"PATH or tfds:squad/{version}"
        dataset = data_config.open_split(self.config, role, read, expected)
        return data_config.with_skipped(dataset, bad)

    @functools.cache  # noqa: B019 - as above
    def examples(self, role: str) -> Windows:
        """The windows of a role; raises DataError if the questions do not fit the model's
        length."""
        dataset = self.dataset(role)
        questions = dataset.examples.questions
        with data_config.errors_name("model.length"):
            windows = windows_of(self.config, self.tokenizer, questions, role == TRAIN)
        report_unknown(self.tokenizer, windows, f"{role} passages")
        if windows.left_out:
            message = (
                f"{windows.left_out} of {len(questions)} have an answer that no token holds, and "
                "are left out"
            )
            data_config.warn(role, "questions", message)
        return windows

    def tokens(self, role: str) -> Tokens:
        """See `TaskData`: of the passages, which are read in windows."""
        dataset = self.dataset(role)
        questions = dataset.examples.questions
        indices = spread(len(questions), DOCUMENTS)
        passages = [questions[index].context for index in indices]
        ids = self.tokenizer.encode_batch(passages)
        return count_tokens(ids, self.tokenizer.unk_id)
