"""Continues lines by their most likely tokens. pip install onnxruntime tokenizers;
python run_onnx.py < TEXTS"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

FOLDER = Path(__file__).parent
MODEL = "model.onnx"
LENGTH = 128
PAD, CLS, SEP = (0, 2, 3)
SPECIAL = (0, 1, 2, 4)  # never written; [SEP] ends a text
WRITTEN = 20  # tokens after each line

tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # a "[SEP]" in a text is text
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
for line in sys.stdin.read().splitlines():
    encoding = tokenizer.encode(line, add_special_tokens=False)
    tokens = [CLS, *encoding.ids]
    if len(tokens) >= LENGTH:  # no room to write
        raise SystemExit(f"{len(tokens)} tokens, of {LENGTH - 1} at most: {line[:60]}")
    for _ in range(WRITTEN):
        count = len(tokens)
        if count == LENGTH:
            break
        padded = np.full((1, LENGTH), PAD, np.int32)
        padded[0, :count] = tokens
        [output] = session.run(["logits"], {"tokens": padded})
        scores = np.array(output)[0, count - 1]  # of each token that may be next
        scores[list(SPECIAL)] = -np.inf
        best = int(scores.argmax())
        tokens.append(best)
        if best == SEP:
            break
    print(tokenizer.decode(tokens[1:]))
