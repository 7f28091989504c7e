"""Draw docs/pictures: `make pictures`; with `--check` only compare.

`architecture.svg` is drawn by hand, below. `job-states.svg` comes from the table of the rules,
`rooms.svg` from the import contract, `after-a-kill.svg` from docs/evidence/after-a-kill.json, which
`make trace` records. None needs more than Python.
"""

import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from svg import Drawing, Point, width_of

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
TRACE = ROOT / "docs" / "evidence" / "after-a-kill.json"
sys.path.insert(0, str(ROOT / "src"))

from torchloom.rules import lifecycle  # noqa: E402
from torchloom.rules.lifecycle import JobLifecycle, Resume  # noqa: E402
from torchloom.specs.states import JobState  # noqa: E402


def main(words: list[str]) -> int:
    """Draw all pictures, or return 1 if one of them is another."""
    wanted = {name: draw().svg() for name, draw in DRAWN.items()}
    if "--check" in words:
        return int(any(_text(name) != text for name, text in wanted.items()))
    PICTURES.mkdir(exist_ok=True)
    for name, text in wanted.items():
        (PICTURES / f"{name}.svg").write_text(text)
    return 0


def _text(name: str) -> str:
    path = PICTURES / f"{name}.svg"
    return path.read_text() if path.exists() else ""


# The processes and what they say to each other.


def architecture() -> Drawing:
    """Draw the processes of a plane and of a job on one host."""
    found = Drawing(
        "architecture",
        *(1130, 690),
        "The processes of torchLoom",
        "The loom command, the dashboard, HTTP clients and monitoring systems reach a user's plane:"
        " NATS, the weaver with its databases, and the server. On each host of a job a node agent"
        " connects to NATS; the launch process, the job agent and the keeper start the ranks; the"
        " threadlet in each rank reports to the node agent.",
    )
    found.zone(24, 140, 1082, 192)
    _doors(found)
    _plane(found)
    _host(found)
    return found


def _doors(found: Drawing) -> None:
    found.box(40, 24, 180, 58, "monitoring system", ["reports failed devices"])
    found.box(290, 24, 180, 58, "loom command", ["run, set, show, ..."])
    found.box(560, 24, 170, 58, "dashboard", ["in a browser"])
    found.box(760, 24, 170, 58, "HTTP clients", ["REST, WebSocket"])
    found.line([(130, 82), (130, 156)])
    found.label(130, 112, "NATS")
    found.line([(380, 82), (380, 156)])
    found.label(380, 112, "unix socket")
    for x in (645, 845):
        found.line([(x, 82), (x, 100), (745, 100), (745, 156)])
    found.label(745, 124, "HTTP, token")


def _plane(found: Drawing) -> None:
    found.box(50, 158, 160, 84, "NATS", ["carries messages,", "stores none"], "blue")
    found.box(300, 158, 160, 84, "weaver", ["stores and decides"], "blue")
    found.box(665, 158, 160, 84, "server", ["REST, WebSocket,", "dashboard files"], "blue")
    found.box(482, 246, 160, 70, "databases", ["state.db, records.db", "or Postgres"])
    found.line([(210, 200), (300, 200)], "<->")
    found.line([(460, 180), (665, 180)], "<->")
    found.words(562, 172, "requests, events", "small")
    found.line([(420, 242), (420, 281), (482, 281)])
    found.words(412, 275, "writes", "small", anchor="end")
    found.line([(642, 281), (705, 281), (705, 242)])
    found.words(714, 275, "reads", "small", anchor="start")
    found.words(850, 178, "plane: one per user and host", "small strong", anchor="start")
    found.words(850, 200, "Ranks train without it, too;", "small", anchor="start")
    found.words(850, 217, "meanwhile their records wait", "small", anchor="start")
    found.words(850, 234, "at the node agents.", "small", anchor="start")


