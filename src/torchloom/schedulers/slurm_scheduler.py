"""Slurm: `sbatch` in, `squeue` out. One job an app, our agents by `srun` in it."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom import settings
from torchloom.errors import UserError
from torchloom.launch.hosts.host_lists import BadNodelist, expand
from torchloom.launch.records.parcel import Parcel
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
from torchloom.schedulers.batch.script import OUTPUT, SCRIPT, BadDirective, checked, script
from torchloom.schedulers.batch.status import Answer, EngineJob, joined_parts
from torchloom.specs.api import AppDef, AppState, CfgVal, runopts

# What AppState it is, and the reason that distinguishes it from others of that state.
STATES: Mapping[str, tuple[AppState, str]] = {
    "PENDING": (AppState.PENDING, ""),
    "CONFIGURING": (AppState.PENDING, "configuring"),
    "REQUEUED": (AppState.PENDING, "requeued"),
    "REQUEUE_FED": (AppState.PENDING, "requeued"),
    "REQUEUE_HOLD": (AppState.PENDING, "requeued_held"),
    "SPECIAL_EXIT": (AppState.PENDING, "requeued_held"),
    "RESV_DEL_HOLD": (AppState.PENDING, "reservation_deleted"),
    "SUSPENDED": (AppState.PENDING, "suspended"),
    "STOPPED": (AppState.PENDING, "stopped"),
    "RUNNING": (AppState.RUNNING, ""),
    "RESIZING": (AppState.RUNNING, "resizing"),
    "SIGNALING": (AppState.RUNNING, ""),
    "STAGE_OUT": (AppState.RUNNING, "staging_out"),
    "COMPLETING": (AppState.RUNNING, "completing"),  # it still holds its nodes
    "UPDATE_DB": (AppState.RUNNING, ""),
    "POWER_UP_NODE": (AppState.PENDING, "configuring"),
    "COMPLETED": (AppState.SUCCEEDED, ""),
    "CANCELLED": (AppState.CANCELLED, "cancelled"),
    "REVOKED": (AppState.CANCELLED, "revoked"),
    "FAILED": (AppState.FAILED, ""),
    "TIMEOUT": (AppState.FAILED, "time_limit"),
    "DEADLINE": (AppState.FAILED, "deadline"),
    "PREEMPTED": (AppState.FAILED, "preempted"),
    "NODE_FAIL": (AppState.FAILED, "node_failure"),
    "BOOT_FAIL": (AppState.FAILED, "boot_failure"),
    "OUT_OF_MEMORY": (AppState.FAILED, "out_of_memory"),
    "LAUNCH_FAILED": (AppState.FAILED, "launch_failed"),
    "RECONFIG_FAIL": (AppState.FAILED, "reconfiguration_failed"),
}
SHORT = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "PR": "PREEMPTED",
    "NF": "NODE_FAIL",
    "BF": "BOOT_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "DL": "DEADLINE",
    "RQ": "REQUEUED",
    "RH": "REQUEUE_HOLD",
    "S": "SUSPENDED",
    "ST": "STOPPED",
    "SE": "SPECIAL_EXIT",
}
SEPARATOR = "\x1f"
FIELDS = (
    *("JobArrayID", "State", "Reason", "NodeList", "RestartCnt", "exit_code"),
    *("HetJobID", "HetJobOffset", "Name"),
)
_NOTHING = ("", "N/A", "n/a", "(null)", "None", "none")
FAMILY = "sbatch"
# Options by their own name: how each is called here, and what it is for.
NAMED: Mapping[str, str] = {
    "account": "account that is charged",
    "partition": "partition to submit to",
    "time": "time limit: minutes, H:MM:SS or D-HH:MM",
    "comment": "comment kept with the job",
    "constraint": "features that the nodes must have",
    "mail-user": "recipient of mail",
    "mail-type": "when to mail: BEGIN, END, FAIL, ALL, ..",
    "qos": "quality of service",
    "gres": "generic resources per node, such as gpu:4",
    "nodelist": "nodes that the job must include",
    "exclude": "nodes that the job must not use",
    "reservation": "reservation to use",
    "dependency": "start after these jobs: afterok:123",
    "begin": "earliest start: 16:00, now+1hour",
    "licenses": "required licenses",
    "array": "array of tasks, numbered by SLURM_ARRAY_TASK_ID: 0-9%2",
}
_EACH = ("partition", "constraint", "gres")  # repeated for every part of a heterogeneous job
_OURS: Mapping[str, str] = {
    "output": "the job's folder has its output; set its place with job_dir",
    "error": "the job's folder has its output; set its place with job_dir",
    "input": "ranks of a job have no standard input",
    "open-mode": "a job that is queued again appends to the same file",
    "export": "variables are passed in a private file; add one with -e NAME=VALUE",
    "export-file": "variables are passed in a private file; add one with -e NAME=VALUE",
    "chdir": "use cwd=FOLDER",
    "wrap": "torchloom writes the script",
    "parsable": "torchloom writes the script",
    "job-name": "use --name NAME",
    "signal": "use warn=SECONDS",
    "nodes": "each replica has a node; use -j, -n and --ppn",
    "ntasks": "each replica has a node; use -j, -n and --ppn",
    "ntasks-per-node": "each replica has a node; use -j, -n and --ppn",
}
# srun of 22.05 and later asks for one core unless it gets the job's number of cores.
_BEFORE = ('[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',)
# What commands print when the controller is busy, restarting or out of reach for a moment.
_SILENT = re.compile(r"Unable to contact|[Tt]imed out|Zero Bytes|Connection refused|try again")


def question(user: str) -> list[str]:
    """Return the words that ask for all jobs of a user, those that have just ended too."""
    fields = ",".join(f"{name}:{SEPARATOR}" for name in FIELDS)
    return ["squeue", "--noheader", "--states=all", f"--user={user}", f"--Format={fields}"]


def read(printed: str) -> dict[str, EngineJob]:
    """Return the jobs of an answer; an array or a heterogeneous job is one, of its parts."""
    parts: dict[str, list[EngineJob]] = {}
    for line in printed.split("\n"):
        values = [word.strip() for word in line.split(SEPARATOR)]
        if len(values) > len(FIELDS):
            fields = dict(zip(FIELDS, values, strict=False))
            parts.setdefault(_whole(fields), []).append(_job(fields))
    return {job: joined_parts(job, found) for job, found in parts.items()}


def _whole(fields: Mapping[str, str]) -> str:
    het = fields["HetJobID"]
    own = fields["JobArrayID"].partition("_")[0].partition("+")[0]
    return own if het in (*_NOTHING, "0") else het


def _job(fields: Mapping[str, str]) -> EngineJob:
    word = fields["State"].partition(" ")[0].partition("+")[0].upper()  # CANCELLED by 1000
    native = SHORT.get(word, word)
    state, why = STATES.get(native, (AppState.UNKNOWN, native.lower()))
    restarts = _int(fields["RestartCnt"])
    if state is AppState.PENDING and restarts and not why:
        why = "requeued"
    reason = fields["Reason"]
    if state is AppState.PENDING and reason not in _NOTHING:
        why = f"{why}: {reason}" if why else reason
    return EngineJob(
        id=fields["JobArrayID"],
        state=state,
        native=native,
        why=why,
        hosts=_hosts(fields["NodeList"]),
        restarts=restarts,
        exit_code=_exit_code(_int(fields["exit_code"])),
        name=fields["Name"],
    )


def _hosts(nodes: str) -> tuple[str, ...]:
    if nodes in _NOTHING:
        return ()
    try:
        return expand(nodes)
    except BadNodelist:
        return ()


def _int(word: str) -> int:
    return int(word) if word.isascii() and word.isdecimal() else 0


def _exit_code(status: int) -> int:
    """Return what a shell would see; Slurm has the status as `wait` gives it."""
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF


def add_options(opts: runopts) -> None:
    """Declare what sbatch takes."""
    for name, words in NAMED.items():
        opts.add(name, type_=str, help=words)
    opts.add("exclusive", type_=bool, default=False, help="do not share nodes with other jobs")
    opts.add("mem", type_=str, help="memory per node, instead of the role's: 64G; 0: all of it")
    opts.add(
        "nomem", type_=bool, default=False, help="request no memory: where Slurm does not manage it"
    )
    opts.add("cpus_per_task", type_=int, help="cores per node, instead of the role's")
    opts.add("gpus_per_node", type_=str, help="GPUs per node, instead of the role's: 8, a100:8")
    opts.add(f"{FAMILY}.*", type_=str, help="any other option of sbatch: sbatch.gres=gpu:2")


def sbatch_script(
    app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, python: str, cwd: str
) -> str:
    """Return the script; submitting it by hand gives the same job."""
    words = list(_directives(app, cfg, folder))
    return script(words, folder, cwd, python, lines(cfg, "setup"), _BEFORE)


def _directives(app: AppDef, cfg: Mapping[str, CfgVal], folder: Path) -> Iterator[str]:
    yield _line("job-name", app.name)
    yield _line("output", _output(folder, bool(text(cfg, "array"))))
    yield _line("open-mode", "append")
    yield _line("export", "NIL")
    yield from (_line(name, value) for name in NAMED if (value := text(cfg, name)))
    yield from _endings(app, cfg)
    for index, block in enumerate(blocks(app, cfg)):
        if index:
            yield "#SBATCH hetjob"
            yield from (_line(name, value) for name in _EACH if (value := text(cfg, name)))
        yield from _block(block, cfg)
        for name, value in native(cfg, FAMILY, _OURS).items():
            yield from _native(name, value)


def _endings(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """What follows when a node fails, when time runs out, when the job is preempted."""
    warn = count(cfg, "warn")
    if warn > 65535:
        raise UserError(f"warn: Slurm takes at most 65535 seconds, got {warn}")
    if warn:
        yield _line("signal", f"B:USR1@{warn}")
    requeues = warn or any(role.max_retries for role in app.roles)
    yield _line("requeue" if requeues else "no-requeue")
    if survives(cfg) or count(cfg, "spares"):
        yield _line("no-kill")


def _block(block: Block, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    if cfg.get("exclusive"):
        yield _line("exclusive")
    if block.least < block.most:  # a range alone gets the fewest that will do
        yield _line("nodes", f"{block.least}-{block.most}")
        yield _line("ntasks", str(block.most))
        yield _line("spread-job")
    else:
        yield _line("nodes", str(block.most))
        yield _line("ntasks-per-node", "1")
    cores = cfg.get("cpus_per_task") or block.resource.cpu
    if isinstance(cores, int) and cores > 0:
        yield _line("cpus-per-task", str(cores))
    gpus = text(cfg, "gpus_per_node") or (str(block.resource.gpu) if block.resource.gpu > 0 else "")
    if gpus and not text(cfg, "gres"):
        yield _line("gpus-per-node", gpus)
    if cfg.get("nomem"):
        return
    memory = text(cfg, "mem") or (f"{block.resource.memMB}M" if block.resource.memMB > 0 else "")
    if memory:
        yield _line("mem", memory)


def _native(name: str, value: str) -> Iterator[str]:
    """Yield any option; `true` is one without a value, `false` none at all."""
    if value.lower() != "false":
        yield _line(name) if value.lower() == "true" else _line(name, value)


def _output(folder: Path, is_array: bool) -> str:
    path = str(folder / OUTPUT)
    if "\\" in path or "%" in path:
        raise BadDirective("job_dir", path, "has a % or \\, which Slurm reads as more than itself")
    return f"{path}.%a" if is_array else path


def _line(name: str, value: str | None = None) -> str:
    if value is None:
        return f"#SBATCH --{name}"
    if re.fullmatch(r"[A-Za-z0-9./_:@,%+-]+", checked(name, value)):
        return f"#SBATCH --{name}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH --{name}="{escaped}"'


class SlurmScheduler(BatchScheduler):
    """One homogeneous job; a heterogeneous one where roles need different nodes."""

    def _run_opts(self) -> runopts:
        opts = runopts()
        add_options(opts)
        add_common(opts)
        return opts

    def _script(self, app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, run_id: str) -> str:
        cwd = os.path.abspath(text(cfg, "cwd") or os.getcwd())
        return sbatch_script(app, cfg, folder, self._python(cfg), cwd)

    def _submit_words(self, folder: Path) -> tuple[str, ...]:
        return ("sbatch", "--parsable", str(folder / SCRIPT))

    def _job_of(self, printed: str) -> str:
        return printed.strip().splitlines()[-1].partition(";")[0]  # JOB;CLUSTER

    def _parcel(self, parcel: Parcel) -> Parcel:
        return replace(
            parcel,
            job_variable="SLURM_JOB_ID",
            task_variable="SLURM_ARRAY_TASK_ID",
            requeue=("scontrol", "requeue"),
        )

    def _ask_all(self) -> Answer:
        words = question(settings.user_name())
        return read(self._commands.ask(words, lambda printed: bool(_SILENT.search(printed))))

    def _cancel_words(self, job: str) -> tuple[str, ...]:
        return ("scancel", job)

    def _polite_words(self, job: str) -> tuple[str, ...]:
        return ("scancel", "--signal=TERM", "--batch", job)

    def _inside_words(self, job: str, host: str) -> tuple[str, ...]:
        one = ("--nodes=1", "--ntasks=1", f"--nodelist={host}", "--overlap", "--quiet")
        return ("srun", f"--jobid={job}", *one, "--export=ALL", "--input=none")


def create_scheduler(session_name: str, **kwargs: Any) -> SlurmScheduler:
    """Return Slurm as a scheduler; nothing is asked of it before it must be."""
    return SlurmScheduler("slurm", session_name)
