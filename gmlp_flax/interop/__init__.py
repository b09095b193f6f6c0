"""Our models in formats that can be read without gmlp_flax. `gmlp_flax.weights` reads weights from
other sources."""