def _host(found: Drawing) -> None:
    found.zone(24, 376, 880, 296)
    found.words(38, 660, "host of a job", "small strong", anchor="start")
    found.words(146, 660, "one of each; the launch process on the first", "small", "start")
    found.box(50, 420, 160, 76, "node agent", ["spools records,", "passes commands on"], "green")
    found.box(270, 420, 170, 76, "launch process", ["starts and restarts,", "writes the record"])
    found.box(500, 420, 150, 76, "job agent", ["logs, exits"], "green")
    found.box(715, 420, 160, 76, "keeper", ["forks and reaps"], "green")
    found.line([(130, 242), (130, 420)], "<->")
    found.label(130, 358, "NATS, signed user")
    found.line([(210, 458), (270, 458)], "<->")
    found.line([(440, 458), (500, 458)], "<->")
    found.line([(650, 458), (715, 458)], "<->")
    for number in range(4):
        _rank(found, 270 + 155 * number, number)
    found.line([(795, 496), (795, 520)], "-")
    found.line([(340, 520), (805, 520)], "-")
    found.line([(340, 600), (340, 628)], "-")
    found.line([(805, 628), (130, 628), (130, 496)])
    for number, words in enumerate(("unix socket:", "reports,", "commands")):
        found.words(142, 556 + 18 * number, words, "small", anchor="start")
    _stores(found)


def _rank(found: Drawing, x: float, number: int) -> None:
    found.line([(x + 70, 520), (x + 70, 540)])
    found.box(x, 540, 140, 34, f"rank {number}")
    found.box(x, 574, 140, 26, "", colour="amber")
    found.words(x + 70, 591, "threadlet", "small")
    if number:
        found.line([(x + 70, 600), (x + 70, 628)], "-")


def _stores(found: Drawing) -> None:
    found.box(940, 376, 166, 84, "run's folder", ["record, events, logs,", "source"])
    found.box(940, 540, 166, 76, "checkpoints", ["a folder or S3"])
    found.line([(355, 420), (355, 396), (940, 396)])
    found.line([(575, 420), (575, 396)], "-")
    found.line([(875, 570), (940, 570)])
    found.words(1023, 636, "ranks write shards,", "small")
    found.words(1023, 652, "node agents commit", "small")


# The states of a job.

PLACES: Mapping[JobState, Point] = {
    JobState.QUEUED: (130, 210),
    JobState.RUNNING: (400, 210),
    JobState.RECOVERING: (660, 84),
    JobState.PAUSED: (660, 336),
    JobState.COMPLETED: (930, 210),
    JobState.FAILED: (930, 84),
    JobState.CANCELLED: (930, 336),
}
COLOURS = {
    **dict.fromkeys((JobState.RUNNING, JobState.COMPLETED), "green"),
    **dict.fromkeys((JobState.QUEUED, JobState.PAUSED), "blue"),
    JobState.RECOVERING: "amber",
    JobState.FAILED: "red",
}
Cause = tuple[str, float, float, float]  # words; how far along the arrow they are, and beside it
CAUSES: Mapping[tuple[JobState, JobState], Cause] = {
    (JobState.QUEUED, JobState.RUNNING): ("ranks requested", 0.5, 0, 20),
    (JobState.RUNNING, JobState.RECOVERING): ("a loss", 0.5, 30, 12),
    (JobState.RECOVERING, JobState.RUNNING): ("all ranks train", 0.5, -58, -6),
    (JobState.RUNNING, JobState.PAUSED): ("pause", 0.5, -26, 14),
    (JobState.PAUSED, JobState.RUNNING): ("resume", 0.5, 46, -6),
    (JobState.RUNNING, JobState.COMPLETED): ("all ranks ended with 0", 0.2, 0, -8),
    (JobState.RECOVERING, JobState.PAUSED): ("pause", 0.3, -26, 0),
    (JobState.PAUSED, JobState.RECOVERING): ("a loss", 0.3, 26, 0),
}
AGAIN = "queued again"
ENDS = {JobState.FAILED: "attempts used up", JobState.CANCELLED: "stopped"}
WIDE, HIGH = 140.0, 56.0


