"""Mathematics and modules. Knows nothing of data, configs, optimizers or devices."""
