"""The papers' models, tables and numbers, and the training recipes that several configs share."""
