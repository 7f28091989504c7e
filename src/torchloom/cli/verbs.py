"""The table of verbs: what `--help`, completion and the dispatcher know without importing any."""

from typing import NamedTuple


class Verb(NamedTuple):
    """One verb: what it does, and the flags that completion offers; `=` ends those with a value."""

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
        "run a script, component or spec file; follows it, -d does not",
        ("--detach", "--dryrun", "--wait", "--log", "--stdin", "--key=", *_TARGET),
        "target",
    ),
    "launch": Verb(
        "start the ranks of a command here or over hosts, like torchrun",
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
        "show what `run` would send, and what could not be honoured",
        ("--all", "--check", "--save", *_TARGET),
        "target",
    ),
    "ls": Verb(
        "list jobs, newest first", ("--scheduler=", "--state=", "--limit=", "--all", "--json")
    ),
    "show": Verb(
        "one job: state and why, ranks, first error",
        ("--wait", "--spec", "--events", "--roles=", "--json"),
        "job",
    ),
    "logs": Verb(
        "print or follow the logs of some or all ranks",
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
        "live screen of jobs, ranks and curves; elsewhere a prompt", ("--job=", "--plain")
    ),
    "set": Verb(
        "change knobs at one step on all ranks; without values list them",
        (
            *("--at=", "--hold", "--reason=", "--wait=", "--guard=", "--for=", "--undo="),
            *("--replay=", "--json"),
        ),
        "job",
    ),
    "pause": Verb(
        "have all ranks wait at one step; go on",
        ("--release", "--at=", "--reason=", "--wait=", "--json"),
        "job",
    ),
    "resume": Verb(
        "go on with a job that is paused or has ended",
        ("-n=", "--from=", "--until=", "--from-scratch", "--detach", "--reason=", "--json"),
        "job",
        beside="pause",
    ),
    "resize": Verb(
        "have a job go on with more ranks, or with fewer",
        ("--at=", "--reason=", "--json"),
        "job",
        first=False,
    ),
    "checkpoint": Verb(
        "have all ranks save at one step; ls, verify, diff, export, rm",
        ("--at=", "--reason=", "--wait=", "--no-wait", "--json"),
        "job",
    ),
    "stop": Verb(
        "end a job: SIGTERM, grace, SIGKILL; or at a step",
        ("--now", "--at=", "--all", "--state=", "--reason=", "--no-wait", "--yes", "--json"),
        "job",
    ),
    "devices": Verb("devices and the ranks on them; fail, recover, drain, register", ("--json",)),
    "up": Verb(
        "start or see the plane: NATS, weaver, agent; end it",
        ("--host=", "--trust-operators", "--only=", "--status", "--json"),
    ),
    "down": Verb("end the plane; jobs run on", ("--json",), beside="up"),
    "doctor": Verb(
        "check this machine; end what crashes left behind",
        ("--quick", "--hostfile=", "--clean", "--dryrun", "--json"),
    ),
    "backup": Verb(
        "copy both databases and the plane's keys into one file, online",
        ("--json",),
        "file",
        False,
    ),
    "restore": Verb(
        "bring back a backup, or salvage damaged databases",
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
        "use a plane elsewhere: its address, then a link or a token",
        ("--fingerprint=", "--forget", "--json"),
        "",
        False,
    ),
    "tokens": Verb("who may come in: tokens, one-time links, roles", ("--json",), "", False),
    "rm": Verb("remove ended jobs and their logs", ("--ended", "--yes", "--json"), "job", False),
    "compare": Verb(
        "show how runs differ: config, results, source, packages",
        ("--all", "--json"),
        "job",
        False,
    ),
    "plot": Verb(
        "draw a run's curves, in the terminal or as a picture",
        ("--out=", "--smooth=", "--by=", "--all-ranks", "--json"),
        "job",
        False,
    ),
    "export": Verb(
        "put a run, or several, into one HTML file that opens anywhere",
        ("--output=", "--last=", "--yes", "--json"),
        "job",
        False,
    ),
    "inspect": Verb(
        "look closer at a job: audit, stacks",
        ("--yaml", "--rank=", "--threads", "--json"),
        "job",
        False,
    ),
    "chaos": Verb(
        "hurt a running job on purpose; does it keep its promises",
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
        "train something small on several ranks: does this place work",
        ("--np=", "--steps=", "--model=", "--backend=", "--json"),
        "",
        False,
    ),
    "completion": Verb("print shell completion: bash, zsh or fish", (), "shell", False),
    "bench": Verb("measure us beside our peers", ("--json", "--only=", "-n="), "", False),
}

# Other tools' words. The value is our verb and the flags that make it mean the same.
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

# What is said of a word that means something else elsewhere, when it comes without a job.
REMARKS: dict[str, str] = {
    "kill": "`kill` is `stop`; what crashed launches left is ended by `loom doctor --clean`",
}

# Words that others have for what we write otherwise: of verbs, and of a verb's options.
WRITTEN: dict[str, str] = dict.fromkeys(
    ("queue", "squeue", "qstat", "bjobs"), "`loom ls --state queued` lists the jobs that wait"
)
_RANKS = "write `-n N` for N processes; `loom launch` takes torchrun's options"
WRITTEN_OPTIONS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("run", "plan"), dict.fromkeys(("--nproc-per-node", "--nproc"), _RANKS)),
    "logs": dict.fromkeys(("-n", "--lines"), "write `--last N` for the last N lines of each rank"),
    "ls": {"-n": "write `--limit N` for the newest N jobs"},
}

_HEAD = """\
usage: loom [--version] [--debug] VERB ...

Describe a job once, run it anywhere, watch every rank, change it while it
runs, lose nothing when something dies.
"""

_TAIL = """\
JOB is an id, the beginning of one, a name, a handle, or @ for the newest.
`loom VERB --help` explains a verb; `loom completion bash` completes them.
"""


def help_text() -> str:
    """Return what `loom --help` prints; it fits 80 columns."""
    rows = [f"  {_together(name):<15}{VERBS[name].summary}" for name in VERBS if _leads(name)]
    others = _wrapped([name for name, verb in VERBS.items() if not verb.first])
    return "\n".join([_HEAD, "verbs:", *rows, f"more: {others}\n", _TAIL])


def _wrapped(names: list[str]) -> str:
    """Return names in lines that fit behind a word of their own."""
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
