"""How the learning rate goes over the steps of a training: a factor for each, and no state."""

import math

from torchloom.worker.train.hyper import Hyper

RISE = 0.3  # of the steps of a cycle
START = 1 / 25  # of the peak
END = START / 1e4


def factor(hyper: Hyper, step: int, steps: int) -> float:
    """Return what step `step` of `steps` makes of the learning rate."""
    if hyper.schedule == "onecycle":
        return _one_cycle(step, steps)
    if step < hyper.warmup_steps:
        return (step + 1) / hyper.warmup_steps
    gone = step - hyper.warmup_steps
    done = min(1.0, gone / max(1, steps - hyper.warmup_steps))
    match hyper.schedule:
        case "linear":
            return 1.0 + (hyper.decay_to - 1.0) * done
        case "cosine":
            return _between(1.0, hyper.decay_to, done)
        case "step":
            return hyper.gamma ** (gone // hyper.step_size)
    return 1.0


def _one_cycle(step: int, steps: int) -> float:
    """Rise from a fraction of the peak, and fall to next to nothing by the last step."""
    top, last = RISE * steps - 1, steps - 1
    if step <= top:
        return _between(START, 1.0, step / top if top > 0 else 1.0)
    return _between(1.0, END, min(1.0, (step - top) / (last - top)) if last > top else 1.0)


def _between(start: float, end: float, done: float) -> float:
    """Return a point on half a wave of the cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2
