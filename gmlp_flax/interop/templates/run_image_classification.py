"""Classifies images. pip install onnxruntime pillow; python run_onnx.py IMAGE ..."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

FOLDER = Path(__file__).parent
MODEL = "model.onnx"
MODE = "RGB"
HEIGHT, WIDTH = (224, 224)
KEPT = 0.875  # of each side of the resized image

classes = json.loads((FOLDER / "classes.json").read_text(encoding="utf-8"))
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
for path in sys.argv[1:]:
    image = ImageOps.exif_transpose(Image.open(path)).convert(MODE)
    scale = max(round(HEIGHT / KEPT) / image.height, round(WIDTH / KEPT) / image.width)
    height, width = min(HEIGHT / scale, image.height), min(WIDTH / scale, image.width)
    left, top = (image.width - width) / 2, (image.height - height) / 2
    box = (left, top, left + width, top + height)
    view = np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box))
    outputs = session.run(["logits"], {"image": view.reshape(1, HEIGHT, WIDTH, -1)})
    logits = np.asarray(outputs[0])[0]
    best = logits.argmax()
    probability = 1 / np.exp(logits - logits[best]).sum()
    print(f"{path}: {classes[best]} {probability:.1%}")
