"""Mathematics and modules: pure functions of arrays, the layers that own parameters, and whole models.

Nothing here knows of data, configs, optimizers or devices; it needs jax, flax, numpy and chex alone. Start with
`blocks`, which names the kinds of blocks, `encoder`, which stacks them, and `image` and `text`, the models around it.
"""
