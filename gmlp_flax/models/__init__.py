"""Mathematics and modules: pure functions of arrays, the layers that own parameters, and whole
models.

Nothing here knows of data, configs, optimizers or devices, and only jax, flax, numpy and chex are
needed. Start with `blocks/gmlp.py`, the paper's block; then `encoder`, which stacks blocks, `stack`,
which runs their layers, and `image` and `text`, the models around the encoder.
"""
