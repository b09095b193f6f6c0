"""The Python API: models made, loaded and used in a program of one's own. `gmlp_flax` itself gives
its names."""
