"""Tasks on long texts, Long Range Arena's (2011.04006): their columns and labels, as its files and TFDS have them.

listops     basic_train.tsv, basic_val.tsv, basic_test.tsv with the columns Source and Target; or what
            `gmlp prepare listops:SIZE` makes
imdb        TFDS's imdb_reviews, or any file with the columns text and label
retrieval   new_aan_pairs.train.tsv, .eval.tsv, .test.tsv: no header, five columns, the label, two ids, two texts
"""

from gmlp_flax.data.finetuning.glue import GLUE_TASKS, SentenceTask
from gmlp_flax.data.listops import trees

LONG_RANGE_TASKS: dict[str, SentenceTask] = {
    "listops": SentenceTask(
        (("text", "Source"),),
        trees.DIGITS,
        submission=("ListOps.tsv",),
        label=("label", "Target"),
        words=(*trees.SYMBOLS, *trees.BRACES),
    ),
    "imdb": SentenceTask((("text",),), ("neg", "pos"), submission=("IMDB.tsv",)),
    "retrieval": SentenceTask(
        (("text1",), ("text2",)),
        ("0", "1"),
        submission=("Retrieval.tsv",),
        headerless=("label", "id1", "id2", "text1", "text2"),
        aliases=("0.0", "1.0"),
    ),
}

SENTENCE_TASKS = GLUE_TASKS | LONG_RANGE_TASKS
