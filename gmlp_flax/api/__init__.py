"""The Python API: make, load and use models in your own program. `gmlp_flax` itself gives
its names."""
