"""Fills in [MASK] in lines. pip install onnxruntime sentencepiece; python run_onnx.py < TEXTS"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import sentencepiece

FOLDER = Path(__file__).parent
MODEL = "model.onnx"
LENGTH = 128
PAD, CLS, SEP, MASK = (0, 2, 3, 4)

tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tokenizer.model"))
start = tokenizer.encode("x")  # a text after a mask is encoded as one that follows a word
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
for line in sys.stdin.read().splitlines():
    first, *others = line.split("[MASK]")
    tokens = [CLS, *tokenizer.encode(first)]
    for text in others:
        ids = tokenizer.encode(text)
        follows = text != "" and not text[0].isspace()
        if follows:
            with_start = tokenizer.encode("x" + text)
            ids = with_start[len(start) :]
        tokens += [MASK, *ids]
    tokens += [SEP]
    padding = LENGTH - len(tokens)
    if padding < 0:
        raise SystemExit(f"{len(tokens)} tokens, of {LENGTH} at most: {line[:60]}")
    padded = np.array([tokens + [PAD] * padding], np.int32)
    [output] = session.run(["logits"], {"tokens": padded})
    logits = np.asarray(output)[0]
    for position in np.flatnonzero(padded[0] == MASK):
        scores = logits[position].astype(np.float64)
        best = int(scores.argmax())
        odds = np.exp(scores - scores[best])
        probability = 1 / odds.sum()
        print(f"{line}: {tokenizer.decode([best])} {probability:.1%}")
