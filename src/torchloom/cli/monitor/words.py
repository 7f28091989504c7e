"""The words of the monitor's prompt: a table for help and completion, and lines read by it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torchloom.errors import NotFound, UserError, nearest, shorten


class Word(NamedTuple):
    """One word: how it is written, what it does, its flags; `=` ends those with a value."""

    usage: str
    summary: str
    flags: tuple[str, ...] = ()
    takes: str = ""  # what may follow, for completion: job, knob, device, word


_WHY = "--reason="
_AT = "--at="

WORDS: Mapping[str, Word] = {
    "jobs": Word("jobs [--all]", "jobs, newest first", ("--all",)),
    "use": Word("use JOB", "mean this job from now on; `use -` forgets it", (), "job"),
    "show": Word("show [JOB]", "one job: state and why, ranks, knobs", (), "job"),
    "ranks": Word("ranks [JOB]", "its ranks: state, step, lag, step time, node", (), "job"),
    "metrics": Word(
        "metrics [JOB]", "the newest numbers of a rank, and curves", ("--name=", "--rank="), "job"
    ),
    "events": Word("events [JOB]", "what happened", ("--limit=",), "job"),
    "knobs": Word("knobs [JOB]", "what `set` can change", (), "job"),
    "set": Word(
        "set [JOB] NAME=VALUE ..",
        "change knobs at one step on all ranks",
        (_AT, "--hold", _WHY, "--wait=", "--guard=", "--for="),
        "knob",
    ),
    "undo": Word("undo [JOB] [COMMAND]", "take back the last change of knobs", (_AT, _WHY), "job"),
    "setlr": Word("setlr VALUE", "the same as set lr=VALUE", (_AT, "--hold", _WHY, "--wait=")),
    "pause": Word("pause [JOB]", "have all ranks wait at one step", (_AT, _WHY), "job"),
    "resume": Word("resume [JOB]", "continue after a pause", (_WHY,), "job"),
    "stop": Word("stop [JOB]", "end its ranks after a step", (_AT, _WHY), "job"),
    "audit": Word("audit [JOB]", "every command, who gave it, what became of it", (), "job"),
    "devices": Word("devices", "every device and the ranks on it"),
    "fail_device": Word("fail_device UUID", "a device has failed", (_WHY,), "device"),
    "recover_device": Word("recover_device UUID", "a device is well again", (_WHY,), "device"),
    "drain": Word("drain UUID", "put nothing new on a device", (_WHY,), "device"),
    "register_device": Word("register_device UUID", "make a device known", (_WHY,)),
    "plane": Word("plane", "how the weaver is"),
    "help": Word("help [WORD]", "these words, or one of them", (), "word"),
    "quit": Word("quit", "leave; jobs run on"),
}

# Other words for the same.
ALIASES: Mapping[str, str] = {
    **dict.fromkeys(("ls", "list", "ps", "runs"), "jobs"),
    **dict.fromkeys(("job", "status"), "show"),
    **dict.fromkeys(("test", "fail"), "fail_device"),
    **dict.fromkeys(("recover",), "recover_device"),
    **dict.fromkeys(("register",), "register_device"),
    **dict.fromkeys(("drain_device",), "drain"),
    **dict.fromkeys(("reset_lr", "set_lr"), "setlr"),
    **dict.fromkeys(("exit", "q"), "quit"),
    **dict.fromkeys(("?", "h"), "help"),
    "log": "events",
    "cancel": "stop",
}
_TAIL = """\
JOB is an id, the beginning of one, a name, or @ for the newest. Left out, the
one that `use` chose is meant, or the only active one."""
_DEVICE_ACTS = {
    "fail": "fail_device",
    "recover": "recover_device",
    "drain": "drain",
    "register": "register_device",
}


@dataclass(frozen=True, slots=True)
class Order:
    """One line, understood: the word, what follows it, and its flags."""

    word: str
    free: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)  # one without a value has ""

    def only(self, what: str) -> str:
        """Return the one word that must follow."""
        if len(self.free) != 1:
            usage = WORDS[self.word].usage
            raise UserError(f"{self.word} takes one {what}; write `{usage}`")
        return self.free[0]

    def at_most(self, count: int) -> tuple[str, ...]:
        """Return what follows, if it is no more than is understood."""
        if len(self.free) > count:
            surplus, usage = shorten(self.free[count]), WORDS[self.word].usage
            raise UserError(f"{surplus!r} is one word too many; write `{usage}`")
        return self.free


def read(line: str) -> Order | None:
    """Return what a line asks for; nothing for an empty one or a comment."""
    line = line.strip().removeprefix(":").strip()
    if not line or line.startswith("#"):
        return None
    try:
        return order(shlex.split(line))
    except ValueError as error:
        raise UserError(f"cannot read this line: {str(error).lower()}") from None


def order(words: list[str]) -> Order:
    """Return what words ask for."""
    first, *rest = words
    name = ALIASES.get(first, first)
    if name == "devices" and rest and rest[0] in _DEVICE_ACTS:  # as the shell's verb has it
        name, rest = _DEVICE_ACTS[rest[0]], rest[1:]
    if name not in WORDS:
        raise NotFound("word", first, [*WORDS, *ALIASES], "`help` lists them")
    if {"-h", "--help"}.intersection(rest):
        return Order("help", (name,))
    return _with_flags(name, rest)


def _with_flags(name: str, rest: list[str]) -> Order:
    free: list[str] = []
    flags: dict[str, str] = {}
    known = WORDS[name].flags
    waiting = iter(rest)
    for word in waiting:
        if not word.startswith("--"):
            free.append(word)
            continue
        flag, equals, value = word.partition("=")
        if f"{flag}=" in known:
            if not equals and (value := next(waiting, "")) == "":
                raise UserError(f"{flag} wants a value")
        elif flag not in known or equals:
            hint = nearest(flag, [each.removesuffix("=") for each in known])
            raise UserError(f"{name} has no {shorten(flag)!r}" + (f"; {hint}" if hint else ""))
        flags[flag] = value
    return Order(name, tuple(free), flags)


def help_text(name: str = "") -> str:
    """Return the table for people, or what is to say of one word."""
    if name:
        return _one(ALIASES.get(name, name))
    width = max(len(word.usage) for word in WORDS.values()) + 2
    rows = [f"{word.usage:<{width}}{word.summary}" for word in WORDS.values()]
    return "\n".join([*rows, "", _TAIL])


def _one(name: str) -> str:
    if name not in WORDS:
        raise NotFound("word", name, [*WORDS, *ALIASES], "`help` lists them")
    word = WORDS[name]
    flags = " ".join(f"[{flag}{'VALUE' if flag.endswith('=') else ''}]" for flag in word.flags)
    others = ", ".join(alias for alias, meant in ALIASES.items() if meant == name)
    lines = [f"{word.usage} {flags}".rstrip(), f"  {word.summary}"]
    return "\n".join([*lines, f"  also: {others}"] if others else lines)
