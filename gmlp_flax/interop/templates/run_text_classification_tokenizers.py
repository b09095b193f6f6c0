"""Classifies lines; the texts of a pair have a tab between them. pip install onnxruntime
tokenizers; python run_onnx.py < TEXTS"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

FOLDER = Path(__file__).parent
MODEL = "model.onnx"
CLASSES = ("negative", "positive")
LENGTH = 128
PAD, CLS, SEP = (0, 2, 3)

tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # a "[SEP]" in a text is text
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
for line in sys.stdin.read().splitlines():
    tokens = [CLS]
    segments = [0]
    for number, text in enumerate(line.split("\t")):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids = [*encoding.ids, SEP]
        tokens += ids
        segments += [number] * len(ids)
    padding = LENGTH - len(tokens)
    if padding < 0:
        raise SystemExit(f"{len(tokens)} tokens, of {LENGTH} at most: {line[:60]}")
    tokens += [PAD] * padding
    segments += [0] * padding
    inputs = {
        "tokens": np.array([tokens], np.int32),
        "segments": np.array([segments], np.int32),
    }
    [output] = session.run(["logits"], inputs)
    logits = np.asarray(output)[0]
    best = logits.argmax()
    odds = np.exp(logits - logits[best])
    probability = 1 / odds.sum()
    print(f"{line}: {CLASSES[best]} {probability:.1%}")