def job_states() -> Drawing:
    """Draw the states of a job and every transition of the table, those to an end as one each."""
    open_states = [state for state in lifecycle.TRANSITIONS if not state.is_final]
    ends = frozenset[JobState].intersection(*(lifecycle.TRANSITIONS[one] for one in open_states))
    found = Drawing(
        "job-states", *(1070, 450), "The states of a job", _transitions_in_words(open_states)
    )
    found.zone(36, 34, 724, 358)
    found.words(240, 380, "the job is not over", "small strong", anchor="start")
    for state in open_states:
        for to in sorted(lifecycle.TRANSITIONS[state] - ends):
            _transition(found, state, to)
    for to in sorted(ends):
        x, y = PLACES[to]
        found.line([(760, y), (x - WIDE / 2, y)])
    _resume(found)
    for state, (x, y) in PLACES.items():
        lines = [ENDS[state]] if state in ENDS else []
        box = (x - WIDE / 2, y - HIGH / 2, WIDE, HIGH)
        found.box(*box, state.value, lines, COLOURS.get(state, "plain"))
    found.line([(8, 210), (60, 210)])
    found.words(6, 198, "submit", "small", anchor="start")
    return found


def _transitions_in_words(open_states: list[JobState]) -> str:
    each = (f"{one} to {', '.join(sorted(lifecycle.TRANSITIONS[one]))}" for one in open_states)
    return f"States and transitions: {'; '.join(each)}. A resume starts a new attempt."


def _transition(found: Drawing, state: JobState, to: JobState) -> None:
    """Draw one arrow, beside the one that leads back if there is one."""
    (x, y), (to_x, to_y) = PLACES[state], PLACES[to]
    if to is JobState.QUEUED and y != to_y:
        side = to_y + (HIGH / 2 if y > to_y else -HIGH / 2)
        found.line([(x - WIDE / 2, y), (to_x + 24, y), (to_x + 24, side)], style="dashed")
        found.words(310, y - 8, AGAIN, "small")
        return
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    ahead = ((to_x - x) / length, (to_y - y) / length)
    aside = 10.0 if state in lifecycle.TRANSITIONS[to] else 0.0
    moved = (-ahead[1] * aside, ahead[0] * aside)
    begin, end = _border(ahead, moved), _border((-ahead[0], -ahead[1]), moved)
    first, last = (x + begin[0], y + begin[1]), (to_x + end[0], to_y + end[1])
    is_back = to is JobState.QUEUED
    found.line([first, last], style="dashed" if is_back else "")
    words, part, right, down = (AGAIN, 0.5, 0, -8) if is_back else CAUSES[state, to]
    at = [one + (other - one) * part for one, other in zip(first, last, strict=True)]
    found.words(at[0] + right, at[1] + down + (0 if abs(down) > 5 else 4), words, "small")


def _border(ahead: Point, moved: Point) -> Point:
    """Return where a line beside the middle of a state crosses its box, in this direction."""
    halves = (WIDE / 2, HIGH / 2)
    far = min(
        (half - aside * (1 if along > 0 else -1)) / abs(along)
        for along, aside, half in zip(ahead, moved, halves, strict=True)
        if along
    )
    return moved[0] + ahead[0] * (far + 3), moved[1] + ahead[1] * (far + 3)


def _resume(found: Drawing) -> None:
    """Draw how a job continues that is over, or that was paused and released."""
    may = [state for state in PLACES if _may_resume(state)]
    right, low = 1040.0, 424.0
    for state in may:
        x, y = PLACES[state]
        if state.is_final:
            found.line([(x + WIDE / 2, y), (right, y)], "-", "dashed")
        else:
            found.line([(x + 30, y + HIGH / 2), (x + 30, low)], "-", "dashed")
    top = min(PLACES[state][1] for state in may if state.is_final)
    x, y = PLACES[JobState.QUEUED]
    found.line([(right, top), (right, low), (x - 24, low), (x - 24, y + HIGH / 2)], style="dashed")
    found.label(400, low + 4, "loom resume: a new attempt of the same run")
    found.words(728, low - 12, "released", "small")


