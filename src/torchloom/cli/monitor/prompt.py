"""The prompt's words carried out: each is one question to the plane and an answer as text."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchloom.cli.monitor import answers, curves
from torchloom.cli.monitor.words import Order, help_text, order, read
from torchloom.cli.output import printable
from torchloom.cli.steering import in_words, split, value_of
from torchloom.errors import Ambiguous, NotFound, UserError

Ask = Callable[..., Any]  # the name of a question, a timeout, its facts
FORGET = "-"
_SCREENFUL = 30
_CURVE = 500  # points
_STATES = {
    "fail_device": "failed",
    "recover_device": "healthy",
    "drain": "draining",
    "register_device": "healthy",
}


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a line."""

    text: str = ""
    leaves: bool = False


class Prompt:
    """Carries out lines; remembers only which job is meant when none is named."""

    def __init__(self, ask: Ask, job: str = "") -> None:
        self.job = job
        self._ask = ask
        self._acts: Mapping[str, Callable[[Order], str]] = {
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

    def run(self, line: str) -> Said:
        """Carry out a line; what is wrong with it, or goes wrong, is raised in words."""
        asked = read(line)
        return Said() if asked is None else self.obey(asked)

    def run_words(self, words: list[str]) -> Said:
        """Carry out words that a shell has parted; one with spaces in it is a line."""
        return self.run(words[0]) if len(words) == 1 else self.obey(order(words))

    def obey(self, asked: Order) -> Said:
        """Carry out what was understood."""
        if asked.word == "quit":
            asked.at_most(0)
            return Said(leaves=True)
        text = self._acts[asked.word](asked)
        return Said("\n".join(map(printable, text.split("\n"))))

    def _jobs(self, asked: Order) -> str:
        asked.at_most(0)
        most = None if "--all" in asked.flags else _SCREENFUL
        return answers.jobs_text(self._ask("jobs"), most)

    def _use(self, asked: Order) -> str:
        if asked.free == (FORGET,):
            self.job = ""
        elif asked.free:
            self.job = self._ask("job", job=asked.only("job"))["id"]
        return f"{self.job or 'the only active job'} is meant"

    def _show(self, asked: Order) -> str:
        job = self._of_job("job", asked)
        return answers.job_text(job, self._ask("knobs", job=job["id"]))

    def _metrics(self, asked: Order) -> str:
        name, rank = asked.flags.get("--name", ""), asked.flags.get("--rank", "0")
        facts = {"metric": name, "rank": _whole("--rank", rank), "limit": _CURVE}
        found = self._ask("metrics", job=self._named(asked), **facts)
        if found["names"] and name not in ("", *found["names"]):
            raise NotFound("metric", name, found["names"])
        return curves.metrics_text(found["series"])

    def _events(self, asked: Order) -> str:
        limit = _whole("--limit", asked.flags.get("--limit", str(_SCREENFUL)))
        job = self._named(asked)
        return answers.events_text(self._ask("events", job=job, limit=limit)["items"][-limit:])

    def _set(self, asked: Order) -> str:
        job, values = split(asked.free)
        job = job or self.job
        if not values:
            if asked.flags:
                raise UserError("nothing to set; write NAME=VALUE, such as lr=0.03")
            return answers.knobs_text(self._ask("knobs", job=job))
        return self._change(asked, job, values)

    def _setlr(self, asked: Order) -> str:
        return self._change(asked, self.job, {"lr": value_of(asked.only("value"))})

    def _undo(self, asked: Order) -> str:
        """Take back a change; where `use` chose a job, one word is a command of it."""
        words = asked.at_most(2)
        if self.job and len(words) < 2:
            words = (self.job, *words)
        job, command = (*words, "", "")[:2]
        outcome = self._ask("undo", None, job=job, command=command, **_facts(asked))
        return "\n".join(in_words(outcome))

    def _change(self, asked: Order, job: str, values: dict[str, Any]) -> str:
        outcome = self._ask("set", None, job=job, values=values, **_facts(asked))
        return "\n".join(in_words(outcome))

    def _steer(self, asked: Order) -> str:
        """Have the ranks pause, go on or end."""
        facts = _facts(asked)
        if asked.word == "resume":
            facts["unpause"] = True  # who looks at a screen sees a pause, not an end just now
        outcome = self._ask(asked.word, None, job=self._named(asked), **facts)
        lines = in_words(outcome)
        if asked.word == "stop" and outcome["state"] not in ("applied", "committed"):
            lines.append(f"`loom stop {outcome['job']}` ends its processes without asking them")
        return "\n".join(lines)

    def _devices(self, asked: Order) -> str:
        asked.at_most(0)
        return answers.devices_text(self._ask("devices")["devices"])

    def _device(self, asked: Order) -> str:
        if asked.word == "register_device" and len(asked.free) == 2:
            raise UserError("ranks tell themselves which devices they use; write only the device")
        uuid = asked.only("device")
        if asked.word != "register_device":
            uuid = device_named(uuid, [each["uuid"] for each in self._ask("devices")["devices"]])
        facts: dict[str, Any] = {
            "state": _STATES[asked.word],
            "new": asked.word == "register_device",
        }
        facts["reason"] = asked.flags.get("--reason", "")
        return answers.device_text(self._ask("device_event", device=uuid, **facts))

    def _plane(self, asked: Order) -> str:
        asked.at_most(0)
        return answers.plane_text(self._ask("status"))

    def _of_job(self, question: str, asked: Order) -> Any:
        return self._ask(question, job=self._named(asked))

    def _named(self, asked: Order) -> str:
        return (*asked.at_most(1), self.job)[0]


def device_named(name: str, known: list[str]) -> str:
    """Return the device that somebody means, by its uuid or the beginning of it."""
    if name in known:
        return name
    found = [uuid for uuid in known if uuid.startswith(name)]
    if len(found) > 1:
        raise Ambiguous("device", name, found)
    if not found:
        raise NotFound("device", name, known, "`devices` lists them")
    return found[0]


def _facts(asked: Order) -> dict[str, Any]:
    """Return what a command is to know, as the plane takes it."""
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
        raise UserError(f"{flag} wants a whole number, not {text!r}")
    return int(text)


def _seconds(flag: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise UserError(f"{flag} wants seconds, not {text!r}")
    return value
