"""The table of verbs, for `--help`, completion and the dispatcher, which import no command."""

from typing import NamedTuple


class Verb(NamedTuple):
    """One verb: its summary, and its flags for completion; flags with a value end in `=`."""

    summary: str
    flags: tuple[str, ...]
    takes: str = ""  # what its argument is, for completion: job, target, component, engine, ...
    first: bool = True  # shown at the top of `loom --help`
    beside: str = ""  # the verb whose line there it shares


_TARGET = (
    "-n=",
    "--ppn=",
    "--scheduler=",
    "--scheduler_args=",
    "--workspace=",
    "--name=",
    "--env=",
    "--max-retries=",
    "--policy=",
    "-m=",
    "--json",
)

VERBS: dict[str, Verb] = {
    "run": Verb(
        "run a script, component or spec file and follow its output",
        ("--detach", "--dryrun", "--wait", "--log", "--stdin", "--key=", *_TARGET),
        "target",
    ),
    "launch": Verb(
        "start ranks on this host or several, like torchrun",
        (
            *(
                "--np=",
                "--nproc-per-node=",
                "--nnodes=",
                "--hostfile=",
                "--launcher=",
                "--per-rank",
            ),
            *("--max-restarts=", "--spares=", "--timeout=", "--orphan-limit=", "--policy="),
            *("--shutdown-timeout=", "--cpu-bind=", "--log-dir=", "--role=", "--no-fallback"),
            *("--no-python", "--dryrun", "--module="),
        ),
        "file",
    ),
    "plan": Verb(
        "show what `run` would submit, without submitting it",
        ("--all", "--check", "--save", *_TARGET),
        "target",
    ),
    "ls": Verb(
        "list jobs, newest first", ("--scheduler=", "--state=", "--limit=", "--all", "--json")
    ),
    "show": Verb(
        "show one job: state, reason, ranks, first error",
        ("--wait", "--spec", "--events", "--roles=", "--json"),
        "job",
    ),
    "logs": Verb(
        "print or follow the logs of a job's ranks",
        (
            "--follow",
            "--ranks=",
            "--role=",
            "--regex=",
            "--since=",
            "--until=",
            "--stream=",
            "--last=",
            "--raw",
            "--json",
        ),
        "job",
    ),
    "monitor": Verb(
        "live screen of jobs, ranks and curves; a prompt in a pipe", ("--job=", "--plain")
    ),
    "set": Verb(
        "change knobs of a running job, or list them",
        (
            *("--at=", "--hold", "--reason=", "--wait=", "--guard=", "--for=", "--undo="),
            *("--replay=", "--json"),
        ),
        "job",
    ),
    "pause": Verb(
        "pause all ranks at one step; continue a job",
        ("--release", "--at=", "--reason=", "--wait=", "--json"),
        "job",
    ),
    "resume": Verb(
        "continue a job that is paused or has ended",
        ("-n=", "--from=", "--until=", "--from-scratch", "--detach", "--reason=", "--json"),
        "job",
        beside="pause",
    ),
    "resize": Verb(
        "restart a job from a checkpoint with more or fewer ranks",
        ("--at=", "--reason=", "--json"),
        "job",
        first=False,
    ),
    "checkpoint": Verb(
        "save a checkpoint; ls, verify, diff, export, rm",
        ("--at=", "--reason=", "--wait=", "--no-wait", "--json"),
        "job",
    ),
    "stop": Verb(
        "stop a job: SIGTERM, then SIGKILL; or stop at a step",
        ("--now", "--at=", "--all", "--state=", "--reason=", "--no-wait", "--yes", "--json"),
        "job",
    ),
    "devices": Verb("list devices; fail, recover, drain, register", ("--json",)),
    "up": Verb(
        "start the control plane or show its status; stop it",
        ("--host=", "--trust-operators", "--only=", "--status", "--json"),
    ),
    "down": Verb("stop the control plane; jobs keep running", ("--json",), beside="up"),
    "doctor": Verb(
        "check this machine; clean up after crashes",
        ("--quick", "--hostfile=", "--clean", "--dryrun", "--json"),
    ),
    "backup": Verb(
        "copy the plane's databases and keys into one file",
        ("--json",),
        "file",
        False,
    ),
    "restore": Verb(
        "restore a backup, or salvage damaged databases",
        ("--salvage", "--json"),
        "file",
        False,
    ),
    "open": Verb(
        "open the dashboard in a browser, signed in; over ssh print a link",
        ("--print", "--json"),
        "job",
        False,
    ),
    "login": Verb(
        "use the plane of another host, with a link or a token",
        ("--fingerprint=", "--forget", "--json"),
        "",
        False,
    ),
    "tokens": Verb("manage users, tokens and one-time links", ("--json",), "", False),
    "rm": Verb("remove ended jobs and their logs", ("--ended", "--yes", "--json"), "job", False),
    "compare": Verb(
        "show how runs differ: config, results, source, packages",
        ("--all", "--json"),
        "job",
        False,
    ),
    "plot": Verb(
        "plot a run's metrics, in the terminal or to a file",
        ("--out=", "--smooth=", "--by=", "--all-ranks", "--json"),
        "job",
        False,
    ),
    "export": Verb(
        "write one or several runs to a self-contained HTML file",
        ("--output=", "--last=", "--yes", "--json"),
        "job",
        False,
    ),
    "inspect": Verb(
        "show the audit log or the stacks of a job",
        ("--yaml", "--rank=", "--threads", "--json"),
        "job",
        False,
    ),
    "chaos": Verb(
        "inject faults into a running job and check its guarantees",
        (
            *("--plan=", "--mtbf=", "--kinds=", "--seed=", "--link=", "--faults=", "--for="),
            *("--limit=", "--against=", "--output=", "--dryrun", "--yes", "--json"),
        ),
        "job",
        False,
    ),
    "components": Verb(
        "list components, or explain one", ("--print=", "--json"), "component", False
    ),
    "engines": Verb("list engines and their options", ("--json",), "engine", False),
    "config": Verb("show or write config files", (), "config", False),
    "env": Verb("save and load a job's variables; pack and push environments", (), "env", False),
    "test": Verb(
        "train a small model on several ranks to check this machine",
        ("--np=", "--steps=", "--model=", "--backend=", "--json"),
        "",
        False,
    ),
    "completion": Verb("print shell completion: bash, zsh or fish", (), "shell", False),
    "bench": Verb("run the benchmarks of a checkout", ("--json", "--only=", "-n="), "", False),
}

