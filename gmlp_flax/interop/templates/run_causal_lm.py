"""Continues lines by their most likely tokens. pip install onnxruntime sentencepiece;
python run_onnx.py < TEXTS"""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import sentencepiece

FOLDER = Path(__file__).parent
MODEL = "model.onnx"
LENGTH = 128
PAD, CLS, SEP = (0, 2, 3)
SPECIAL = (0, 1, 2, 4)  # never written; [SEP] ends a text
WRITTEN = 20  # tokens after each line

tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(FOLDER / "tokenizer.model"))
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
for line in sys.stdin.read().splitlines():
    tokens = [CLS, *tokenizer.encode(line)][:LENGTH]
    for _ in range(min(WRITTEN, LENGTH - len(tokens))):
        padded = np.array([tokens + [PAD] * (LENGTH - len(tokens))], np.int32)
        logits = np.asarray(session.run(["logits"], {"tokens": padded})[0])
        scores = logits[0, len(tokens) - 1]
        scores[list(SPECIAL)] = -np.inf
        tokens.append(int(scores.argmax()))
        if tokens[-1] == SEP:
            break
    print(tokenizer.decode(tokens[1:]))
