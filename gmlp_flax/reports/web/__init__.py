"""A report as a page for browsers."""
