"""The table of verbs, for `--help`, completion and the dispatcher, which import no command."""

from typing import NamedTuple


class Verb(NamedTuple):
    """One verb: its summary, and its flags for completion; flags with a value end in `=`."""

    summary: str
    flags: tuple[str, ...]
    takes: str = ""  # what its argument is, for completion: job, target, component, engine, ...
    first: bool = True  # has a row in `loom --help`; the others do in `loom help --all` alone


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
        "run a script, component or spec file; follow its output",
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
        "print or follow the output of a job's ranks",
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
    "monitor": Verb("watch and steer jobs on a full-screen view", ("--job=", "--plain")),
    "set": Verb(
        "change knobs of a running job, or list them",
        (
            *("--at=", "--hold", "--reason=", "--wait=", "--guard=", "--for=", "--undo="),
            *("--replay=", "--json"),
        ),
        "job",
    ),
    "pause": Verb(
        "pause all ranks of a job at one step",
        ("--release", "--at=", "--reason=", "--wait=", "--json"),
        "job",
    ),
    "resume": Verb(
        "continue a job that is paused or has ended",
        (
            *("-n=", "--strategy=", "--mesh=", "--from=", "--until=", "--from-scratch"),
            *("--detach", "--reason=", "--json"),
        ),
        "job",
    ),
    "resize": Verb(
        "continue a job with more or fewer ranks",
        ("--at=", "--reason=", "--json"),
        "job",
        first=False,
    ),
    "checkpoint": Verb(
        "save a checkpoint; list, verify, compare, export, remove",
        ("--at=", "--reason=", "--wait=", "--no-wait", "--json"),
        "job",
    ),
    "stop": Verb(
        "stop a job, now or at a step",
        ("--now", "--at=", "--all", "--state=", "--reason=", "--no-wait", "--yes", "--json"),
        "job",
    ),
    "devices": Verb("list devices; report one as failed, drain it", ("--json",)),
    "up": Verb(
        "start the control plane, or show its status",
        ("--host=", "--trust-operators", "--only=", "--status", "--json"),
    ),
    "down": Verb("stop the control plane; jobs keep running", ("--json",)),
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
        "open the dashboard in a browser, signed in",
        ("--print", "--json"),
        "job",
    ),
    "login": Verb(
        "use the plane of another host",
        ("--fingerprint=", "--forget", "--json"),
        "",
        False,
    ),
    "tokens": Verb("manage users, tokens and sign-in links", ("--json",), "", False),
    "rm": Verb(
        "remove ended jobs with their logs and checkpoints",
        ("--ended", "--yes", "--json"),
        "job",
        False,
    ),
    "compare": Verb(
        "show how runs differ: config, results, source",
        ("--all", "--json"),
        "job",
        False,
    ),
    "plot": Verb(
        "plot a run's metrics in the terminal or to a file",
        ("--out=", "--smooth=", "--by=", "--all-ranks", "--replaced", "--json"),
        "job",
        False,
    ),
    "export": Verb(
        "write runs to one self-contained HTML file",
        ("--output=", "--last=", "--yes", "--json"),
        "job",
        False,
    ),
    "inspect": Verb(
        "show the audit log of a job, or the stacks of its ranks",
        ("--yaml", "--rank=", "--threads", "--json"),
        "job",
        False,
    ),
    "chaos": Verb(
        "inject faults into a job and check its guarantees",
        (
            *("--plan=", "--mtbf=", "--kinds=", "--seed=", "--link=", "--faults=", "--for="),
            *("--limit=", "--against=", "--output=", "--dryrun", "--yes", "--json"),
        ),
        "job",
        False,
    ),
    "components": Verb(
        "list components, or describe one", ("--print=", "--json"), "component", False
    ),
    "engines": Verb("list engines and their options", ("--json",), "engine", False),
    "config": Verb("show the config values, or write a config file", (), "config", False),
    "tracker": Verb("print what trackers know of runs", (), "tracker", False),
    "env": Verb("save a job's variables; pack and push environments", (), "env", False),
    "convert": Verb(
        "suggest how a training loop uses torchLoom's API",
        ("--write", "--json"),
        "file",
        False,
    ),
    "test": Verb(
        "train a small model on several ranks",
        ("--np=", "--steps=", "--model=", "--backend=", "--json"),
        "",
        False,
    ),
    "docs": Verb("open the manual in a browser", ("--print", "--json"), "", False),
    "completion": Verb("print the completion script for bash, zsh or fish", (), "shell", False),
    "bench": Verb(
        "run the benchmarks, in a checkout of the repository",
        ("--json", "--only=", "-n="),
        "",
        False,
    ),
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

# What one wants to do, and the verbs for it.
GROUPS: dict[str, tuple[str, ...]] = {
    "Run": ("run", "launch", "plan", "components", "engines", "convert"),
    "Watch": ("ls", "show", "logs", "monitor", "plot", "compare", "export", "inspect", "tracker"),
    "Steer": ("set", "pause", "resize", "stop", "rm"),
    "Recover": ("checkpoint", "resume", "chaos"),
    "Plane": ("up", "down", "open", "login", "tokens", "backup", "restore"),
    "Machine": ("devices", "doctor", "test", "env", "config", "docs", "completion", "bench"),
}
_SHARED = {  # rows of two verbs in the short help, under the first one
    "ls": ("show", "list jobs; show one: state, reason, ranks, first error"),
    "pause": ("stop", "pause all ranks at one step; stop a job, now or at a step"),
    "up": ("down", "start or stop the control plane, show its status"),
}

_MORE = 70  # letters of a line of names
_OF_A_CHECKOUT = "bench"  # what an installed package cannot do
_HEAD = """\
Usage: loom [--version] [--debug] VERB ...
Launch PyTorch training jobs, watch and change them, recover from failures.
"""

_TAIL = """\
JOB is an id, a prefix of one, a name, a handle, or @ for the newest job.
`loom VERB --help` shows its options and examples; `loom help --all` lists all.
"""


def help_text(whole: bool = False) -> str:
    """Return what `loom --help` prints, which fits 80x24; the whole of it has every verb."""
    rows = [row for group, names in GROUPS.items() for row in _rows(group, names, whole)]
    others = [] if whole else [_more()]
    return "\n".join([_HEAD, *rows, *others, "", _TAIL])


def _rows(group: str, names: tuple[str, ...], whole: bool) -> list[str]:
    """Return one row a verb; the first has the name of the group before it."""
    seconds = () if whole else [second for second, _ in _SHARED.values()]
    shown = [name for name in names if (whole or VERBS[name].first) and name not in seconds]
    rows = [_row(name, whole) for name in shown]
    return [f"{'' if at else group:<9}{row}" for at, row in enumerate(rows)]


def _row(name: str, whole: bool) -> str:
    second, summary = ("", "") if whole else _SHARED.get(name, ("", ""))
    return f"{f'{name}, {second}' if second else name:<12}{summary or VERBS[name].summary}"


def _more() -> str:
    """Return the names of the other verbs, wrapped below each other."""
    lines = [""]
    others = (name for names in GROUPS.values() for name in names if not VERBS[name].first)
    for name in (name for name in others if name != _OF_A_CHECKOUT):
        if len(lines[-1]) + len(name) > _MORE:
            lines.append("")
        lines[-1] += f"{name}, "
    return "More     " + f"\n{'':9}".join(line.rstrip() for line in lines).rstrip(",")
