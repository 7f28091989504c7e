"""`loom convert`: suggest the changes by which a plain loop uses torchLoom's API."""

import sys
from pathlib import Path

import click

from torchloom.cli.command import LoomCommand, examples
from torchloom.cli.output import echo_json, say


@click.command(
    "convert",
    cls=LoomCommand,
    epilog=examples("loom convert train.py", "loom convert -w train.py"),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("-w", "--write", "writes", is_flag=True, help="Change the file.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead.")
def command(file: Path, writes: bool, as_json: bool) -> int:
    """Print how the training loop of FILE would use torchLoom's API, as a diff.

    It is for plain loops: one process or DistributedDataParallel, an optimizer, a loader or data
    of the loop's own. The program is read, not run; what is not understood is refused, with the
    line. Afterwards a lost rank is replaced while the others stay, and the loss is logged.
    Trainers of transformers, Lightning and Accelerate need no conversion.
    """
    from torchloom.cli.convert.conversion import convert
    from torchloom.cli.convert.program_file import ProgramFile
    from torchloom.cli.convert.source import counted, unified_diff

    program = ProgramFile.read(file)
    plan = convert(program.text, file.stem)
    diff = unified_diff(plan.old, plan.new, str(file))
    is_written = writes and bool(diff)
    if is_written:
        program.replace(plan.new)
    if as_json:
        rows = {"refused": plan.refused, "notes": plan.notes}
        lines = {name: [{"line": o.line, "why": o.text} for o in row] for name, row in rows.items()}
        echo_json({"file": str(file), "diff": diff, "written": is_written, **lines})
        return int(bool(plan.refused))
    for one in plan.refused:
        say(f"{file}:{one.line}: {one.text}")
    if plan.refused:
        return 1
    if not plan.is_needed:
        say(f"{file}: nothing to convert, it uses run.steps")
        return 0
    if not is_written:
        sys.stdout.write(diff)  # byte for byte, for `patch`; a terminal is guarded
    for one in plan.notes:
        say(f"{file}:{one.line}: {one.text}")
    say(f"{file}: {counted(plan.old, plan.new)}; {'written' if is_written else '-w writes it'}")
    return 0
