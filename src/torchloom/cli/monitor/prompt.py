"""The commands of the prompt: each sends one request to the plane and returns text."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchloom.cli.jobs.control import in_words, split, value_of
from torchloom.cli.monitor import answers
from torchloom.cli.output import printable
from torchloom.errors import Ambiguous, NotFound, UserError, nearest, shorten

_WHY = "--reason="
_AT = "--at="
# Other names of the commands.
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
JOB is an id, a prefix of one, a name, or @ for the newest. It defaults to the
job chosen by `use`, or to the only active one."""
_DEVICE_ACTS = {
    "fail": "fail_device",
    "recover": "recover_device",
    "drain": "drain",
    "register": "register_device",
}
FORGET = "-"
_SCREENFUL = 30
_CURVE = 500  # points
_STATES = {
    "fail_device": "failed",
    "recover_device": "healthy",
    "drain": "draining",
    "register_device": "healthy",
}


class Word(NamedTuple):
    """One command: usage, summary and flags; flags with a value end in `=`."""

    usage: str
    summary: str
    flags: tuple[str, ...] = ()
    takes: str = ""  # what may follow, for completion: job, knob, device, word


WORDS: Mapping[str, Word] = {
    "jobs": Word("jobs [--all]", "jobs, newest first", ("--all",)),
    "use": Word("use JOB", "set the default job; `use -` clears it", (), "job"),
    "show": Word("show [JOB]", "one job: state, reason, ranks, knobs", (), "job"),
    "ranks": Word("ranks [JOB]", "ranks: state, step, lag, step time, node", (), "job"),
    "metrics": Word(
        "metrics [JOB]", "newest values and curves of a rank", ("--name=", "--rank="), "job"
    ),
    "events": Word("events [JOB]", "events of a job", ("--limit=",), "job"),
    "knobs": Word("knobs [JOB]", "knobs that `set` can change", (), "job"),
    "set": Word(
        "set [JOB] NAME=VALUE ..",
        "change knobs at one step on all ranks",
        (_AT, "--hold", _WHY, "--wait=", "--guard=", "--for="),
        "knob",
    ),
    "undo": Word("undo [JOB] [COMMAND]", "undo the last change of knobs", (_AT, _WHY), "job"),
    "setlr": Word("setlr VALUE", "the same as set lr=VALUE", (_AT, "--hold", _WHY, "--wait=")),
    "pause": Word("pause [JOB]", "pause all ranks at one step", (_AT, _WHY), "job"),
    "resume": Word("resume [JOB]", "continue a paused job", (_WHY,), "job"),
    "stop": Word("stop [JOB]", "end all ranks at one step", (_AT, _WHY), "job"),
    "audit": Word("audit [JOB]", "every command with author and outcome", (), "job"),
    "devices": Word("devices", "every device and the ranks on it"),
    "fail_device": Word("fail_device UUID", "report a device as failed", (_WHY,), "device"),
    "recover_device": Word(
        "recover_device UUID", "report a device as healthy again", (_WHY,), "device"
    ),
    "drain": Word("drain UUID", "place no new ranks on a device", (_WHY,), "device"),
    "register_device": Word("register_device UUID", "register a device", (_WHY,)),
    "plane": Word("plane", "status of the weaver"),
    "help": Word("help [WORD]", "list the commands, or describe one", (), "word"),
    "quit": Word("quit", "exit; jobs keep running"),
}


@dataclass(frozen=True, slots=True)
class PromptCommand:
    """One parsed line: the command, its arguments and its flags."""

    word: str
    free: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)  # one without a value has ""

    def only(self, what: str) -> str:
        """Return the only argument."""
        if len(self.free) != 1:
            usage = WORDS[self.word].usage
            raise UserError(f"{self.word} takes one {what}; write `{usage}`")
        return self.free[0]

    def at_most(self, count: int) -> tuple[str, ...]:
        """Return the arguments, at most `count` of them."""
        if len(self.free) > count:
            surplus, usage = shorten(self.free[count]), WORDS[self.word].usage
            raise UserError(f"unexpected argument {surplus!r}; write `{usage}`")
        return self.free


def read_line(line: str) -> PromptCommand | None:
    """Parse a line; return None for an empty line or a comment."""
    line = line.strip().removeprefix(":").strip()
    if not line or line.startswith("#"):
        return None
    try:
        return prompt_command(shlex.split(line))
    except ValueError as error:
        raise UserError(f"cannot read this line: {str(error).lower()}") from None


