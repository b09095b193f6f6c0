"""The schema of a config: every key of a run, its default, one comment."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Key(NamedTuple):
    """One key: its default, what it means, and, where few values make sense, which."""

    default: Any
    comment: str
    choices: tuple = ()


SCHEMA = {
    "task": Key("masked_lm", "what is trained",
                ("masked_lm", "image_classification", "text_classification", "question_answering")),
    "steps": Key(1000, "optimizer steps of the whole run"),
    "seed": Key(0, "with the step, determines every batch, mask, augmentation and dropped branch"),
    "batch_size": Key(32, "examples a step, over all devices and microbatches"),
    "init_from": Key("", "run folder or checkpoint whose parameters start this run; empty: fresh"),
    "init_parameters": Key(True, "False: finetuning takes the model and vocabulary of init_from alone, a baseline"),
    "model": {
        "block": Key("gmlp", "the token mixer", ("gmlp", "transformer", "mixer", "resmlp", "feed_forward")),
        "layers": Key(6, "number of blocks (the paper's L)"),
        "d_model": Key(128, "width of the residual stream"),
        "d_ffn": Key(768, "width inside a block; of gMLP, both halves of the gate counted"),
        "gate": Key("split", "Table 3's gate; split is the Spatial Gating Unit",
                    ("linear", "additive", "multiplicative", "split")),
        "spatial": Key("toeplitz", "the spatial projection: [n, n], or 2n - 1 taps", ("toeplitz", "dense")),
        "toeplitz": Key("direct", "how taps are applied; README says where fft overtakes", ("direct", "fft")),
        "spatial_init_std": Key(1e-6, "standard deviation of spatial weights at the start (paper: near zero)"),
        "d_attn": Key(0, "head size of tiny attention: 0 for gMLP, 64 or 128 for aMLP"),
        "positions": Key("none", "learned table, or the Transformer's bias on its logits or in their place",
                         ("none", "absolute", "relative", "relative_only")),
        "heads": Key(4, "Transformer: attention heads"),
        "relative_buckets": Key(0, "Transformer: T5's logarithmic buckets of offsets (T5: 32); 0: one an offset"),
        "d_spatial": Key(64, "Mixer, feed-forward stack: width of the MLP over tokens"),
        "activation": Key("gelu", "the exact GELU, or its tanh form", ("gelu", "gelu_tanh")),
        "norm_eps": Key(1e-6, "epsilon of the layer norms"),
        "gate_norm_eps": Key(0.0, "gMLP: epsilon of the norm inside the gate (timm: 1e-5); 0: norm_eps"),
        "layer_scale": Key(0.1, "ResMLP: what the scales of its branches start at (S12 0.1, S24 1e-5, S36 1e-6)"),
        "survival": Key(1.0, "probability that stochastic depth keeps a residual branch of a sample"),
        "survival_schedule": Key("constant", "the same for all layers, or linear in depth", ("constant", "linear")),
        "dropout": Key(0.0, "rate of dropout on embeddings and residual branches"),
        "attention_dropout": Key(0.0, "rate of dropout on the weights of attention"),
        "dtype": Key("float32", "type of activations and matrix products", ("float32", "bfloat16")),
        "remat": Key("matmuls", "what backward recomputes: nothing, all but matrix products, or all",
                     ("none", "matmuls", "full")),
        "length": Key(128, "text: tokens a sequence (the paper's n)"),
        "vocab_size": Key(2000, "text: rows of the embedding table, and the size of a tokenizer trained here"),
        "scale_embeddings": Key(False, "text: times sqrt(d_model), for blocks that mix tokens at once"),
        "transform": Key(False, "text: BERT's transform layer before the logits (the paper's counts have none)"),
        "mask_padding": Key(False, "text: attention ignores [PAD]; spatial projections never do (paper)"),
        "pooler": Key(False, "text classification: BERT's tanh layer before the head"),
        "image_size": Key((224, 224), "images: height and width"),
        "patch_size": Key((16, 16), "images: height and width of a patch"),
        "channels": Key(3, "images: 3 for RGB, 1 for grey", (1, 3)),
        "pool": Key("mean", "classification reads the mean of the tokens, or a cls token (ViT, DeiT, BERT)",
                    ("mean", "cls")),
        "pre_logits": Key(False, "images: a tanh layer between pooling and the head, as the first ViTs have"),
    },
    "data": {
        "train": Key("embedded", "a path, `tfds:NAME/CONFIG`, or `embedded`: CPython's reference manual, UCI's digits"),
        "heldout": Key("", "path of the held-out data; empty: a split or a share of the training data"),
        "split": Key("", "the split to train on; empty: `train` where the data have splits"),
        "heldout_split": Key("", "the split held out; empty: `validation` where the data have it, or (images) `test`"),
        "heldout_share": Key(0.05, "share of the training data held out where no path is given"),
        "tokenizer": Key("", "a SentencePiece model or a WordPiece vocabulary; empty: trained on the training text"),
        "packing": Key("concatenated", "text: windows over all documents in a row, or over each one alone",
                       ("concatenated", "documents")),
        "max_bad_records": Key(0, "records that cannot be read are skipped (pictures: a host); one more stops the run"),
        "cache": Key("", "folder for tokenizers, token ids and indexes; empty: ~/.cache/gmlp_flax"),
        "min_scale": Key(0.08, "images: least share of the picture that a training crop covers; 1: no crop"),
        "eval_crop": Key(0.875, "images: share of the resized picture's side that evaluation crops; 1: all of it"),
        "flip": Key(True, "images: mirror half of the training pictures"),
        "mean": Key((0.5, 0.5, 0.5), "images: subtracted from each channel of pixels in 0 to 1"),
        "std": Key((0.5, 0.5, 0.5), "images: divides each channel afterwards"),
        "workers": Key(0, "processes that prepare batches; 0: threads of this one"),
    },
    "augment": {
        "auto": Key("none", "images: AutoAugment's ImageNet policy (the paper's), RandAugment (DeiT's), or neither",
                    ("none", "autoaugment", "randaugment")),
        "randaugment_layers": Key(2, "operations drawn a picture; each is applied to half of them"),
        "randaugment_magnitude": Key(9.0, "mean severity, 0 to 10"),
        "randaugment_std": Key(0.5, "standard deviation of the severity"),
        "color_jitter": Key(0.0, "images: brightness, contrast, saturation by 1 +- this at most, if auto is none"),
        "erasing": Key(0.0, "images: probability that noise replaces a rectangle (DeiT: 0.25)"),
        "mixup": Key(0.0, "images: alpha of mixup (paper: 0.8); 0: none"),
        "cutmix": Key(0.0, "images: alpha of CutMix (paper: 1.0); 0: none"),
        "switch": Key(0.5, "images: probability of CutMix where both are on"),
        "mixing": Key("batch", "images: one draw of mixup or CutMix for all of a batch, as DeiT, or one a pair",
                      ("batch", "pair")),
        "repeats": Key(1, "images: times that an epoch holds each picture, augmented anew (DeiT: 3)"),
    },
    "masking": {
        "rate": Key(0.15, "share of a sequence's tokens to predict"),
        "max_predictions": Key(20, "at most this many a sequence (BERT: 20 at length 128)"),
        "mask_share": Key(0.8, "share of the predicted that [MASK] replaces"),
        "random_share": Key(0.1, "share of the predicted that a random token replaces; the rest stays"),
        "static": Key(False, "mask each sequence once, instead of anew each time that it is seen"),
    },
    "glue": {
        "task": Key("sst2", "what text classification learns: a task of GLUE, or SNLI",
                    ("sst2", "cola", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "snli")),
    },
    "squad": {
        "version": Key("v1.1", "SQuAD v1.1, or v2.0 with questions that have no answer", ("v1.1", "v2.0")),
        "stride": Key(128, "tokens from one window of a passage to the next"),
        "max_query": Key(64, "a question's tokens at most; the rest is cut off"),
        "max_answer": Key(30, "tokens of an answer at most"),
        "n_best": Key(20, "starts and ends that are combined a window, and answers kept a question"),
        "null_threshold": Key(0.0, "v2.0: no answer where its score exceeds the best answer's by more than this"),
    },
    "optimizer": {
        "learning_rate": Key(1e-3, "peak of the schedule"),
        "schedule": Key("cosine", "after the warmup", ("cosine", "linear", "constant")),
        "warmup": Key(100, "steps of linear warmup from 0"),
        "b1": Key(0.9, "AdamW's decay of the first moment"),
        "b2": Key(0.999, "AdamW's decay of the second moment"),
        "eps": Key(1e-6, "AdamW's epsilon"),
        "weight_decay": Key(0.05, "decoupled; norms, all biases, cls tokens and learned positions are left out"),
        "clip": Key(1.0, "global norm of gradients; 0: no clipping"),
        "accumulate": Key(1, "microbatches a step"),
        "ema": Key(0.0, "decay of a running mean of the parameters, evaluated beside them; 0: none"),
        "freeze": Key((), "regular expressions of parameter paths that stay as they started"),
        "label_smoothing": Key(0.0, "images: share of the target spread over all classes"),
    },
    "mesh": {
        "data": Key(-1, "devices, or groups of them, that hold a copy of the state each; -1: the rest, here or below"),
        "fsdp": Key(1, "devices that share one copy of the state, and the batch; a layer is gathered when it runs"),
        "tensor": Key(1, "devices that share the products of a layer: d_ffn and the vocabulary are split"),
        "slices": Key(1, "TPU slices that a network joins; they divide the data axis"),
        "rules": Key((), "more rules on parameter paths, before our own: REGEX=AXIS,..., - for an axis left whole"),
    },
    "eval": {
        "every": Key(0, "steps between evaluations; 0: at the end alone"),
        "batch_size": Key(0, "examples a batch; 0: as in training"),
        "examples": Key(0, "masked text: held-out sequences to score, evenly spread over all; 0: all"),
        "seed": Key(0, "fixes which held-out tokens are masked, for all runs alike"),
        "real_labels": Key("", "images: ReaL's JSON file of labels for ImageNet's validation pictures"),
    },
    "log": {
        "every": Key(20, "steps that one line of metrics.jsonl averages"),
        "tensorboard": Key(False, "also write TensorBoard files (extra: tensorboard)"),
        "wandb": Key("", "project on Weights & Biases to log to as well (extra: wandb)"),
        "hang_seconds": Key(1800.0, "a run without a step, evaluation or checkpoint done for so long ends; 0: never"),
    },
    "profile": {
        "steps": Key("", "FIRST:LAST, the steps of which RUN/profile gets a profiler's trace; empty: none"),
    },
    "checkpoint": {
        "every": Key(500, "steps between checkpoints; one is always saved at the end"),
        "keep": Key(2, "newest checkpoints to keep"),
        "keep_best": Key(1, "best checkpoints to keep as well"),
        "metric": Key("", "evaluation metric that says which is best; empty: the task's own"),
    },
}


class Range(NamedTuple):
    """Values from `least` to `most` make sense of the keys `names`; `words` say so."""

    words: str
    least: float
    most: float
    names: tuple[str, ...]


_ABOVE_0, _BELOW_1 = math.nextafter(0, 1), math.nextafter(1, 0)
# Of numbers; most of the model's, and those of the mesh, are checked where they are used, a few may be anything.
RANGES = (
    Range("at least 0", 0, math.inf, (
        "seed", "eval.every", "eval.batch_size", "eval.examples", "data.max_bad_records", "data.workers",
        "optimizer.learning_rate", "optimizer.warmup", "optimizer.weight_decay", "optimizer.clip",
        "checkpoint.keep_best", "log.hang_seconds", "augment.randaugment_std", "augment.color_jitter", "augment.mixup",
        "augment.cutmix", "model.norm_eps", "model.spatial_init_std",
    )),
    # Where no gradient has come yet, as to the rows of tokens unseen so far, AdamW divides 0 by it.
    Range("above 0", _ABOVE_0, math.inf, ("optimizer.eps",)),
    Range("a number", -math.inf, math.inf, ("squad.null_threshold",)),
    Range("at least 1", 1, math.inf, (
        "steps", "batch_size", "log.every", "checkpoint.every", "checkpoint.keep", "optimizer.accumulate",
        "masking.max_predictions", "augment.randaugment_layers", "augment.repeats", "squad.stride", "squad.max_query",
        "squad.max_answer", "squad.n_best", "model.vocab_size", "mesh.slices",
    )),
    Range("0 to 10", 0, 10, ("augment.randaugment_magnitude",)),
    Range("a share from 0 to 1", 0, 1, (
        "augment.erasing", "augment.switch", "masking.mask_share", "masking.random_share", "data.min_scale",
    )),
    Range("a share from 0 to below 1", 0, _BELOW_1, ("optimizer.label_smoothing",)),
    Range("a share above 0 and at most 1", _ABOVE_0, 1, ("data.eval_crop",)),
    Range("a share above 0 and below 1", _ABOVE_0, _BELOW_1, ("data.heldout_share", "masking.rate")),
    Range("a decay from 0 to below 1", 0, _BELOW_1, ("optimizer.ema", "optimizer.b1", "optimizer.b2")),
)
