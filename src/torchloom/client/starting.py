"""Start a plane in the background, apart from whoever wants it, and hear whether it lives."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torchloom import settings
from torchloom.client import calls, places
from torchloom.client.errors import PlaneNotStarted, from_answer

LIMIT = 120.0  # seconds for a plane to be up
_MODULE = "torchloom.plane"
_SHELL = "/bin/sh"
_APART = '"$@" &'  # whoever wants the plane is not its parent: nobody is left to wait for it
_NOT_THE_PLANES = ("LOOM_JOB", "LOOM_NODE", "LOOM_ROLE", "LOOM_ATTEMPT", "LOOM_GENERATION")
_AGENT_VARIABLE = "LOOM_AGENT_OF"  # what carries it is none of the programs that a job left behind
_WORTH_A_LOOK = 0.01


def start(wait: bool, wishes: Mapping[str, Any]) -> None:
    """Start a plane; with `wait` come back when it, or one that was faster, is up."""
    places.made_folder()
    words = [sys.executable, "-P", "-m", _MODULE, *_words(wishes)]
    read_end, write_end = os.pipe()
    try:
        _spawn(words, write_end if wait else None)
    finally:
        os.close(write_end)
    with open(read_end, "rb") as report:
        if not wait:
            return
        _understand(_first_line(report.fileno()), wishes)


def _words(wishes: Mapping[str, Any]) -> Sequence[str]:
    flags = [f"--{name}" for name, value in wishes.items() if value is True]
    values = [f"--{name}={value}" for name, value in wishes.items() if isinstance(value, str)]
    return [*flags, *values]


def _environment() -> dict[str, str]:
    env = {k: v for k, v in settings.environment().items() if k not in _NOT_THE_PLANES}
    return env | {_AGENT_VARIABLE: "plane"}


def _spawn(words: Sequence[str], report: int | None) -> None:
    log = places.log()
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, str(log), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 2 if report is None else report, 1),
    ]
    argv = [_SHELL, "-c", _APART, "loom-plane", *words]
    pid = os.posix_spawn(_SHELL, argv, _environment(), file_actions=actions)
    os.waitpid(pid, 0)


def _first_line(report: int) -> dict[str, Any] | None:
    """Return what the started process says of itself; nothing when it ended without a word."""
    import json
    import select

    text, deadline = b"", time.monotonic() + LIMIT
    while not text.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([report], [], [], left)[0]:
            raise PlaneNotStarted(f"the plane is not up after {LIMIT:.0f} s; see {places.log()}")
        more = os.read(report, 1 << 16)
        if not more:
            return None
        text += more
    said: dict[str, Any] = json.loads(text)
    return said


def _understand(said: dict[str, Any] | None, wishes: Mapping[str, Any]) -> None:
    if said is None:
        raise PlaneNotStarted(f"the plane ended at once; see {places.log()}")
    if "error" in said:
        raise from_answer(said)
    if said.get("ok") == "other":
        _wait_for_the_other(wishes)


def _wait_for_the_other(wishes: Mapping[str, Any]) -> None:
    """Somebody else's is being started: come back when that one is up."""
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            with calls.call(places.control(), LIMIT) as channel:
                calls.answer(channel, calls.question("ready", wishes))
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise PlaneNotStarted(f"another plane does not come up: {error}") from error
        time.sleep(_WORTH_A_LOOK)