def _may_resume(state: JobState) -> bool:
    try:
        lifecycle.step(JobLifecycle("", state), Resume("asked"))
    except lifecycle.IllegalTransition:
        return False
    return True


# What follows a kill.

LEFT, RIGHT = 190.0, 1060.0  # where the first and the last moment are
STEPS = {  # what is numbered: its lane, and what happened
    "killed": ("rank", "kill -9 is sent"),
    "dead": ("rank", "the kernel has ended the process"),
    "reaped": ("keeper", "the keeper has reaped it and reports its exit"),
    "loss_decided": ("weaver", "the weaver begins the next generation"),
    "forked": ("keeper", "the keeper has forked the newcomer"),
    "program": ("newcomer", "the newcomer runs the program's first line"),
    "set_up": ("newcomer", "its set-up is done: it has reached run.steps"),
    "recovered": ("weaver", "all have the state: the weaver stores that they train"),
    "first_begun": ("newcomer", "the first rank begins the step"),
    "all_done": ("newcomer", "all ranks have done the step"),
}


def after_a_kill() -> Drawing:
    """Draw the kill of the recorded ones that took as long as the median."""
    trace = json.loads(TRACE.read_text())
    sample = next(one for one in trace["samples"] if one["all_done"] == trace["median"])
    victim, ranks = sample["victim"], trace["ranks"]
    took = f"{sample['all_done']:.0f} ms"
    found = Drawing(
        "after-a-kill",
        *(1100, 640),
        "What happens after a rank is killed",
        f"A timeline of {took}, from kill -9 of rank {victim} of {ranks} until all ranks have done"
        " the next step: " + "; ".join(f"{sample[n]:.0f} ms: {w}" for n, (_, w) in STEPS.items()),
    )
    found.words(
        24, 34, f"kill -9 of rank {victim} of {ranks}: all train again", "strong", anchor="start"
    )
    found.words(
        24, 54, f"after {took}, the median of {trace['kills']} kills", "small", anchor="start"
    )
    scale = Scale(sample["all_done"])
    _axis(found, scale)
    lanes = _lanes(found, scale, sample, victim)
    _numbers(found, scale, sample, lanes)
    _legend(found, sample)
    load = f"load average {trace['load']:.1f} before" if "load" in trace else "load not recorded"
    found.words(1080, 626, f"{trace['machine']}; {load}", "small", anchor="end")
    return found


class Scale:
    """Where a moment is, from a little before the kill to a little after the end."""

    def __init__(self, last: float) -> None:
        self.first, self.last = -last * 0.08, last * 1.06

    def x(self, at: float) -> float:
        kept = min(max(at, self.first), self.last)
        return LEFT + (RIGHT - LEFT) * (kept - self.first) / (self.last - self.first)

    def ticks(self) -> list[int]:
        """Return at most ten round numbers."""
        step = next(one for one in (5, 10, 20, 50, 100, 200, 500) if self.last / one <= 10)
        return list(range(0, int(self.last) + 1, step))


def _axis(found: Drawing, scale: Scale) -> None:
    for tick in scale.ticks():
        x = scale.x(tick)
        found.line([(x, 76), (x, 428)], "-", "thin")
        found.words(x, 70, f"{tick} ms" if tick else "0", "small")


