"""Fills in [MASK] in lines. pip install onnxruntime tokenizers; python run_onnx.py < TEXTS"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

FOLDER = Path(__file__).parent
MODEL = "model.onnx"
LENGTH = 128
PAD, CLS, SEP, MASK = (0, 2, 3, 4)
MASK_TAKES_BLANKS = False  # whether the blanks before a mask belong to it

tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # a "[SEP]" in a text is text
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
for line in sys.stdin.read().splitlines():
    *before, last = line.split("[MASK]")
    tokens = [CLS]
    for text in before:
        if MASK_TAKES_BLANKS:
            text = text.rstrip()
        encoding = tokenizer.encode(text, add_special_tokens=False)
        tokens += [*encoding.ids, MASK]
    encoding = tokenizer.encode(last, add_special_tokens=False)
    tokens += [*encoding.ids, SEP]
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
        word = tokenizer.decode([best], skip_special_tokens=False).strip().removeprefix("##")
        print(f"{line}: {word} {probability:.1%}")
