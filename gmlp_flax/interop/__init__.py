"""Our models in formats that need no gmlp_flax to be read. Weights that come from elsewhere are read
in `gmlp_flax.weights`."""
