"""Seeds for the random number generators, from (seed, rank, step) or (seed, epoch, index).

A step of `run.steps` is seeded, so that none of their states is stored. Loops of other frameworks
draw on and on: their states are stored, and restored.
"""

import ctypes
import random
import sys
from array import array
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import torch


def mix(*parts: int | str) -> int:
    """Return a 63-bit hash of these parts."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_generators(number: int) -> None:
    """Seed the default generators of torch and `random`, and of numpy if it is imported.

    `torch.manual_seed` would take ten times as long.
    """
    torch.default_generator.manual_seed(number)
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)  # it takes no larger one
    if has_cuda():
        torch.cuda.manual_seed(number)


def has_cuda() -> bool:
    """Tell whether this process uses CUDA, without initializing it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


class RngSource:
    """The RNG state of all these generators at one moment."""

    def __init__(self) -> None:
        self._state = generator_states()

    def put_back(self) -> None:
        """Restore the state of all generators."""
        restore_generators(self._state)


class WatchedState:
    """The state of a generator in C, read again only if the memory of its objects has changed.

    Reading it takes 20 to 30 µs, comparing the memory one. Most programs use torch's generator
    alone, and live recovery takes these states several times in each step of a trainer.
    """

    def __init__(self, objects: Callable[[], tuple[Any, ...]], read: Callable[[], Any]) -> None:
        self._objects = objects
        self._read = read
        self._memory: list[Any] = []
        self._state: Any = None

    def state(self) -> Any:
        """Return the state; it is shared by several callers, who do not change it."""
        memory = [_memory(one) for one in self._objects()]
        if not memory or memory != self._memory:
            self._state, self._memory = self._read(), memory
        return self._state


def _memory(thing: Any) -> tuple[bytes, Any]:
    """Return what an object has in C, and its attributes."""
    begin = object.__basicsize__
    own = ctypes.string_at(id(thing) + begin, type(thing).__basicsize__ - begin)
    return own, dict(vars(thing)) if hasattr(thing, "__dict__") else None


def _random_objects() -> tuple[Any, ...]:
    return (random.getstate.__self__,)  # type: ignore[attr-defined]


def _random_state() -> tuple[int, bytes, float | None]:
    version, words, gauss = random.getstate()
    return version, array("I", words).tobytes(), gauss


def _numpy_objects() -> tuple[Any, ...]:
    numpy: Any = sys.modules["numpy"].random
    source = getattr(numpy, "get_bit_generator", None)  # numpy 1.24 and newer
    return (numpy.get_state.__self__, source()) if source is not None else ()


def _numpy_state() -> Any:
    return sys.modules["numpy"].random.get_state()


_RANDOM = WatchedState(_random_objects, _random_state)
_NUMPY = WatchedState(_numpy_objects, _numpy_state)


def generator_states() -> dict[str, Any]:
    """Return the states of all these generators, as tensors and plain values."""
    numpy = sys.modules.get("numpy")
    return {
        "torch": torch.get_rng_state(),
        "random": _RANDOM.state(),
        "numpy": _NUMPY.state() if numpy is not None else None,
        "cuda": torch.cuda.get_rng_state_all() if has_cuda() else [],
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Restore what `generator_states` returned."""
    torch.set_rng_state(states["torch"])
    version, words, gauss = states["random"]
    random.setstate((version, tuple(array("I", words)), gauss))
    numpy = sys.modules.get("numpy")
    if states["numpy"] is not None and numpy is not None:
        numpy.random.set_state(states["numpy"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


class TrackedGenerator:
    """A generator of the program's own, with its state as other tracked objects have theirs."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    @staticmethod
    def takes(thing: Any) -> bool:
        """Tell whether this is a generator of torch, numpy or `random`."""
        random_ = getattr(sys.modules.get("numpy"), "random", None)
        of_numpy = (random_.Generator, random_.RandomState) if random_ is not None else ()
        return isinstance(thing, (torch.Generator, random.Random, *of_numpy))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator."""
        one = self.generator
        if isinstance(one, random.Random):
            return {"state": one.getstate()}
        if hasattr(one, "bit_generator"):
            return {"state": one.bit_generator.state}
        return {"state": one.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the numbers that follow this state."""
        one = self.generator
        if isinstance(one, random.Random):
            one.setstate(state["state"])
        elif hasattr(one, "bit_generator"):
            one.bit_generator.state = state["state"]
        else:
            one.set_state(state["state"])