# Verbs of other tools. The value is our verb and the flags that give it the same meaning.
ALIASES: dict[str, tuple[str, ...]] = {
    "submit": ("run", "-d"),
    "list": ("ls", "--as-torchx"),
    "jobs": ("ls",),
    "ps": ("ls",),
    "runs": ("ls",),
    "status": ("show", "--as-torchx"),
    "job": ("show",),
    "describe": ("show", "--spec"),
    "log": ("logs",),
    "cancel": ("stop", "--now"),
    "delete": ("rm",),
    "builtins": ("components",),
    "runopts": ("engines",),
    "schedulers": ("engines",),
    "configure": ("config", "init"),
    "top": ("monitor",),
    "kill": ("stop",),
    "explain": ("plan", "--all"),
    "validate": ("plan", "--check"),
}

# Notes on aliases that mean something else in other tools; printed when no job is named.
REMARKS: dict[str, str] = {
    "kill": "`kill` is `stop`; `loom doctor --clean` ends what crashed launches left running",
}

# Verbs and options of other tools, with the way to write them here.
WRITTEN: dict[str, str] = dict.fromkeys(
    ("queue", "squeue", "qstat", "bjobs"), "`loom ls --state queued` lists the waiting jobs"
)
_RANKS = "write `-n N` for N processes; `loom launch` takes torchrun's options"
WRITTEN_OPTIONS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("run", "plan"), dict.fromkeys(("--nproc-per-node", "--nproc"), _RANKS)),
    "logs": dict.fromkeys(("-n", "--lines"), "write `--last N` for the last N lines of each rank"),
    "ls": {"-n": "write `--limit N` for the newest N jobs"},
}

_HEAD = """\
usage: loom [--version] [--debug] VERB ...

Launch PyTorch training jobs, watch and change them while they run, and
recover from failures.
"""

_TAIL = """\
JOB is an id, a prefix of one, a name, a handle, or @ for the newest job.
`loom VERB --help` describes a verb; `loom completion SHELL` prints completion.
"""


def help_text() -> str:
    """Return what `loom --help` prints; it fits 80 columns."""
    rows = [f"  {_together(name):<15}{VERBS[name].summary}" for name in VERBS if _leads(name)]
    others = _wrapped([name for name, verb in VERBS.items() if not verb.first])
    return "\n".join([_HEAD, "verbs:", *rows, f"more: {others}\n", _TAIL])


def _wrapped(names: list[str]) -> str:
    """Return names wrapped into lines that fit behind `more: `."""
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > 73:
            lines.append("")
        lines[-1] += f"{name}, "
    return "\n      ".join(line.rstrip() for line in lines).rstrip(",")


def _leads(name: str) -> bool:
    return VERBS[name].first and not VERBS[name].beside


def _together(name: str) -> str:
    return ", ".join([name, *(other for other, verb in VERBS.items() if verb.beside == name)])
