"""From the text of a program to a plan: its text with torchLoom's API, or the lines in the way."""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.cli.convert import limits
from torchloom.cli.convert.checks import StepChecks
from torchloom.cli.convert.draft import ConversionDraft
from torchloom.cli.convert.loop_edits import LoopEdits
from torchloom.cli.convert.loops import LoopSearch, StepCount
from torchloom.cli.convert.parts import PartSearch
from torchloom.cli.convert.program import Program
from torchloom.cli.convert.setup_edits import SetupEdits
from torchloom.cli.convert.source import NotConvertible, SourceEdits, SourceText, last_line

_REPLACED = ("DistributedDataParallel", "DistributedSampler", "DataLoader")  # by the run


@dataclass(frozen=True, slots=True)
class LineNote:
    """What the author of a program is to know, or to do, about a line of it."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion would change; nothing where a line is refused."""

    old: str
    new: str
    notes: tuple[LineNote, ...] = ()
    refused: tuple[LineNote, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Tell whether something is to be converted; a program with run.steps is converted."""
        return bool(self.refused) or self.old != self.new


def convert(text: str, project: str) -> ConversionPlan:
    """Return the plan for the text of a program; `project` is given to `loom.init`."""
    try:
        program = Program(SourceText(text))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        return _refused(text, [NotConvertible(line, f"this is not Python: {error.args[0]}")])
    if limits.is_converted(program):
        return ConversionPlan(text, text)
    if found := limits.refusals(program):
        return _refused(text, found)
    try:
        return _converted(program, project)
    except NotConvertible as error:
        return _refused(text, [error])


def _converted(program: Program, project: str) -> ConversionPlan:
    limits.refuse_partly_converted(program)
    search = LoopSearch(program)
    loop = search.found()
    parts = PartSearch(program, search, loop)
    resume = {parts.resume.block} if parts.resume else set()
    count = StepCount(program, loop, set(resume))
    steps = count.source()
    checks = StepChecks(program, search, loop, parts, count, steps)
    draft = ConversionDraft(program, loop, parts, count, steps, checks)
    _write(draft, project)
    text = _with_imports(draft.edits.applied(), program, draft.module)
    ast.parse(text)  # a result that is no Python is a bug, and is never written
    notes = [LineNote(line, words) for line, words in sorted(draft.notes)]
    return ConversionPlan(program.source.text, text, tuple(notes))


def _write(draft: ConversionDraft, project: str) -> None:
    setup = SetupEdits(draft)
    setup.write_loader()
    setup.write_model()
    setup.write_resume()
    LoopEdits(draft).write()
    setup.write_tracked()
    setup.write_init(project)
    setup.note_rest()


def _refused(text: str, found: Sequence[NotConvertible]) -> ConversionPlan:
    refused = tuple(LineNote(one.line, one.why) for one in found)
    return ConversionPlan(text, text, (), refused)


def _with_imports(text: str, program: Program, name: str) -> str:
    """Return the text with torchloom imported under a name."""
    source = SourceText(text)
    edits = SourceEdits(source)
    line = "import torchloom" if name == "torchloom" else f"import torchloom as {name}"
    edits.insert_lines(_last_import(source) + 1, "", line)
    used = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom):
            _drop_unused(node, used, program, edits, source)
    return edits.applied()


def _last_import(source: SourceText) -> int:
    """Return the line of the last import before functions and classes; else of the docstring."""
    found = 0
    for at, node in enumerate(source.tree.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            break
        is_docstring = (
            at == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )
        if isinstance(node, ast.Import | ast.ImportFrom) or is_docstring:
            found = last_line(node)
    return found


def _drop_unused(
    node: ast.ImportFrom,
    used: set[str],
    program: Program,
    edits: SourceEdits,
    source: SourceText,
) -> None:
    """Take out names of torch that only replaced lines had used."""
    gone = [
        alias
        for alias in node.names
        if alias.name in _REPLACED
        and str(node.module).startswith("torch.")
        and (name := alias.asname or alias.name) not in used
        and program.loads(name)
    ]
    kept = [alias for alias in node.names if alias not in gone]
    if gone and not kept and source.owns_its_lines(node):
        edits.delete(node)
    elif gone and kept:
        names = ", ".join(
            f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in kept
        )
        edits.replace_node(node, f"from {node.module} import {names}")
