"""Softmax attention: its options and mathematics (`spec`, `dot_product`), what it knows of positions,
the kernels and the windows that compute it, and the layer of a Transformer (`multi_head`)."""