def _lanes(
    found: Drawing, scale: Scale, sample: Mapping[str, Any], victim: int
) -> dict[str, float]:
    """Draw what each process does; return where the lanes are whose moments have numbers."""
    of_ranks = {int(rank): times for rank, times in sample["of_ranks"].items()}

    def bar(y: float, begin: float, end: float, colour: str, text: str = "") -> None:
        x, width = scale.x(begin), scale.x(end) - scale.x(begin)
        found.bar(x, y - 11, width, 22, colour)
        if text and width_of(text) < width - 8:
            found.words(x + width / 2, y + 4, text, "small")

    def lane(y: float, name: str) -> None:
        found.words(24, y + 5, name, "strong", anchor="start")

    lane(104, f"rank {victim}, killed")
    bar(104, scale.first, 0, "green")
    bar(104, 0, sample["dead"], "red")
    lane(154, "keeper")
    lane(204, "weaver")
    found.line([(LEFT, 154), (RIGHT, 154)], "-", "thin")
    found.line([(LEFT, 204), (RIGHT, 204)], "-", "thin")
    y = 254.0
    for rank, times in of_ranks.items():
        if rank == victim:
            continue
        lane(y, f"rank {rank}, survivor")
        broken = times.get("broken", times["last_done"])
        bar(y, scale.first, times["last_done"], "green")
        bar(y, times["last_done"], broken, "amber")
        bar(y, broken, times["begun"], "blue", "leaves the old group, meets the newcomer")
        bar(y, times["begun"], times["done"], "green", "step")
        bar(y, times["done"], scale.last, "green")
        y += 40
    own = of_ranks[victim]
    lane(y + 8, f"rank {victim}, newcomer")
    bar(y + 8, sample["forked"], own["main"], "plain", "starts")
    bar(y + 8, own["main"], own["ready"], "amber", "set-up")
    bar(y + 8, own["ready"], own["begun"], "blue", "joins, takes the state")
    bar(y + 8, own["begun"], own["done"], "green", "step")
    bar(y + 8, own["done"], scale.last, "green")
    return {"rank": 128, "keeper": 154, "weaver": 204, "newcomer": y + 34}


def _numbers(
    found: Drawing, scale: Scale, sample: Mapping[str, Any], lanes: Mapping[str, float]
) -> None:
    """Number the moments; one that is too close to the last of its lane is moved beside it."""
    last: dict[str, float] = {}
    order = sorted(STEPS, key=lambda name: float(sample[name]))
    for name in order:
        where = STEPS[name][0]
        x = max(scale.x(sample[name]), last.get(where, 0.0) + 20)
        found.number(x, lanes[where], 1 + list(STEPS).index(name))
        last[where] = x


def _legend(found: Drawing, sample: Mapping[str, Any]) -> None:
    for number, (name, (_, words)) in enumerate(STEPS.items()):
        x, y = (40.0, 560.0)[number // 5], 474.0 + 28 * (number % 5)
        found.number(x, y, number + 1)
        found.words(x + 86, y + 5, f"{sample[name]:.0f} ms", "strong", anchor="end")
        found.words(x + 98, y + 5, words, anchor="start")


# The rooms of the package.


def rooms() -> Drawing:
    """Draw the layers of the import contract."""
    text = (ROOT / "pyproject.toml").read_text()
    layers = tomllib.loads(text)["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = [[word.strip("() ") for word in layer.split("|")] for layer in layers]
    found = Drawing(
        "rooms",
        *(760, 60 + 46 * len(rows)),
        "The rooms of the package",
        "Each row may import the rows below it: " + "; ".join(", ".join(row) for row in rows),
    )
    words = "imports point down; rooms of one row do not import each other"
    found.words(30, 34, words, "small", anchor="start")
    found.line([(30, 52), (30, 44 + 46 * len(rows))])
    for number, row in enumerate(rows):
        width = (680 - 14 * (len(row) - 1)) / len(row)
        for place, room in enumerate(row):
            x = 54 + (width + 14) * place
            colour = "blue" if room in ("rules", "messages", "specs") else "plain"
            found.box(x, 50 + 46 * number, width, 34, room, colour=colour)
    return found


DRAWN: Mapping[str, Callable[[], Drawing]] = {
    "architecture": architecture,
    "job-states": job_states,
    "after-a-kill": after_a_kill,
    "rooms": rooms,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
