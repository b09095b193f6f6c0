"""Readers: a file for each documented form of data, whose docstring is the form.

Each has `read(...)`, which gives the splits of a data set (`dataset.Splits`). What is in no
documented form is refused in one line that names the nearest form.
"""
