"""The comparison of gMLP with other token mixers, `gmlp reproduce alternatives`: its report, and the
rows that others submit."""
