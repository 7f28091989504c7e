"""PBS Pro and OpenPBS: `qsub` in, `qstat` out. One job an app, our agents as tasks of it."""

import json
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, UserError
from torchloom.launch.assembly.launchers import SSH_OPTIONS
from torchloom.launch.records.parcel import Parcel
from torchloom.schedulers.batch.commands import EngineCommands, EngineRefused
from torchloom.schedulers.batch.plan import (
    Block,
    add_common,
    blocks,
    count,
    lines,
    native,
    survives,
    text,
)
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.batch.script import (
    OUTPUT,
    SCRIPT,
    BadDirective,
    BatchRequest,
    checked,
    script,
)
from torchloom.schedulers.batch.status import Answer, EngineJob, joined_parts
from torchloom.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, is_terminal, runopts

# What AppState it is, and the reason that distinguishes it from others of that state.
STATES: Mapping[str, tuple[AppState, str]] = {
    "Q": (AppState.PENDING, ""),
    "H": (AppState.PENDING, "held"),
    "W": (AppState.PENDING, "begin_time"),
    "T": (AppState.PENDING, "in_transit"),
    "M": (AppState.PENDING, "moved"),  # to another server
    "S": (AppState.PENDING, "suspended"),
    "U": (AppState.PENDING, "suspended_by_user"),  # of a workstation
    "R": (AppState.RUNNING, ""),
    "B": (AppState.RUNNING, ""),  # an array of which something has run
    "E": (AppState.RUNNING, "completing"),  # it still holds its nodes
}
OVER = ("F", "X")  # X: a task whose array is not over
# Exit codes of jobs that PBS itself has ended.
ENDS: Mapping[int, str] = {
    **dict.fromkeys((-1, -2, -3, -7, -10, -13, -21, -23, -30), "launch_failed"),
    **dict.fromkeys((-4, -5, -6, -14, -20), "node_failure"),  # its daemon, or a sister's
    **dict.fromkeys((-16, -17, -18, -19, -22), "hook"),
    -11: "rerun",
    -12: "checkpointed",
    **dict.fromkeys((-24, -25), "cpu_limit"),
    **dict.fromkeys((-26, -27), "out_of_memory"),
    -28: "cpu_time_limit",
    -29: "time_limit",
}
LIMITS = {"walltime": "time_limit", "cput": "cpu_time_limit", "ncpus": "cpu_limit"}
HOLDS = {"s": "held_by_system", "o": "held_by_operator", "u": "held", "p": "bad_password"}
SIGNALS = 256  # what is added to a signal that ended the script
DELETED = 91  # a substate
FAMILY = "qsub"
JOB_VARIABLE = "LOOM_ENGINE_JOB"  # the job's number, without server and task
# Options of a letter: how each is called here, and what it is for.
LETTERS: Mapping[str, tuple[str, str]] = {
    "queue": ("q", "queue to submit to"),
    "account": ("A", "account that is charged"),
    "project": ("P", "project of the job"),
    "mail-user": ("M", "recipient of mail"),
    "mail-type": ("m", "when to mail: a (abort), b (begin), e (end), j (tasks too), n (nothing)"),
    "begin": ("a", "earliest start: [[[[CC]YY]MM]DD]hhmm[.SS]"),
    "array": ("J", "array of tasks, numbered by PBS_ARRAY_INDEX: 0-9%2"),
}
RESOURCES: Mapping[str, str] = {
    "walltime": "time limit: HH:MM:SS, or seconds",
    "filesystems": "required file systems: home:eagle",
}
CHUNK: Mapping[str, str] = {
    "ncpus": "cores per host, instead of the role's; default: one per rank",
    "ngpus": "GPUs per host, instead of the role's",
    "mem": "memory per host, instead of the role's: 64gb; 0: request none",
    "chunk": "more requirements for each host: system=polaris:switch=3",
}
_EXTRA = {"dependency": ("depend", "start after these jobs: afterok:123")}
_OURS: Mapping[str, str] = {
    **{letter: f"use {name}=.." for name, (letter, _) in LETTERS.items()},
    **dict.fromkeys(("o", "e", "j"), "the job's folder has its output; set its place with job_dir"),
    **dict.fromkeys(
        ("v", "V"), "variables are passed in a private file; add one with -e NAME=VALUE"
    ),
    **dict.fromkeys(("I", "X"), "a job has no terminal; run qsub -I yourself and `loom launch`"),
    **dict.fromkeys(("C", "z", "f"), "torchloom writes the script"),
    "N": "use --name NAME",
    "r": "warn=SECONDS, or retries of a role, make it rerunnable",
}
_LONGEST_NAME = 230  # letters
# What MoM starts first is the shell of -S, and a job ends with it: that is the script itself,
# unless its path has what PBS reads as more than that.
_PLAIN_PATH = r"/[A-Za-z0-9_./+-]+"
# A queue's own limit is known once the job runs; where nothing answers there is no warning.
_ASKED = (
    'limit=$(qstat -f "$PBS_JOBID" 2> /dev/null | awk \'$1 == "Resource_List.walltime" '
    '{ n = split($3, t, ":"); for (i = 1; i <= n; i++) s = s * 60 + t[i] } END { print s + 0 }\')'
)
# What commands print when the server is busy, restarting or out of reach for a moment.
_SILENT = re.compile(r"cannot connect|[Tt]imed out|Connection refused|End of File|[Bb]usy|retry")
_GONE = re.compile(r"Unknown Job Id|Job has finished")
_MOST = 1000  # jobs that were submitted from here and are asked for, the newest
_MOST_OTHERS = 20  # of them that live no more and are asked for one by one
# Rerunning is an operator's right on some servers: there the same script waits for the job's end.
_RERUN = (
    'qrerun "$PBS_JOBID" && exit; [ -z "$PBS_ARRAY_INDEX" ] && cd "$PBS_O_WORKDIR" '
    '&& qsub -W depend=afterany:"$PBS_JOBID" "$0" && qdel "$PBS_JOBID"'
)


