"""Round numbers along an axis, and how people write them."""

import math


def ticks(low: float, high: float, most: int) -> list[float]:
    """Return at most so many round numbers from `low` to `high`, evenly apart."""
    if not high > low or most < 2:
        return [low]
    if high - low < 1e-9 * max(abs(low), abs(high)):  # numbers in between are not to be told apart
        return [low, high]
    step = _round_up((high - low) / (most - 1))
    first = math.ceil(low / step - 1e-9)
    found: list[float] = []
    while len(found) < most and (first + len(found)) * step <= high + step * 1e-9:
        found.append((first + len(found)) * step)
    return found if len(found) > 1 else [low, high]


def short(value: float) -> str:
    """Return a number in few letters: 0.05, 12, 1.5k, 3e-05."""
    size = abs(value)
    if size < 1e-15:
        return "0"
    if size >= 1e15 or size < 1e-3:
        return f"{value:.3g}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}"


def clock(seconds: float) -> str:
    """Return seconds as people say them: 42s, 3m10s, 2h05m."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    if minutes:
        return f"{minutes}m{rest:02}s"
    return f"{seconds:.3g}s"


def _round_up(step: float) -> float:
    """Return the next of 1, 2 and 5 times a power of ten."""
    scale = 10.0 ** math.floor(math.log10(step))
    return next(scale * times for times in (1, 2, 5, 10) if scale * times >= step * (1 - 1e-9))
