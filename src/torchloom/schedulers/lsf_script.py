"""An app as a script for `bsub`: directives by LSF's grammar, quoted by its rules. Pure."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchloom.errors import UserError, shorten
from torchloom.schedulers.batch.options import count, lines, native, text
from torchloom.schedulers.batch.planning import Block, blocks
from torchloom.schedulers.batch.request import OUTPUT
from torchloom.schedulers.batch.script import BadDirective, checked, script
from torchloom.schedulers.lsf_options import ARRAY, FAMILY, NAMED, OURS, refuse_containers
from torchloom.specs.api import AppDef, CfgVal

REPORT = "report.log"  # what LSF says of each life, when it has ended
JOB, TASK = "LOOM_LSF_JOB", "LOOM_LSF_TASK"  # `12` or `12[3]`, and the 3
WARNING = "URG"  # it comes to every process of the job: who does not wait for it must not notice
_LONGEST_NAME = 1000
# LSF keeps what a job prints to itself until it ends; the job's folder has it at once.
_BEFORE = (
    f'unset {TASK}; export {JOB}="$LSB_JOBID"',
    f'[ "${{LSB_JOBINDEX:-0}}" = 0 ] || export {TASK}="$LSB_JOBINDEX"',
    f'[ -z "${TASK}" ] || {JOB}="$LSB_JOBID[${TASK}]"',
    f'exec >> "$folder/{OUTPUT}${{{TASK}:+.${TASK}}}" 2>&1',
)


def bsub_script(app: AppDef, cfg: Mapping[str, CfgVal], folder: Path, python: str, cwd: str) -> str:
    """Return the script; submitting it by hand (`bsub < job.sh`) gives the same job."""
    refuse_containers(cfg)
    for name, place in (("cwd", cwd), ("python", python)):
        checked(name, place)  # a directive counts wherever a line begins with one
    words = list(_directives(app, cfg, folder))
    return script(words, folder, cwd, python, lines(cfg, "setup"), _BEFORE)


def notes(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """Yield what LSF cannot be told as the app has it."""
    if (name := _clean(app.name)) != app.name:
        yield f"LSF knows it as {shorten(name)!r}: {shorten(app.name)!r} is no name there"
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
    yield from _hosts(app, cfg)
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
    goes_on = warning or any(role.max_retries for role in app.roles)
    yield _line("r" if goes_on else "rn")


def _warning(cfg: Mapping[str, CfgVal]) -> int:
    """Return how many minutes before the limit a warning comes: later than the start, or not."""
    asked = -(-count(cfg, "warn") // 60)
    limit = _minutes(text(cfg, "walltime"))[0] if text(cfg, "walltime") else asked + 1
    return min(asked, limit - 1)


def _minutes(given: str) -> tuple[int, str]:
    """Return minutes, H:MM or H:MM:SS as minutes, and what says of which host's speed they are."""
    words, slash, host = given.partition("/")
    found = re.fullmatch(r"(\d+)|(\d+):([0-5]?\d)(?::([0-5]\d))?", words)
    if not found:
        raise UserError(f"walltime: {shorten(given)!r} is no time; write minutes, H:MM or H:MM:SS")
    minutes = int(found[1] or 0) + int(found[2] or 0) * 60 + int(found[3] or 0)
    minutes += 1 if int(found[4] or 0) else 0
    if not minutes:
        raise UserError("walltime: expected a minute or more")
    return minutes, slash + host


def _hosts(app: AppDef, cfg: Mapping[str, CfgVal]) -> Iterator[str]:
    """A replica has a host; LSF is asked for slots, so many on each. All hosts are alike."""
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
    """Return what a host needs: as its role says, else one for each rank."""
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
