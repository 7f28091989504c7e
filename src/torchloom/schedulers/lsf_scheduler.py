"""LSF: `bsub` in, `bjobs` out. One job an app, our agents by `blaunch` in it."""

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import Failure, UserError, shorten
from torchloom.launch.assembly.launchers import SSH_OPTIONS
from torchloom.launch.records import catalog
from torchloom.launch.records.parcel import Parcel
from torchloom.schedulers.batch.commands import EngineRefused
from torchloom.schedulers.batch.plan import Block, add_common, blocks, count, lines, native, text
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.schedulers.batch.script import OUTPUT, BadDirective, BatchRequest, checked, script
from torchloom.schedulers.batch.status import Answer, EngineJob, joined_parts
from torchloom.specs.api import AppDef, AppDryRunInfo, AppState, CfgVal, runopts

FAMILY = "bsub"
SHM_SIZE = "64m"  # TorchX's default, that of a container
ARRAY = r"\d*[1-9]\d*(-\d+(:\d+)?)?(,\d*[1-9]\d*(-\d+(:\d+)?)?)*(%\d*[1-9]\d*)?"
# Options by name: bsub's own letters, where the value is theirs as it is, and what they are for.
NAMED: Mapping[str, tuple[str, str]] = {
    "lsf_queue": ("q", "queue to submit to"),
    "project": ("P", "project that is charged"),
    "walltime": ("", "time limit: minutes, H:MM or H:MM:SS"),
    "resources": ("R", "more requirements for hosts: select[type==any]"),
    "gpu": ("", "GPUs per host, instead of the role's: 4, num=4:gmodel=A100"),
    "hosts": ("m", "hosts or host groups to use, separated by spaces"),
    "user_group": ("G", "user group of the job"),
    "app_profile": ("app", "application profile"),
    "sla": ("sla", "service class"),
    "job_group": ("g", "job group"),
    "reservation": ("U", "advance reservation to use"),
    "dependency": ("w", "start after these jobs: done(123) && ended(124)"),
    "begin": ("b", "earliest start: 16:00"),
    "deadline": ("t", "end the job at: 20:00"),
    "priority": ("sp", "priority among your jobs, from 1"),
    "description": ("Jd", "description kept with the job"),
    "mail-user": ("u", "recipient of mail"),
    "array": ("", "array of tasks, numbered by LSB_JOBINDEX: 1-10%2"),
}
_HOSTS = "each replica has a host; use -j, -n and --ppn"
_FOLDER = "the job's folder has its output; set its place with job_dir"
_SCRIPT = "torchloom writes the script"
OURS: Mapping[str, str] = {
    **dict.fromkeys(("o", "oo", "e", "eo", "outdir"), _FOLDER),
    **dict.fromkeys(("i", "is"), "ranks of a job have no standard input"),
    **dict.fromkeys(("I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "K", "tty"), "use loom logs -f"),
    **dict.fromkeys(("n", "nnodes", "hostfile"), _HOSTS),
    **dict.fromkeys(("pack", "json", "yaml", "jsdl", "Zs"), _SCRIPT),
    **dict.fromkeys(("wa", "wt"), "use warn=SECONDS"),
    **dict.fromkeys(("r", "rn", "Q"), "warn, and retries of a role, decide what runs again"),
    "env": "variables are passed in a private file; add one with -e NAME=VALUE",
    "cwd": "use cwd=FOLDER",
    "J": "use --name NAME, and array=1-10",
    "W": "use walltime=H:MM",
    "gpu": "use gpu=..",
}
# What AppState it is, and the reason that distinguishes it from others of that state.
STATES: Mapping[str, tuple[AppState, str]] = {
    "PEND": (AppState.PENDING, ""),
    "PSUSP": (AppState.PENDING, "held"),
    "PROV": (AppState.PENDING, "provisioning"),
    "WAIT": (AppState.PENDING, "waiting_in_chunk"),
    "RUN": (AppState.RUNNING, ""),
    "USUSP": (AppState.PENDING, "suspended"),
    "SSUSP": (AppState.PENDING, "suspended_by_system"),  # load, a window, or preemption
    "DONE": (AppState.SUCCEEDED, ""),
    "EXIT": (AppState.FAILED, ""),
    "UNKWN": (AppState.UNKNOWN, "host_unreachable"),  # it may well run on
    "ZOMBI": (AppState.FAILED, "zombie"),  # killed, or run again, while its host was out of reach
}
# Why LSF ended a job that is EXIT.
REASONS: Mapping[str, tuple[AppState, str]] = {
    "TERM_OWNER": (AppState.CANCELLED, "cancelled"),
    "TERM_FORCE_OWNER": (AppState.CANCELLED, "cancelled_by_force"),
    "TERM_ADMIN": (AppState.CANCELLED, "cancelled_by_admin"),
    "TERM_FORCE_ADMIN": (AppState.CANCELLED, "cancelled_by_force_of_admin"),
    "TERM_BUCKET_KILL": (AppState.CANCELLED, "cancelled_in_bulk"),
    "TERM_REQUEUE_OWNER": (AppState.PENDING, "requeued"),
    "TERM_REQUEUE_ADMIN": (AppState.PENDING, "requeued_by_admin"),
    "TERM_MC_RECALL": (AppState.PENDING, "recalled"),
    "TERM_RUNLIMIT": (AppState.FAILED, "time_limit"),
    "TERM_DEADLINE": (AppState.FAILED, "deadline"),
    "TERM_WINDOW": (AppState.FAILED, "run_window_closed"),
    "TERM_PREEMPT": (AppState.FAILED, "preempted"),
    "TERM_LOAD": (AppState.FAILED, "load_threshold"),
    "TERM_ZOMBIE": (AppState.FAILED, "node_failure"),
    "TERM_RMS": (AppState.FAILED, "resource_manager_failure"),
    "TERM_MEMLIMIT": (AppState.FAILED, "out_of_memory"),
    "TERM_SWAP": (AppState.FAILED, "swap_limit"),
    "TERM_CPULIMIT": (AppState.FAILED, "cpu_limit"),
    "TERM_PROCESSLIMIT": (AppState.FAILED, "process_limit"),
    "TERM_THREADLIMIT": (AppState.FAILED, "thread_limit"),
    "TERM_PRE_EXEC_FAIL": (AppState.FAILED, "pre_exec_failed"),
    "TERM_CWD_NOTEXIST": (AppState.FAILED, "no_working_directory"),
    "TERM_CHKPNT": (AppState.FAILED, "ended_after_checkpoint"),
    "TERM_EXTERNAL_SIGNAL": (AppState.FAILED, "external_signal"),
    "TERM_ORPHAN_SYSTEM": (AppState.FAILED, "dependency_in_vain"),
    "TERM_REMOVE_HUNG_JOB": (AppState.FAILED, "hung_and_removed"),
    "TERM_DATA": (AppState.FAILED, "data_staging_failed"),
    "TERM_CSM_ALLOC": (AppState.FAILED, "allocation_failed"),
    "TERM_KUBE": (AppState.FAILED, "kubernetes_failure"),
    "TERM_OTHER": (AppState.FAILED, "ended_by_lsf"),
    "TERM_UNKNOWN": (AppState.FAILED, ""),  # the run may know more
}
FIELDS = (
    *("jobid", "jobindex", "stat", "exit_code", "exit_reason", "exec_host", "pend_reason"),
    "job_name",
)
_NOTHING = ("", "-")
REPORT = "report.log"  # what LSF reports about each run of the job, when it has ended
JOB, TASK = "LOOM_LSF_JOB", "LOOM_LSF_TASK"  # `12` or `12[3]`, and the 3
WARNING = "URG"  # every process of the job gets it: others must ignore it
_LONGEST_NAME = 1000
# LSF keeps what a job prints to itself until it ends; the job's folder has it at once.
_BEFORE = (
    f'unset {TASK}; export {JOB}="$LSB_JOBID"',
    f'[ "${{LSB_JOBINDEX:-0}}" = 0 ] || export {TASK}="$LSB_JOBINDEX"',
    f'[ -z "${TASK}" ] || {JOB}="$LSB_JOBID[${TASK}]"',
    f'exec >> "$folder/{OUTPUT}${{{TASK}:+.${TASK}}}" 2>&1',
)
# What commands print when the daemons are busy, restarting or out of reach for a moment.
_SILENT = re.compile(
    r"LIM is down|not responding|try(ing)? again|[Tt]ime(d)? ?out|Connection refused|"
    r"[Cc]annot connect|is down"
)
_NONE = re.compile(r"No (unfinished |matching )?job found")
_QUIET = "BSUB_QUIET"


def add_options(opts: runopts) -> None:
    """Declare what bsub takes."""
    for name, (_, words) in NAMED.items():
        opts.add(name, type_=str, help=words)
    opts.add("jobdir", type_=str, help="TorchX's name for job_dir")
    opts.add(
        "container_workdir", type_=str, help="TorchX's option; refused: there are no containers"
    )
    opts.add("host_network", type_=bool, default=False, help="TorchX's option; always on")
    opts.add(
        "shm_size", type_=str, default=SHM_SIZE, help="TorchX's option; the host's /dev/shm is used"
    )
    opts.add("exclusive", type_=bool, default=False, help="do not share hosts with other jobs")
    opts.add("cores", type_=int, help="slots per host, instead of the role's")
    opts.add("mem", type_=str, help="memory per host, instead of the role's: 64GB")
    opts.add("nomem", type_=bool, default=False, help="request no memory: before LSF 10.1.0.9")
    opts.add(f"{FAMILY}.*", type_=str, help="any other option of bsub: bsub.q=gpu, bsub.B=true")


def refuse_containers(cfg: Mapping[str, CfgVal]) -> None:
    """Refuse what only a container could honour."""
    if text(cfg, "container_workdir"):
        raise UserError("container_workdir: lsf starts ranks without a container; use cwd=FOLDER")
    if text(cfg, "shm_size") not in ("", SHM_SIZE):
        raise UserError(
            "shm_size: lsf starts ranks without a container; the host's /dev/shm counts"
        )


def with_folder(cfg: Mapping[str, CfgVal]) -> Mapping[str, CfgVal]:
    """Return the options with the job's folder under one name."""
    if not text(cfg, "jobdir"):
        return cfg
    if text(cfg, "job_dir"):
        raise UserError("jobdir and job_dir are one; name one of them")
    return {**cfg, "job_dir": cfg["jobdir"]}


class BadAnswer(Failure):
    """`bjobs` printed something that is not what it was asked for."""

    code = "bad_answer"

    def __init__(self, printed: str) -> None:
        begin = printed[:80]
        super().__init__(f"bjobs -json printed no JSON but {begin!r}; LSF 10.1 or later is needed")


def question(user: str) -> list[str]:
    """Return the words that ask for all jobs of a user, those that have just ended too."""
    return ["bjobs", "-a", "-X", "-json", "-u", user, "-o", " ".join(FIELDS)]


def read(printed: str) -> dict[str, EngineJob]:
    """Return the jobs of an answer; an array is one, of its elements."""
    parts: dict[str, list[EngineJob]] = {}
    for record in _records(printed):
        number = _text(record, "JOBID").partition("[")[0]
        if number.isdecimal() and "ERROR" not in record:
            parts.setdefault(number, []).append(_job(number, record))
    return {number: _joined(number, found) for number, found in parts.items()}


def after_a_rerun(job: EngineJob) -> EngineJob:
    """Return a job that has run before: when it waits, it was queued again."""
    if job.state is not AppState.PENDING or job.native != "PEND" or job.why.startswith("requeued"):
        return job
    return replace(job, why=f"requeued: {job.why}" if job.why else "requeued")


def _records(printed: str) -> list[dict[str, Any]]:
    if not printed.strip():  # where there is no job, some releases print that on stderr alone
        return []
    try:
        found: list[dict[str, Any]] = json.loads(printed, strict=False)["RECORDS"]
    except (ValueError, KeyError, TypeError):
        raise BadAnswer(printed.strip()) from None
    return found


def _job(number: str, record: Mapping[str, Any]) -> EngineJob:
    native = _text(record, "STAT").upper()
    state, why = STATES.get(native, (AppState.UNKNOWN, native.lower()))
    if native == "EXIT":
        reason = _text(record, "EXIT_REASON").partition(":")[0].strip()
        state, why = REASONS.get(reason, (state, reason.removeprefix("TERM_").lower()))
    if state is AppState.PENDING and (pending := _text(record, "PEND_REASON")):
        why = f"{why}: {pending}" if why else pending
    index = _int(_text(record, "JOBINDEX"))
    return EngineJob(
        id=f"{number}[{index}]" if index else number,
        state=state,
        native=native,
        why=why,
        hosts=_hosts(_text(record, "EXEC_HOST")),
        exit_code=_int(_text(record, "EXIT_CODE")),
        name=_text(record, "JOB_NAME"),
    )


def _joined(number: str, parts: list[EngineJob]) -> EngineJob:
    """Return a job; one of elements has their name without an index."""
    job = joined_parts(number, parts)
    return replace(job, name=job.name.rpartition("[")[0]) if job.tasks else job


def _hosts(places: str) -> tuple[str, ...]:
    """Return the hosts of `4*hostA:4*hostB`, each once."""
    if places in _NOTHING:
        return ()
    return tuple(dict.fromkeys(word.rpartition("*")[2] for word in places.split(":") if word))


def _text(record: Mapping[str, Any], name: str) -> str:
    value = " ".join(str(record.get(name) or "").split())
    return "" if value in _NOTHING else value


def _int(word: str) -> int:
    return int(word) if word.isascii() and word.isdecimal() else 0


def bsub_script(app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, python: str, cwd: str) -> str:
    """Return the script; submitting it by hand (`bsub < job.sh`) gives the same job."""
    refuse_containers(cfg)
    for name, place in (("cwd", cwd), ("python", python)):
        checked(name, place)  # a directive counts wherever a line begins with one
    words = list(_directives(app, cfg, folder))
    return script(words, folder, cwd, python, lines(cfg, "setup"), _BEFORE)


def notes(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """Yield what the app asks for and LSF has no option for."""
    if (name := _clean(app.name)) != app.name:
        yield f"LSF knows it as {shorten(name)!r}: {shorten(app.name)!r} is not a valid name there"
    needs = {block.resource.cpu: block.roles for block in blocks(app, cfg)}
    if len(blocks(app, cfg)) > 1:
        parted = ", ".join("+".join(roles) for roles in needs.values())
        yield f"roles {parted} need different hosts; each host is as large as the largest need"
    if count(cfg, "warn") and text(cfg, "walltime") and not _warning(cfg):
        yield "walltime: a minute leaves no room for a warning before it"
    if cfg.get("host_network"):
        yield "host_network: ranks are on their hosts' network in any case"


def _directives(app: AppDef, cfg: Mapping[str, CfgVal], folder: Path) -> Iterator[str]:
    yield _line("J", _name(app, text(cfg, "array")))
    yield _line("o", _report(folder, bool(text(cfg, "array"))), "job_dir")
    yield _line("env", "none")
    yield from (_line(flag, value, name) for name, flag, value in _named(cfg))
    yield from _endings(app, cfg)
    yield from _host_lines(app, cfg)
    for name, value in native(cfg, FAMILY, OURS).items():
        if value.lower() != "false":  # `true` is one without a value
            yield _line(name) if value.lower() == "true" else _line(name, value)


def _named(cfg: Mapping[str, CfgVal]) -> Iterator[tuple[str, str, str]]:
    for name, (flag, _) in NAMED.items():
        if flag and (value := text(cfg, name)):
            yield name, flag, value


def _endings(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """What follows when a host fails, and when time runs out."""
    if text(cfg, "walltime"):
        minutes, of_host = _minutes(text(cfg, "walltime"))
        yield _line("W", f"{minutes // 60}:{minutes % 60:02d}{of_host}", "walltime")
    warning = _warning(cfg)
    if warning:
        yield _line("wt", str(warning))
        yield _line("wa", WARNING)
    requeues = warning or any(role.max_retries for role in app.roles)
    yield _line("r" if requeues else "rn")


def _warning(cfg: Mapping[str, CfgVal]) -> int:
    """Return how many minutes before the limit a warning comes: later than the start, or not."""
    asked = -(-count(cfg, "warn") // 60)
    limit = _minutes(text(cfg, "walltime"))[0] if text(cfg, "walltime") else asked + 1
    return min(asked, limit - 1)


def _minutes(given: str) -> tuple[int, str]:
    """Return minutes, H:MM or H:MM:SS as minutes, and the host whose speed they refer to."""
    words, slash, host = given.partition("/")
    found = re.fullmatch(r"(\d+)|(\d+):([0-5]?\d)(?::([0-5]\d))?", words)
    if not found:
        raise UserError(
            f"walltime: {shorten(given)!r} is not a time; write minutes, H:MM or H:MM:SS"
        )
    minutes = int(found[1] or 0) + int(found[2] or 0) * 60 + int(found[3] or 0)
    minutes += 1 if int(found[4] or 0) else 0
    if not minutes:
        raise UserError("walltime: expected a minute or more")
    return minutes, slash + host


def _host_lines(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """Yield the request for hosts: slots on each replica's host; all hosts are alike."""
    found = blocks(app, cfg)
    least, most = (sum(getattr(block, end) for block in found) for end in ("least", "most"))
    needs = [block.resource for block in found]
    slots = _number(cfg, "cores") or max(1, *map(_cores, found))
    number = f"{least * slots},{most * slots}" if least < most else str(most * slots)
    yield _line("n", number)
    yield _line("R", "span[hosts=1]" if most == 1 else f"span[ptile={slots}]")
    if cfg.get("exclusive"):
        yield _line("x")
    gpus = text(cfg, "gpu") or str(max(0, *(need.gpu for need in needs)))
    if gpus != "0":
        yield _line("gpu", f"num={gpus}:j_exclusive=yes" if gpus.isdecimal() else gpus)
    megabytes = max(0, *(need.memMB for need in needs))
    memory = text(cfg, "mem") or (f"{megabytes}MB" if megabytes else "")
    if memory and not cfg.get("nomem"):
        yield _line("R", f"rusage[mem={memory}/host]", "mem")


def _cores(block: Block) -> int:
    """Return the cores of a host: as its role has them, else one for each rank."""
    return block.resource.cpu if block.resource.cpu > 0 else block.ranks


def _number(cfg: Mapping[str, CfgVal], name: str) -> int:
    value = cfg.get(name)
    if value is not None and (not isinstance(value, int) or value < 1):
        raise UserError(f"{name}: expected a number from 1, got {value!r}")
    return value if isinstance(value, int) else 0


def _name(app: AppDef, array: str) -> str:
    if not array:
        return _clean(app.name)
    if not re.fullmatch(ARRAY, array):
        raise UserError(f"array: {shorten(array)!r} is none; write 1-9, 1,4,7 or 1-100%8, from 1")
    indices, percent, at_once = array.partition("%")
    return f"{_clean(app.name)}[{indices}]{percent}{at_once}"


def _clean(name: str) -> str:
    """Return a name that can be no array, no pattern, no path and no end of a quoted word."""
    return re.sub(r"[^\w .,:+=@-]", "_", name)[:_LONGEST_NAME].strip() or "_"


def _report(folder: Path, is_array: bool) -> str:
    path = str(folder / REPORT)
    if "%" in path:
        raise BadDirective("job_dir", path, "has a %, which LSF reads as more than itself")
    return f"{path}.%I" if is_array else path


def _line(flag: str, value: str | None = None, option: str = "") -> str:
    """Return a directive; a quoted word ends at the next quote of its kind, nothing escapes one."""
    if value is None:
        return f"#BSUB -{flag}"
    option = option or f"{FAMILY}.{flag}"
    if re.fullmatch(r"[A-Za-z0-9./_:@,%+=-]+", checked(option, value)):
        return f"#BSUB -{flag} {value}"
    if value.startswith("#"):
        raise BadDirective(option, value, "begins with a #, which ends a directive of LSF")
    mark = next((mark for mark in ('"', "'") if mark not in value), "")
    if not mark:
        raise BadDirective(option, value, "has both kinds of quotes; a directive carries one")
    return f"#BSUB -{flag} {mark}{value}{mark}"


class LsfScheduler(BatchScheduler):
    """One job over hosts that are alike, a replica on each."""

    reads_script = True  # directives count only in a script that comes by stdin

    def _run_opts(self) -> runopts:
        opts = runopts()
        add_options(opts)
        add_common(opts)
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[BatchRequest]:
        info = super()._submit_dryrun(app, with_folder(cfg))
        more = (*info.request.notes, *notes(app, cfg))
        info.request = replace(info.request, notes=more)
        return info

    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        return bsub_script(app, cfg, folder, self._python(cfg), cwd)

    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        return ("bsub",)

    def _ready(self) -> None:
        super()._ready()
        if _QUIET in settings.environment():
            raise UserError(f"{_QUIET} keeps bsub from printing the job's number; unset it")

    def _job_of(self, printed: str) -> str:
        found = re.search(r"Job <(\d+)> is submitted", printed)
        if not found:
            raise Failure(f"bsub printed no job number, but {shorten(printed)!r}")
        return found[1]

    def _parcel(self, parcel: Parcel) -> Parcel:
        return replace(parcel, job_variable=JOB, task_variable=TASK, requeue=("brequeue",))

    def _ask_all(self) -> Answer:
        jobs = read(self._asked())
        waiting = [job for job in jobs.values() if job.state is AppState.PENDING]
        again = {job.id: after_a_rerun(job) for job in waiting if self._has_lived(job.id)}
        return {**jobs, **again}

    def _asked(self) -> str:
        words = question(settings.user_name())
        try:
            return self._commands.ask(words, lambda printed: bool(_SILENT.search(printed)))
        except EngineRefused as error:
            if _NONE.search(error.reason):
                return ""
            raise

    def _has_lived(self, job: str) -> bool:
        """Tell whether a job has run before: LSF forgets that when it is queued again."""
        entry = self._index.get(job)
        return entry is not None and catalog.record(entry.run_id) is not None

    def _cancel_words(self, job: str) -> tuple[str, ...]:
        return ("bkill", job)

    def _polite_words(self, job: str) -> tuple[str, ...]:
        """A signal comes to every process of a job; this one ends none but our launch."""
        return ("bkill", "-s", "WINCH", job)

    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        """LSF starts nothing in a running job from outside it; its hosts are reached by ssh."""
        return ("ssh", *SSH_OPTIONS, "--", host)

    def inside(self, app_id: str, words: Sequence[str]) -> tuple[str, ...] | None:
        """Return what runs a command on the job's first host; ssh has a shell read its words."""
        found = super().inside(app_id, words)
        if found is None:
            return None
        ahead = len(self._inside_words(app_id, ""))
        return (*found[:ahead], shlex.join(found[ahead:]))


def create_scheduler(session_name: str, **kwargs: Any) -> LsfScheduler:
    """Return LSF as a scheduler; nothing is asked of it before it must be."""
    return LsfScheduler("lsf", session_name)