Attributes = Mapping[str, Any]


def question(jobs: Iterable[str]) -> list[str]:
    """Return the words that ask for these jobs and their tasks, those that have ended too."""
    return ["qstat", "-x", "-t", "-f", "-F", "json", *jobs]


def number(identifier: str) -> str:
    """Return a job's name without its server's: `12`, or `12[]` for an array."""
    return identifier.strip().partition(".")[0]


def read(printed: str) -> dict[str, EngineJob]:
    """Return the jobs of an answer; an array is one, of its tasks."""
    if not printed.strip():
        return {}
    try:
        shown = json.loads(printed, strict=False).get("Jobs", {})
    except (ValueError, AttributeError) as error:
        raise Failure(f"qstat printed no JSON: {error}; is this PBS Pro 18 or later?") from error
    parts: dict[str, list[EngineJob]] = {}
    wholes: dict[str, Attributes] = {}
    for name, attributes in shown.items():
        mine = number(name)
        whole = re.sub(r"\[\d+\]", "[]", mine)
        if whole == mine and mine.endswith("[]"):
            wholes[whole] = attributes
        else:
            parts.setdefault(whole, []).append(_job(mine, attributes))
    found = {job: joined_parts(job, tasks) for job, tasks in parts.items()}
    return found | {job: _array(job, task, found.get(job)) for job, task in wholes.items()}


def _array(job: str, attributes: Attributes, tasks: EngineJob | None) -> EngineJob:
    """Return an array: the states of its tasks, or its own state where they have none."""
    own = _job(job, attributes)
    if tasks is None or (is_terminal(own.state) and tasks.state is AppState.SUCCEEDED):
        return replace(own, tasks=tasks.tasks if tasks else ())
    return replace(tasks, name=own.name)


def _job(job: str, attributes: Attributes) -> EngineJob:
    letter = str(attributes.get("job_state", ""))
    state, why = STATES.get(letter, (AppState.UNKNOWN, letter.lower()))
    runs = _int(attributes.get("run_count"))
    if letter in OVER:
        state, why = _ended(attributes, letter)
    elif state is AppState.PENDING:
        why = _waits(attributes, letter, why, runs)
    waits_again = letter in ("Q", "H", "W")
    return EngineJob(
        id=job,
        state=state,
        native=letter,
        why=why,
        hosts=_hosts(str(attributes.get("exec_host", ""))),
        restarts=max(0, runs if waits_again else runs - 1),
        exit_code=_exit_code(_int(attributes.get("Exit_status"))),
        name=str(attributes.get("Job_Name", "")),
    )


def _waits(attributes: Attributes, letter: str, why: str, runs: int) -> str:
    """Return why a job does not run, in PBS's own words where it has some."""
    if letter == "H":
        kinds = str(attributes.get("Hold_Types", ""))
        why = next((word for kind, word in HOLDS.items() if kind in kinds), why)
        why = "dependency" if why == "held_by_system" and attributes.get("depend") else why
    if letter in ("Q", "H") and runs:
        why = f"requeued: {why}" if why else "requeued"
    comment = str(attributes.get("comment", ""))
    reason = re.fullmatch(r"(?:Not Running: |(?=[Jj]ob held))(.*)", comment, re.DOTALL)
    if reason and letter in ("Q", "H"):
        return f"{why}: {reason[1]}" if why else reason[1]
    return why


