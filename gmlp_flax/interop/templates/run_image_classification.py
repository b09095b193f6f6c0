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
WHITE = 65535  # the 16-bit pixel that is white


def read(path):
    """The upright image in the model's mode, on white where it is transparent."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode in ("F", "I"):
        raise OSError("its pixels do not have 8 or 16 bits")
    if image.mode.startswith("I;16"):  # Pillow would clip it
        wide = np.asarray(image).astype(np.int64)
        scaled = np.minimum(wide, WHITE) * 255 // WHITE
        image = Image.fromarray(scaled.astype(np.uint8))
    if image.has_transparency_data:
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image.convert("RGBA"))
    return image.convert(MODE)


if len(sys.argv) == 1:
    sys.exit("give images: python run_onnx.py IMAGE ...")
classes = json.loads((FOLDER / "classes.json").read_text(encoding="utf-8"))
session = onnxruntime.InferenceSession(str(FOLDER / MODEL))
failed = False
for path in sys.argv[1:]:
    try:
        image = read(path)
    except Exception as error:  # no file, no image, or damage, for which Pillow has many errors
        print(f"{path}: {error}", file=sys.stderr)
        failed = True
        continue
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
sys.exit(failed)
