"""An app as a script for `sbatch`: directives by Slurm's grammar, quoted by its rules. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchloom.errors import UserError
from torchloom.schedulers.batch.options import count, lines, native, survives, text
from torchloom.schedulers.batch.planning import Block, blocks
from torchloom.schedulers.batch.request import OUTPUT
from torchloom.schedulers.batch.script import BadDirective, checked, script
from torchloom.specs.api import AppDef, CfgVal, runopts

FAMILY = "sbatch"
# Options by their own name: how each is called here, and what it is for.
NAMED: Mapping[str, str] = {
    "account": "who is charged",
    "partition": "where it runs",
    "time": "how long it may run: minutes, H:MM:SS or D-HH:MM",
    "comment": "words that are kept with the job",
    "constraint": "features that its nodes must have",
    "mail-user": "who is told",
    "mail-type": "of what: BEGIN, END, FAIL, ALL, ..",
    "qos": "quality of service",
    "gres": "generic resources of a node, such as gpu:4",
    "nodelist": "nodes that must be among its own",
    "exclude": "nodes that must not",
    "reservation": "in which reservation",
    "dependency": "after which jobs: afterok:123",
    "begin": "not before: 16:00, now+1hour",
    "licenses": "licenses it needs",
    "array": "so many of it, told apart by SLURM_ARRAY_TASK_ID: 0-9%2",
}
_EACH = ("partition", "constraint", "gres")  # every part of a heterogeneous job says it anew
_OURS: Mapping[str, str] = {
    "output": "the job's folder has its output; choose that by job_dir",
    "error": "the job's folder has its output; choose that by job_dir",
    "input": "ranks of a job have no input",
    "open-mode": "a job that is queued again goes on in the same file",
    "export": "variables travel in a private file; -e NAME=VALUE adds one",
    "export-file": "variables travel in a private file; -e NAME=VALUE adds one",
    "chdir": "say cwd=FOLDER",
    "wrap": "the script is ours",
    "parsable": "the script is ours",
    "job-name": "say --name NAME",
    "signal": "say warn=SECONDS",
    "nodes": "each replica has a node; say -j, -n and --ppn",
    "ntasks": "each replica has a node; say -j, -n and --ppn",
    "ntasks-per-node": "each replica has a node; say -j, -n and --ppn",
}


def add_options(opts: runopts) -> None:
    """Declare what sbatch takes."""
    for name, words in NAMED.items():
        opts.add(name, type_=str, help=words)
    opts.add("exclusive", type_=bool, default=False, help="nodes that nobody else uses")
    opts.add("mem", type_=str, help="memory a node, instead of the role's: 64G; 0: all of it")
    opts.add("nomem", type_=bool, default=False, help="ask for no memory: where Slurm counts none")
    opts.add("cpus_per_task", type_=int, help="cores of a node, instead of the role's")
    opts.add("gpus_per_node", type_=str, help="GPUs of a node, instead of the role's: 8, a100:8")
    opts.add(f"{FAMILY}.*", type_=str, help="any other option of sbatch: sbatch.gres=gpu:2")


def sbatch_script(
    app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, python: str, cwd: str
) -> str:
    """Return the script; submitting it by hand gives the same job."""
    words = list(_directives(app, cfg, folder))
    return script(words, folder, cwd, python, lines(cfg, "setup"), _BEFORE)


# srun of 22.05 and later asks for one core unless it is told what the job has.
_BEFORE = ('[ -z "$SLURM_CPUS_PER_TASK" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',)


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
    """What follows when a node fails, when time runs out, when somebody is in greater need."""
    warn = count(cfg, "warn")
    if warn > 65535:
        raise UserError(f"warn: Slurm takes at most 65535 seconds, got {warn}")
    if warn:
        yield _line("signal", f"B:USR1@{warn}")
    goes_on = warn or any(role.max_retries for role in app.roles)
    yield _line("requeue" if goes_on else "no-requeue")
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