def _ended(attributes: Attributes, letter: str) -> tuple[AppState, str]:
    """Return how a job ended: PBS's own doing first, then what the script exited with."""
    comment, status = str(attributes.get("comment", "")), attributes.get("Exit_status")
    deleted = attributes.get("substate") == DELETED
    if over := re.search(r"exceeded resource (\w+)", comment):
        return AppState.FAILED, LIMITS.get(over[1], "out_of_memory")
    if isinstance(status, int) and status < 0:
        return AppState.FAILED, ENDS.get(status, "launch_failed")
    if "failed attempts" in comment:
        return AppState.FAILED, "launch_failed"
    if deleted or (status is None and "exec_host" not in attributes and letter == "F"):
        is_vain = "depend" in comment.lower()
        return AppState.CANCELLED, "dependency_failed" if is_vain else "cancelled"
    if status is None:
        return (AppState.FAILED, "node_failure") if letter == "F" else (AppState.SUCCEEDED, "")
    if status == 0:
        return AppState.SUCCEEDED, ""
    if _int(status) < SIGNALS:
        return AppState.FAILED, ""
    return AppState.FAILED, "time_limit" if _has_used_up(attributes) else f"signal_{status % 256}"


def _has_used_up(attributes: Attributes) -> bool:
    """Tell whether its time was over: some releases only end such a job by a signal."""
    used = (attributes.get("resources_used") or {}).get("walltime")
    limit = (attributes.get("Resource_List") or {}).get("walltime")
    return bool(used and limit) and seconds(str(used)) >= seconds(str(limit))


def seconds(text: str) -> int:
    """Return `[[HH:]MM:]SS` in seconds; what is no duration has none."""
    if not re.fullmatch(r"(\d+:){0,2}\d+(\.\d+)?", text):
        return 0
    total = 0
    for part in text.partition(".")[0].split(":"):
        total = total * 60 + int(part)
    return total


def _hosts(places: str) -> tuple[str, ...]:
    """Return each host of `n1/0*2+n2/0` once."""
    names = (place.strip("()").partition("/")[0] for place in places.split("+"))
    return tuple(dict.fromkeys(filter(None, names)))


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _exit_code(status: int) -> int:
    """Return what a shell would see."""
    return 128 + status % SIGNALS if status >= SIGNALS else max(status, 0)


def add_options(opts: runopts) -> None:
    """Declare what qsub takes."""
    for name, (_, words) in LETTERS.items():
        opts.add(name, type_=str, help=words)
    for name, words in {**RESOURCES, **CHUNK}.items():
        opts.add(name, type_=str, help=words)
    for name, (_, words) in _EXTRA.items():
        opts.add(name, type_=str, help=words)
    opts.add("priority", type_=int, help="priority among your jobs: -1024 to 1023")
    opts.add("select", type_=str, help="all hosts in PBS's own syntax: 2:ncpus=8")
    opts.add(
        "place", type_=str, default="scatter", help="placement of the hosts; each replica has one"
    )
    opts.add("exclusive", type_=bool, default=False, help="do not share hosts with other jobs")
    opts.add(f"{FAMILY}.*", type_=str, help="any other option of qsub: qsub.l=software=ansys")


def qsub_script(app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, python: str, cwd: str) -> str:
    """Return the script; submitting it by hand gives the same job."""
    words = list(_directives(app, cfg, folder))
    before = list(_before(cfg))
    return script(words, folder, cwd, python, lines(cfg, "setup"), before, "/bin/bash -l")


def name_of(app: AppDef) -> str:
    """Return an app's name in the letters that PBS has for one."""
    return re.sub(r"[^A-Za-z0-9_+.-]", "_", app.name)[:_LONGEST_NAME] or "_"


def _directives(app: AppDef, cfg: Mapping[str, CfgVal], folder: Path) -> Iterator[str]:
    others = native(cfg, FAMILY, _OURS)
    yield _line("N", name_of(app))
    yield _line("j", "oe")
    yield _line("o", _output(folder, bool(text(cfg, "array"))))
    if "k" not in others:
        yield _line("k", "doe")  # written in place, not brought there at the end
    for name, (letter, _) in LETTERS.items():
        if value := text(cfg, name):
            yield _line(letter, checked(name, value))
    if text(cfg, "priority"):
        yield _line("p", text(cfg, "priority"))
    for name in RESOURCES:
        if value := text(cfg, name):
            yield _line("l", f"{name}={_resource(name, value)}")
    yield _line("l", f"select={_select(app, cfg)}")
    if "S" not in others and re.fullmatch(_PLAIN_PATH, path := str(folder / SCRIPT)):
        yield _line("S", path)
    place = _resource("place", text(cfg, "place"))
    yield _line("l", f"place={place}{':excl' if cfg.get('exclusive') else ''}")
    yield from _endings(app, cfg)
    for letter, value in others.items():
        yield from _native(letter, value)


