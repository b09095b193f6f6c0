"""Windows on passages, one at a time, as in BERT's loops."""

Bounds = tuple[int, int]  # the first token of a window, and its number of tokens


def bounds(tokens: int, room: int, stride: int) -> list[Bounds]:
    """The windows of a passage."""
    windows = []
    begin = 0
    while True:
        size = min(tokens - begin, room)
        windows.append((begin, size))
        if begin + size == tokens:
            return windows
        begin += min(size, stride)


def owner(windows: list[Bounds], token: int) -> int:
    """The number of the window in which a token has the most context."""
    best = -1
    widest = -1.0
    for number, (begin, size) in enumerate(windows):
        end = begin + size - 1
        left = token - begin
        right = end - token
        context = min(left, right) + 0.01 * size
        if begin <= token <= end and context > widest:
            widest = context
            best = number
    return best
