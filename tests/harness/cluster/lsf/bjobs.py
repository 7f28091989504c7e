"""bjobs: what is known of jobs, as a table, in fields of one's own choice, or as JSON."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..batch.command import Client, Refused
from ..batch.job import Job, State
from .jobs import IDENTIFIER, exec_host, exit_code, exit_reason, find, name, path, slots, stat
from .options import names, part
from .words import FAILED, not_done

USAGE = 'Usage: bjobs [options] [job_ID | "job_ID[index_list]" ... ]\n       bjobs [-h | -V]\n'
FLAGS = names(
    "A a aff aps d data fwd gpu hms json l N noheader p pe pei pi psum r rusage s script sum UF w "
    "W WF WL WP X x h V env"
)
VALUED = names("app G g J Jd Lp m o P q sla ss u")
DONE = names("a d json noheader p r s w X J m o P q u")
HEAD = "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME"


@dataclass
class Answer:
    """What the daemon told, for the fields that need more than their job."""

    jobs: list[Job]
    now: float
    silent: list[str] = field(default_factory=list)


def _time(at: float | None) -> str:
    return time.strftime("%b %d %H:%M", time.localtime(at)) if at else ""


def _run_time(job: Job, answer: Answer) -> str:
    if job.started is None:
        return "0 second(s)"
    return f"{int((job.ended or answer.now) - job.started - job.stopped)} second(s)"


def _time_left(job: Job, answer: Answer) -> str:
    if job.limit is None or job.started is None or job.state is State.FINISHED:
        return ""
    minutes = int(max(0, job.started + job.limit + job.stopped - answer.now) / 60)
    return f"{minutes // 60}:{minutes % 60} L"


def _pend_reason(job: Job, answer: Answer) -> str:
    if job.state is State.HELD:
        return "The job was suspended by the user while pending"
    if job.state is not State.QUEUED:
        return ""
    if job.depend:
        return "Job dependency condition not satisfied"
    return "Not enough job slot(s)"


def _file(job: Job, which: str) -> str:
    return path(job, job.vendor[which]) if job.vendor[which] else ""


Show = Callable[[Job, Answer], str]
FIELDS: dict[str, Show] = {
    "jobid": lambda job, _: str(job.number),
    "jobindex": lambda job, _: str(job.index or 0),
    "stat": lambda job, answer: stat(job, answer.silent),
    "user": lambda job, _: job.owner,
    "queue": lambda job, _: job.queue,
    "job_name": lambda job, _: name(job),
    "job_description": lambda job, _: job.vendor["description"],
    "proj_name": lambda job, _: job.vendor["project"],
    "command": lambda job, _: job.vendor["command"],
    "exit_code": lambda job, _: str(exit_code(job) or ""),
    "exit_reason": lambda job, _: exit_reason(job),
    "from_host": lambda job, _: job.from_host,
    "first_host": lambda job, _: job.places[0] if job.places else "",
    "exec_host": lambda job, _: exec_host(job),
    "nexec_host": lambda job, _: str(len(job.places) or ""),
    "alloc_slot": lambda job, _: exec_host(job),
    "nalloc_slot": lambda job, _: str(sum(slots(job).values()) or ""),
    "nreq_slot": lambda job, _: str(sum(chunk.cpus for chunk in job.chunks)),
    "slots": lambda job, _: str(sum(chunk.cpus for chunk in job.chunks)),
    "gpu_num": lambda job, _: str(sum(chunk.gpus for chunk in job.chunks) or ""),
    "submit_time": lambda job, _: _time(job.queued),
    "start_time": lambda job, _: _time(job.started),
    "finish_time": lambda job, _: f"{_time(job.ended)} L" if job.ended else "",
    "time_left": _time_left,
    "run_time": _run_time,
    "runtimelimit": lambda job, _: job.vendor["limit"],
    "output_file": lambda job, _: _file(job, "out"),
    "error_file": lambda job, _: _file(job, "err"),
    "input_file": lambda job, _: _file(job, "in"),
    "sub_cwd": lambda job, _: job.cwd,
    "exec_cwd": lambda job, _: job.cwd if job.runs else "",
    "exec_home": lambda job, _: job.vendor["home"] if job.runs else "",
    "pend_reason": _pend_reason,
    "warning_action": lambda job, _: job.vendor["warning"][0],
    "action_warning_time": lambda job, _: job.vendor["warning"][1],
    "effective_resreq": lambda job, _: job.vendor["resreq"],
}
ALIASES = {
    "id": "jobid",
    "name": "job_name",
    "description": "job_description",
    "proj": "proj_name",
    "project": "proj_name",
    "cmd": "command",
    "nexec": "nexec_host",
    "rtlimit": "runtimelimit",
    "ofile": "output_file",
    "efile": "error_file",
    "cwd": "sub_cwd",
}


@dataclass(frozen=True)
class Column:
    """A field of `-o`, and how wide it is shown."""

    name: str
    width: int | None = None
    right: bool = False

    def cell(self, text: str) -> str:
        """Return the text as wide as it was asked for."""
        if self.width is None:
            return text
        return text[: self.width].rjust(self.width) if self.right else text.ljust(self.width)


def main(client: Client, words: list[str]) -> int:
    """Show jobs."""
    found, operands = part("bjobs", words, FLAGS, VALUED, USAGE)
    options = dict(found)
    for option in options:
        if option not in DONE:
            raise not_done("bjobs", f"-{option}")
    if "json" in options and "o" not in options:
        raise not_done("bjobs", "-json without -o")
    for word in operands:
        if not IDENTIFIER.fullmatch(word):
            raise Refused(f"{word}: Illegal job ID.\n", FAILED)
    columns, mark = _columns(options["o"]) if "o" in options else ([], None)
    told = client.ask("list")
    silent = [node["name"] for node in told["nodes"] if not node["up"]]
    answer = Answer(client.jobs(), told["now"], silent)
    rows, missing = _select(answer, options, operands)
    if "json" in options:
        _print_json(rows, missing, columns, answer)
        return FAILED if missing else 0
    _print(rows, columns, mark, options, answer)
    said = "".join(f"Job <{word}> is not found\n" for word in missing)
    if not rows and not missing:
        everything = "a" in options or "d" in options
        said = "No job found\n" if everything else "No unfinished job found\n"
    if said:
        raise Refused(said, FAILED if missing else 0)
    return 0


def _select(
    answer: Answer, options: dict[str, str], operands: list[str]
) -> tuple[list[Job], list[str]]:
    jobs = answer.jobs
    wanted = options.get("J", "")
    filters: list[Callable[[Job], bool]] = [
        lambda job: "J" not in options or wanted in (job.name, name(job)),
        lambda job: "q" not in options or job.queue == options["q"],
        lambda job: options.get("u", "all") in ("all", job.owner),
        lambda job: "P" not in options or job.vendor["project"] == options["P"],
        lambda job: "m" not in options or options["m"] in job.places,
    ]
    states = {"p": ("PEND", "PSUSP"), "r": ("RUN",), "s": ("PSUSP", "USUSP", "SSUSP")}
    states["d"] = ("DONE", "EXIT")
    asked = [each for option, each in states.items() if option in options]
    if asked:
        allowed = {state for each in asked for state in each}
        filters.append(lambda job: stat(job) in allowed)
    elif "a" not in options and not operands:
        filters.append(lambda job: job.state is not State.FINISHED)
    if operands:
        missing = [word for word in operands if not find(word, jobs)]
        jobs = [job for word in operands for job in find(word, jobs)]
        return [job for job in jobs if all(test(job) for test in filters)], missing
    return [job for job in jobs if all(test(job) for test in filters)], []


def _columns(text: str) -> tuple[list[Column], str | None]:
    """Read `-o`: fields with widths, and the delimiter behind them."""
    match = re.fullmatch(r"(.*?)(?:\s*delimiter=(?:'(.)'|\"(.)\"|(.)))?\s*", text, re.DOTALL)
    assert match
    columns = []
    for word in match[1].split():
        named, *rest = word.split(":")
        known = ALIASES.get(named.lower(), named.lower())
        shape = re.fullmatch(r"(-?)(\d*)", rest[0]) if rest else None
        if known not in FIELDS or (rest and not shape) or len(rest) > 1:
            raise Refused(f"{word}: Illegal field name in the output format.\n", FAILED)
        width = int(shape[2] or 10) if shape else None
        columns.append(Column(known, width, bool(shape and shape[1])))
    if not columns:
        raise Refused(f"{text}: Illegal field name in the output format.\n", FAILED)
    return columns, match[2] or match[3] or match[4]


def _print_json(rows: list[Job], missing: list[str], columns: list[Column], answer: Answer) -> None:
    records = [
        {column.name.upper(): FIELDS[column.name](job, answer) for column in columns}
        for job in rows
    ]
    records += [{"JOBID": word, "ERROR": f"Job <{word}> is not found"} for word in missing]
    whole = {"COMMAND": "bjobs", "JOBS": len(rows), "RECORDS": records}
    print(json.dumps(whole, indent=2, ensure_ascii=False))


def _print(
    rows: list[Job],
    columns: list[Column],
    mark: str | None,
    options: dict[str, str],
    answer: Answer,
) -> None:
    if not rows:
        return
    lines = []
    if columns:
        heads = [column.cell(column.name.upper()) for column in columns]
        lines.append((mark or " ").join(heads))
        for job in rows:
            cells = [column.cell(FIELDS[column.name](job, answer) or "-") for column in columns]
            lines.append((mark or " ").join(cells))
    else:
        lines = [HEAD, *(_line(job, answer, "w" in options) for job in rows)]
    print("\n".join(lines[1:] if "noheader" in options else lines))


def _line(job: Job, answer: Answer, wide: bool) -> str:
    hosts = exec_host(job) or "-"
    title = name(job) if wide or len(name(job)) <= 10 else f"*{name(job)[-9:]}"
    title = title.replace("\n", ";")
    return (
        f"{job.number:<7} {job.owner:<7} {stat(job, answer.silent):<5} {job.queue:<10} "
        f"{job.from_host:<11} {hosts:<11} {title:<10} {_time(job.queued)}"
    )
