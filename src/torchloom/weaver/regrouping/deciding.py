"""Ask `rules/live` what follows from some events: one record to store, and what is then said."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torchloom.rules import live
from torchloom.rules.generation import Persist, State
from torchloom.rules.regroup import Event, Fail, Kill, Order, Restart, Seal, Sealed, Told


@dataclass(frozen=True, slots=True)
class Decision:
    """The state after all events, whether it is to be stored, what is told, what is said."""

    state: State
    is_news: bool = False
    told: tuple[Told, ...] = ()
    orders: tuple[Order, ...] = ()


def decide(state: State, events: Iterable[Event], saved: Callable[[], int | None]) -> Decision:
    """Take in some events; `saved` tells the newest checkpoint.

    What is told makes void what was to be said before it: all of that follows from the state
    again. When live is given up nothing is said here; whoever starts all ranks again ends them.
    """
    waiting, told, is_news = deque(events), list[Told](), False
    orders: dict[Order, None] = {}
    while waiting:
        state, effects = live.step(state, waiting.popleft())
        for effect in effects:
            match effect:
                case Persist():
                    is_news = True
                    told += effect.told
                    if effect.told:
                        orders = {one: None for one in orders if isinstance(one, Kill)}
                case Seal():
                    waiting.append(Sealed(effect.generation, saved()))
                case _:
                    orders[effect] = None
        if any(isinstance(one, Restart | Fail) for one in told):
            return Decision(state, True, tuple(told))
    return Decision(state, is_news, tuple(told), tuple(orders))
