"""The answers of a trained model: predictions of single inputs, and generated text."""
