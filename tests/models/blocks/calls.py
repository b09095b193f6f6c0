"""Ways to call a block."""


def add(shortcut, branch):
    """The residual connection of evaluation."""
    return shortcut + branch


def branches(module, x):
    """What a block gives, and the (shortcut, branch) of each of its residual connections."""
    found = []
    return module(x, lambda shortcut, branch: found.append((shortcut, branch)) or shortcut + branch), found