def prompt_command(words: list[str]) -> PromptCommand:
    """Parse the words of a command."""
    first, *rest = words
    name = ALIASES.get(first, first)
    if name == "devices" and rest and rest[0] in _DEVICE_ACTS:  # as the shell's verb has it
        name, rest = _DEVICE_ACTS[rest[0]], rest[1:]
    if name not in WORDS:
        raise NotFound("command", first, [*WORDS, *ALIASES], "`help` lists them")
    if {"-h", "--help"}.intersection(rest):
        return PromptCommand("help", (name,))
    return _with_flags(name, rest)


def _with_flags(name: str, rest: list[str]) -> PromptCommand:
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
                raise UserError(f"{flag} needs a value")
        elif flag not in known or equals:
            hint = nearest(flag, [each.removesuffix("=") for each in known])
            raise UserError(f"{name} has no {shorten(flag)!r}" + (f"; {hint}" if hint else ""))
        flags[flag] = value
    return PromptCommand(name, tuple(free), flags)


def help_text(name: str = "") -> str:
    """Return the list of commands, or the description of one."""
    if name:
        return _one(ALIASES.get(name, name))
    width = max(len(word.usage) for word in WORDS.values()) + 2
    rows = [f"{word.usage:<{width}}{word.summary}" for word in WORDS.values()]
    return "\n".join([*rows, "", _TAIL])


def _one(name: str) -> str:
    if name not in WORDS:
        raise NotFound("command", name, [*WORDS, *ALIASES], "`help` lists them")
    word = WORDS[name]
    flags = " ".join(f"[{flag}{'VALUE' if flag.endswith('=') else ''}]" for flag in word.flags)
    others = ", ".join(alias for alias, meant in ALIASES.items() if meant == name)
    lines = [f"{word.usage} {flags}".rstrip(), f"  {word.summary}"]
    return "\n".join([*lines, f"  also: {others}"] if others else lines)


Ask = Callable[..., Any]  # sends a request: name, timeout, facts


@dataclass(frozen=True, slots=True)
class PromptAnswer:
    """The outcome of a line."""

    text: str = ""
    leaves: bool = False


