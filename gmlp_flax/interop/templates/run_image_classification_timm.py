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
SIDE = 224
SHORTER = 256  # pixels of the shorter side, before the crop
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
    # The shorter side is scaled to SHORTER, and the centre is kept, as timm does it.
    shorter = min(image.size)
    width = SHORTER * image.width // shorter
    height = SHORTER * image.height // shorter
    scaled = image.resize((width, height), Image.Resampling.BICUBIC)
    left = round((width - SIDE) / 2)
    top = round((height - SIDE) / 2)
    view = scaled.crop((left, top, left + SIDE, top + SIDE))
    batch = np.asarray(view).reshape(1, SIDE, SIDE, -1)
    [output] = session.run(["logits"], {"image": batch})
    logits = np.asarray(output)[0]
    best = logits.argmax()
    odds = np.exp(logits - logits[best])
    probability = 1 / odds.sum()
    print(f"{path}: {classes[best]} {probability:.1%}")
sys.exit(failed)
