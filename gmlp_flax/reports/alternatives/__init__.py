"""The report of `gmlp reproduce alternatives`: what was measured, its figures and its claims."""