class Prompt:
    """Runs lines; its only state is the default job."""

    def __init__(self, ask: Ask, job: str = "") -> None:
        self.job = job
        self._ask = ask
        self._acts: Mapping[str, Callable[[PromptCommand], str]] = {
            "jobs": self._jobs,
            "use": self._use,
            "show": self._show,
            "ranks": lambda asked: answers.ranks_text(self._of_job("ranks", asked)),
            "metrics": self._metrics,
            "events": self._events,
            "knobs": lambda asked: answers.knobs_text(self._of_job("knobs", asked)),
            "set": self._set,
            "setlr": self._setlr,
            "undo": self._undo,
            **dict.fromkeys(("pause", "resume", "stop"), self._steer),
            "audit": lambda asked: answers.audit_text(self._of_job("audit", asked)),
            "devices": self._devices,
            **dict.fromkeys(_STATES, self._device),
            "plane": self._plane,
            "help": lambda asked: help_text(*asked.at_most(1)),
        }

    def run(self, line: str) -> PromptAnswer:
        """Run a line; errors are raised as `LoomError`."""
        asked = read_line(line)
        return PromptAnswer() if asked is None else self.obey(asked)

    def run_words(self, words: list[str]) -> PromptAnswer:
        """Run words that a shell has split; a single word is parsed as a line."""
        return self.run(words[0]) if len(words) == 1 else self.obey(prompt_command(words))

    def obey(self, asked: PromptCommand) -> PromptAnswer:
        """Run a parsed command."""
        if asked.word == "quit":
            asked.at_most(0)
            return PromptAnswer(leaves=True)
        text = self._acts[asked.word](asked)
        return PromptAnswer("\n".join(map(printable, text.split("\n"))))

    def _jobs(self, asked: PromptCommand) -> str:
        asked.at_most(0)
        most = None if "--all" in asked.flags else _SCREENFUL
        return answers.jobs_text(self._ask("jobs"), most)

    def _use(self, asked: PromptCommand) -> str:
        if asked.free == (FORGET,):
            self.job = ""
        elif asked.free:
            self.job = self._ask("job", job=asked.only("job"))["id"]
        return f"default job: {self.job or 'the only active one'}"

    def _show(self, asked: PromptCommand) -> str:
        job = self._of_job("job", asked)
        return answers.job_text(job, self._ask("knobs", job=job["id"]))

    def _metrics(self, asked: PromptCommand) -> str:
        name, rank = asked.flags.get("--name", ""), asked.flags.get("--rank", "0")
        facts = {"metric": name, "rank": _whole("--rank", rank), "limit": _CURVE}
        found = self._ask("metrics", job=self._named(asked), **facts)
        if found["names"] and name not in ("", *found["names"]):
            raise NotFound("metric", name, found["names"])
        return answers.metrics_text(found["series"])

    def _events(self, asked: PromptCommand) -> str:
        limit = _whole("--limit", asked.flags.get("--limit", str(_SCREENFUL)))
        job = self._named(asked)
        return answers.events_text(self._ask("events", job=job, limit=limit)["items"][-limit:])

    def _set(self, asked: PromptCommand) -> str:
        job, values = split(asked.free)
        job = job or self.job
        if not values:
            if asked.flags:
                raise UserError("nothing to set; write NAME=VALUE, such as lr=0.03")
            return answers.knobs_text(self._ask("knobs", job=job))
        return self._change(asked, job, values)

    def _setlr(self, asked: PromptCommand) -> str:
        return self._change(asked, self.job, {"lr": value_of(asked.only("value"))})

    def _undo(self, asked: PromptCommand) -> str:
        """Undo a change; after `use`, a single argument is a command of that job."""
        words = asked.at_most(2)
        if self.job and len(words) < 2:
            words = (self.job, *words)
        job, command = (*words, "", "")[:2]
        outcome = self._ask("undo", None, job=job, command=command, **_facts(asked))
        return "\n".join(in_words(outcome))

    def _change(self, asked: PromptCommand, job: str, values: dict[str, Any]) -> str:
        outcome = self._ask("set", None, job=job, values=values, **_facts(asked))
        return "\n".join(in_words(outcome))

    def _steer(self, asked: PromptCommand) -> str:
        """Pause, resume or stop the ranks."""
        facts = _facts(asked)
        if asked.word == "resume":
            facts["unpause"] = True  # only lift a pause: the job may have ended since it was shown
        outcome = self._ask(asked.word, None, job=self._named(asked), **facts)
        lines = in_words(outcome)
        if asked.word == "stop" and outcome["state"] not in ("applied", "committed"):
            lines.append(f"`loom stop {outcome['job']}` stops its processes by signals")
        return "\n".join(lines)

    def _devices(self, asked: PromptCommand) -> str:
        asked.at_most(0)
        return answers.devices_text(self._ask("devices")["devices"])

    def _device(self, asked: PromptCommand) -> str:
        if asked.word == "register_device" and len(asked.free) == 2:
            raise UserError("ranks report their devices themselves; give only the device")
        uuid = asked.only("device")
        if asked.word != "register_device":
            uuid = device_named(uuid, [each["uuid"] for each in self._ask("devices")["devices"]])
        facts: dict[str, Any] = {
            "state": _STATES[asked.word],
            "new": asked.word == "register_device",
        }
        facts["reason"] = asked.flags.get("--reason", "")
        return answers.device_text(self._ask("device_event", device=uuid, **facts))

    def _plane(self, asked: PromptCommand) -> str:
        asked.at_most(0)
        return answers.plane_text(self._ask("status"))

    def _of_job(self, question: str, asked: PromptCommand) -> Any:
        return self._ask(question, job=self._named(asked))

    def _named(self, asked: PromptCommand) -> str:
        return (*asked.at_most(1), self.job)[0]


def device_named(name: str, known: list[str]) -> str:
    """Return the uuid of a device, given by its uuid or a prefix of it."""
    if name in known:
        return name
    found = [uuid for uuid in known if uuid.startswith(name)]
    if len(found) > 1:
        raise Ambiguous("device", name, found)
    if not found:
        raise NotFound("device", name, known, "`devices` lists them")
    return found[0]


def _facts(asked: PromptCommand) -> dict[str, Any]:
    """Return the flags of a command as facts of a request."""
    facts: dict[str, Any] = {"reason": asked.flags.get("--reason", "")}
    if "--at" in asked.flags:
        facts["at"] = _whole("--at", asked.flags["--at"])
    if "--hold" in asked.flags:
        facts["hold"] = True
    if "--guard" in asked.flags:
        facts["guard"] = asked.flags["--guard"]
    if "--for" in asked.flags:
        facts["span"] = _whole("--for", asked.flags["--for"])
    if "--wait" in asked.flags:
        facts["wait"] = _seconds("--wait", asked.flags["--wait"])
    return facts


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"{flag} needs a whole number, not {text!r}")
    return int(text)


def _seconds(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{flag} needs seconds, not {text!r}")
    return value