def _endings(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """What must be over before, and what follows when a host fails or time runs out."""
    for name, (attribute, _) in _EXTRA.items():
        if value := text(cfg, name):
            yield _line("W", f"{attribute}={_resource(name, value)}")
    requeues = count(cfg, "warn") or any(role.max_retries for role in app.roles)
    yield _line("r", "y" if requeues or text(cfg, "array") else "n")  # PBS reruns arrays always
    if survives(cfg) or count(cfg, "spares"):
        yield _line("W", "tolerate_node_failures=all")


def _select(app: AppDef, cfg: Mapping[str, CfgVal]) -> str:
    """Return a chunk a replica; PBS gives all of them or none."""
    if chosen := text(cfg, "select"):
        return _resource("select", chosen)
    return "+".join(_chunk(block, cfg) for block in blocks(app, cfg))


def _chunk(block: Block, cfg: Mapping[str, CfgVal]) -> str:
    needs = block.resource
    by_ranks = block.ranks if needs.cpu <= 0 and block.ranks > 1 and not text(cfg, "ncpus") else 0
    roles = {"ncpus": by_ranks or needs.cpu, "mpiprocs": by_ranks}
    roles |= {"ngpus": needs.gpu, "mem": needs.memMB}
    parts = [str(block.most)]
    for name, many in roles.items():
        own = f"{many}mb" if name == "mem" else str(many)
        value = _part(name, text(cfg, name)) or (own if many > 0 else "")
        if value and value != "0":
            parts.append(f"{name}={value}")
    extra = _resource("chunk", text(cfg, "chunk")) if text(cfg, "chunk") else ""
    return ":".join([*parts, *([extra] if extra else [])])


def _before(cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """Set which job it is, and signal the script before its time runs out: PBS does not."""
    yield f"export {JOB_VARIABLE}=${{PBS_JOBID%%.*}}"
    yield f'[ -z "$PBS_ARRAY_INDEX" ] || {JOB_VARIABLE}="${{{JOB_VARIABLE}%%[*}}[]"'
    limit = seconds(text(cfg, "walltime"))
    if text(cfg, "walltime") and not limit:
        raise BadDirective("walltime", text(cfg, "walltime"), "is not a time: HH:MM:SS, or seconds")
    yield f"limit={limit}" if limit else _ASKED
    yield 'if [ "$limit" -gt 0 ]; then'
    yield "  export LOOM_DEADLINE=$(( $(date +%s) + limit ))"
    warn = count(cfg, "warn")
    if warn:
        yield f"  warn=$(( limit > {2 * warn} ? {warn} : limit / 2 ))"
        yield "  { sleep $(( limit - warn )); kill -USR1 $$; } < /dev/null &"
    yield "fi"


def _native(letter: str, value: str) -> Iterator[str]:
    """Yield any option; `true` is one without a value, `false` none at all."""
    if len(letter) != 1:
        raise UserError(f"{FAMILY}.{letter}: qsub's options are letters; write {FAMILY}.l=NAME=..")
    if value.lower() != "false":
        yield f"#PBS -{letter}" if value.lower() == "true" else _line(letter, value)


def _resource(name: str, value: str) -> str:
    """Return a value that stays one: a comma or a blank would begin the next."""
    if re.search(r"[\s,'\"\\]", checked(name, value)) and name != "dependency":
        raise BadDirective(name, value, "has a comma, blank or quote, which ends a value for PBS")
    return value


def _part(name: str, value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9.]+", value):
        raise BadDirective(name, value, "is not an amount")
    return value


def _output(folder: Path, is_array: bool) -> str:
    path = str(folder / OUTPUT)
    if ":" in path or "^" in path:
        raise BadDirective("job_dir", path, "has a : or ^, which PBS reads as more than itself")
    return f"{path}.^array_index^" if is_array else path


def _line(letter: str, value: str) -> str:
    return f"#PBS -{letter} {shlex.quote(checked(letter, value))}"


class PbsScheduler(BatchScheduler):
    """One job of as many chunks as there are replicas, each on a host of its own."""

    def __init__(
        self, backend: str, session_name: str, commands: EngineCommands | None = None
    ) -> None:
        super().__init__(backend, session_name, commands)
        self._ended: dict[str, EngineJob] = {}  # what has ended stays as it is

    def _run_opts(self) -> runopts:
        opts = runopts()
        add_options(opts)
        add_common(opts)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchRequest]:
        info = super()._submit_dryrun(app, cfg)
        notes = (*info.request.notes, *_notes(app))
        request = replace(info.request, notes=notes, parcel=_rerun(info.request))
        return AppDryRunInfo(request, str)

    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        return qsub_script(app, cfg, folder, self._python(cfg), cwd)

    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        return ("qsub", str(folder / SCRIPT))

    def _job_of(self, printed: str) -> str:
        return number(printed.strip().splitlines()[-1])

    def _parcel(self, parcel: Parcel) -> Parcel:
        return replace(parcel, job_variable=JOB_VARIABLE, task_variable="PBS_ARRAY_INDEX")

    def _ask_all(self) -> Answer:
        """Ask which jobs the user has, then for those and for what was submitted from here."""
        mine = self._commands.ask(["qselect", "-u", settings.user_name()], _is_silence)
        active = list(map(number, mine.split()))
        known = [entry.job for entry in self._index.all()[:_MOST]]
        jobs = list(dict.fromkeys([*active, *known]))
        if not jobs:
            return {}
        answered, gone = self._asked([job for job in jobs if job not in self._ended])
        found = {**self._ended, **answered}
        for job in _left_out(jobs, {*found, *gone}, active):
            found |= self._asked([job])[0]
        self._ended = {
            job: answered for job, answered in found.items() if is_terminal(answered.state)
        }
        return {job: answered for job, answered in found.items() if job in jobs}

    def _asked(self, jobs: Sequence[str]) -> tuple[Answer, set[str]]:
        """Ask for some jobs; return the answer, and which of them the server does not know.

        OpenPBS's main line prints the first alone, without an error for the others.
        """
        if not jobs:
            return {}, set()
        try:
            return read(self._commands.ask(question(jobs), _is_silence)), set()
        except EngineRefused as refused:  # the history of these jobs is over
            if all(_GONE.search(line) for line in refused.reason.split("; ")):
                named = set(map(number, re.split(r"[\s;,]+", refused.reason)))
                return read(refused.printed), named.intersection(jobs)
            raise

    def _cancel_words(self, job: str) -> tuple[str, ...]:
        return ("qdel", job)

    def _polite_words(self, job: str) -> tuple[str, ...]:
        """Signal the job's session: SIGTERM would end a shell above the script, and with it the
        job on all hosts; this one ends none but our launch."""
        return ("qsig", "-s", "WINCH", job)

    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        return ("ssh", *SSH_OPTIONS, "--", host)

    def inside(self, app_id: str, words: Sequence[str]) -> tuple[str, ...] | None:
        """PBS admits only tasks into a job; its hosts admit the job's owner by ssh, which passes
        all words to a shell as one."""
        found = super().inside(app_id, words)
        before = len(self._inside_words(app_id, ""))
        return found and (*found[:before], shlex.join(found[before:]))


def _left_out(jobs: Sequence[str], found: Collection[str], active: Sequence[str]) -> list[str]:
    """Return which jobs an answer lacks: all that live, and the newest of the others."""
    missing = [job for job in jobs if job not in found]
    others = [job for job in missing if job not in active]
    return [job for job in missing if job in active or job in others[:_MOST_OTHERS]]


def _rerun(request: BatchRequest) -> Parcel:
    return replace(request.parcel, requeue=("/bin/sh", "-c", _RERUN, str(request.folder / SCRIPT)))


def _notes(app: AppDef) -> list[str]:
    """Return what PBS cannot do as it was requested."""
    notes = []
    if name_of(app) != app.name:
        notes.append(f"PBS calls the job {name_of(app)}: its names have letters, digits, . _ + -")
    notes += [
        f"role {role.name}: PBS gives all {role.num_replicas} hosts or none; min_replicas counts "
        "once it runs"
        for role in app.roles
        if role.min_replicas is not None and role.min_replicas < role.num_replicas
    ]
    return notes


def _is_silence(printed: str) -> bool:
    return bool(_SILENT.search(printed))


def create_scheduler(session_name: str, **kwargs: Any) -> PbsScheduler:
    """Return PBS as a scheduler; nothing is asked of it before it must be."""
    return PbsScheduler("pbs", session_name)
