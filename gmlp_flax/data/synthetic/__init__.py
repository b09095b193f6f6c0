"""Tasks that are generated: associative recall, and the six of MAD."""
