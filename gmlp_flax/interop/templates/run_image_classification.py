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
    upright = ImageOps.exif_transpose(Image.open(path))
    image = upright.convert(MODE)
    # The image is scaled until it covers the larger view, of which the centre is kept.
    scale_down = round(HEIGHT / KEPT) / image.height
    scale_across = round(WIDTH / KEPT) / image.width
    scale = max(scale_down, scale_across)
    height = min(HEIGHT / scale, image.height)
    width = min(WIDTH / scale, image.width)
    left = (image.width - width) / 2
    top = (image.height - height) / 2
    box = (left, top, left + width, top + height)
    view = image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC, box)
    batch = np.asarray(view).reshape(1, HEIGHT, WIDTH, -1)
    [output] = session.run(["logits"], {"image": batch})
    logits = np.asarray(output)[0]
    best = logits.argmax()
    odds = np.exp(logits - logits[best])
    probability = 1 / odds.sum()
    print(f"{path}: {classes[best]} {probability:.1%}")
