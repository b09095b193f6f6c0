"""Windows on passages by BERT's loops, one after another."""

Bounds = tuple[int, int]  # the first token of a window, and its number of tokens


def bounds(tokens: int, room: int, stride: int) -> list[Bounds]:
    """The windows of a passage."""
    found = []
    begin = 0
    while True:
        size = min(tokens - begin, room)
        found.append((begin, size))
        if begin + size == tokens:
            return found
        begin += min(size, stride)


def owner(windows: list[Bounds], token: int) -> int:
    """The number of the window in which a token has the most context."""
    best = (-1.0, -1)
    for number, (begin, size) in enumerate(windows):
        end = begin + size - 1
        if begin <= token <= end:
            context = min(token - begin, end - token) + 0.01 * size
            if context > best[0]:
                best = (context, number)
    return best[1]
