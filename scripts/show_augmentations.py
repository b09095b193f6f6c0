"""The same as `gmlp augmentations`."""

from gmlp_flax.commands import augmentations

if __name__ == "__main__":
    augmentations.run()
