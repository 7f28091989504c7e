"""An app as a script for `qsub`: directives by PBS's grammar, quoted by its rules. Pure."""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchloom.errors import UserError
from torchloom.schedulers.batch.options import count, lines, native, survives, text
from torchloom.schedulers.batch.planning import Block, blocks
from torchloom.schedulers.batch.request import OUTPUT, SCRIPT
from torchloom.schedulers.batch.script import BadDirective, checked, script
from torchloom.schedulers.pbs_states import seconds
from torchloom.specs.api import AppDef, CfgVal, runopts

FAMILY = "qsub"
JOB_VARIABLE = "LOOM_ENGINE_JOB"  # the job's number, without server and task
# Options of a letter: how each is called here, and what it is for.
LETTERS: Mapping[str, tuple[str, str]] = {
    "queue": ("q", "where it runs"),
    "account": ("A", "who is charged"),
    "project": ("P", "the project it belongs to"),
    "mail-user": ("M", "who is told"),
    "mail-type": ("m", "of what: a (abort), b (begin), e (end), j (tasks too), n (nothing)"),
    "begin": ("a", "not before: [[[[CC]YY]MM]DD]hhmm[.SS]"),
    "array": ("J", "so many of it, told apart by PBS_ARRAY_INDEX: 0-9%2"),
}
RESOURCES: Mapping[str, str] = {
    "walltime": "how long it may run: HH:MM:SS, or seconds",
    "filesystems": "file systems it needs: home:eagle",
}
CHUNK: Mapping[str, str] = {
    "ncpus": "cores of a host, instead of the role's; default: one a rank",
    "ngpus": "GPUs of a host, instead of the role's",
    "mem": "memory a host, instead of the role's: 64gb; 0: none is asked for",
    "chunk": "what else each host must have or be: system=polaris:switch=3",
}
_EXTRA = {"dependency": ("depend", "after which jobs: afterok:123")}
_OURS: Mapping[str, str] = {
    **{letter: f"say {name}=.." for name, (letter, _) in LETTERS.items()},
    **dict.fromkeys(("o", "e", "j"), "the job's folder has its output; choose that by job_dir"),
    **dict.fromkeys(("v", "V"), "variables travel in a private file; -e NAME=VALUE adds one"),
    **dict.fromkeys(("I", "X"), "a job has no terminal; say qsub -I yourself and `loom launch`"),
    **dict.fromkeys(("C", "z", "f"), "the script is ours"),
    "N": "say --name NAME",
    "r": "warn=SECONDS, or retries of a role, make it rerunnable",
}
_LONGEST_NAME = 230  # letters
# What MoM starts first is the shell of -S, and a job ends with it: that is the script itself,
# unless its path has what PBS reads as more than that.
_PLAIN_PATH = r"/[A-Za-z0-9_./+-]+"


def add_options(opts: runopts) -> None:
    """Declare what qsub takes."""
    for name, (_, words) in LETTERS.items():
        opts.add(name, type_=str, help=words)
    for name, words in {**RESOURCES, **CHUNK}.items():
        opts.add(name, type_=str, help=words)
    for name, (_, words) in _EXTRA.items():
        opts.add(name, type_=str, help=words)
    opts.add("priority", type_=int, help="among one's own jobs: -1024 to 1023")
    opts.add("select", type_=str, help="all hosts in PBS's words, instead of ours: 2:ncpus=8")
    opts.add("place", type_=str, default="scatter", help="how hosts are chosen; a replica has one")
    opts.add("exclusive", type_=bool, default=False, help="hosts that nobody else uses")
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
    goes_on = count(cfg, "warn") or any(role.max_retries for role in app.roles)
    yield _line("r", "y" if goes_on or text(cfg, "array") else "n")  # PBS reruns arrays always
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
    """Say which job it is, and tell the script in time that its time runs out: PBS does not."""
    yield f"export {JOB_VARIABLE}=${{PBS_JOBID%%.*}}"
    yield f'[ -z "$PBS_ARRAY_INDEX" ] || {JOB_VARIABLE}="${{{JOB_VARIABLE}%%[*}}[]"'
    limit = seconds(text(cfg, "walltime"))
    if text(cfg, "walltime") and not limit:
        raise BadDirective("walltime", text(cfg, "walltime"), "is no time: HH:MM:SS, or seconds")
    yield f"limit={limit}" if limit else _ASKED
    yield 'if [ "$limit" -gt 0 ]; then'
    yield "  export LOOM_DEADLINE=$(( $(date +%s) + limit ))"
    warn = count(cfg, "warn")
    if warn:
        yield f"  warn=$(( limit > {2 * warn} ? {warn} : limit / 2 ))"
        yield "  { sleep $(( limit - warn )); kill -USR1 $$; } < /dev/null &"
    yield "fi"


# A queue's own limit is known once the job runs; where nothing answers there is no warning.
_ASKED = (
    'limit=$(qstat -f "$PBS_JOBID" 2> /dev/null | awk \'$1 == "Resource_List.walltime" '
    '{ n = split($3, t, ":"); for (i = 1; i <= n; i++) s = s * 60 + t[i] } END { print s + 0 }\')'
)


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
        raise BadDirective(name, value, "is no amount")
    return value


def _output(folder: Path, is_array: bool) -> str:
    path = str(folder / OUTPUT)
    if ":" in path or "^" in path:
        raise BadDirective("job_dir", path, "has a : or ^, which PBS reads as more than itself")
    return f"{path}.^array_index^" if is_array else path


def _line(letter: str, value: str) -> str:
    return f"#PBS -{letter} {shlex.quote(checked(letter, value))}"
