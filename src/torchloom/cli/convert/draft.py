"""The new text of a program while it is written: its edits, its new names, notes for its author."""

import ast

from torchloom.cli.convert.checks import StepChecks
from torchloom.cli.convert.loops import StepCount, StepLoop, StepSource, counted_by
from torchloom.cli.convert.parts import LoaderPart, PartSearch
from torchloom.cli.convert.program import Program, Scope, target_name
from torchloom.cli.convert.source import Block, NotConvertible, SourceEdits


class ConversionDraft:
    """What was found in a program, and what is written in its place."""

    def __init__(
        self,
        program: Program,
        loop: StepLoop,
        parts: PartSearch,
        count: StepCount,
        steps: StepSource,
        checks: StepChecks,
    ) -> None:
        self.program = program
        self.source = program.source
        self.loop = loop
        self.parts = parts
        self.count = count
        self.steps = steps
        self.checks = checks
        self.edits = SourceEdits(program.source)
        self.uses: list[tuple[Scope, ast.stmt]] = []  # where the run is used
        self.notes: list[tuple[int, str]] = []
        self.owned: LoaderPart | None = None  # the loader, if it becomes the run's
        self.module = program.fresh("loom", "torchloom")
        self.run = program.fresh("run", "loom_run")
        self.step = self._step_name()
        self.unit = self.source.unit(loop.outermost, loop.outermost.body[0])
        self.outer = self.source.indentation(loop.outermost)
        self.inner = self.outer + self.unit
        self.gone = [self.around(each) for each in self.epoch_calls()]
        self.gone += [steps.end] if steps.end is not None else []

    def _step_name(self) -> str:
        index = self.steps.index
        known = self.program.known - ({index} if not self.is_read(index) else set())
        return next(name for name in ("step", "train_step", "loom_step") if name not in known)

    def note(self, node: ast.AST, text: str) -> None:
        """Add a note on a line."""
        self.notes.append((int(getattr(node, "lineno", 1)), text))

    def use(self, scope: Scope, statement: ast.stmt) -> None:
        """Note that a statement uses the run, which has to begin before."""
        self.uses.append((scope, statement))

    def is_read(self, name: str) -> bool:
        """Tell whether the program reads a variable."""
        return bool(name and self.program.loads(name))

    def is_in_loop(self, node: ast.AST) -> bool:
        """Tell whether a node is in the loop over steps or epochs."""
        return any(each is self.loop.outermost for each in self.source.ancestors(node))

    # What the run does in the place of the program.

    def epoch_calls(self) -> list[ast.stmt]:
        """Return the calls of `set_epoch` in the loop."""
        calls = (call for _, call in self.program.method_calls("set_epoch"))
        return [self.source.statement(call) for call in calls if self.is_in_loop(call)]

    def around(self, statement: ast.stmt) -> ast.stmt:
        """Return the `if` that holds nothing but this statement, else the statement."""
        parent = self.source.parent(statement)
        if isinstance(parent, ast.If) and len(parent.body) == 1 and not parent.orelse:
            return parent
        return statement

    def is_mode(self, node: ast.stmt) -> bool:
        """Tell whether this is `model.train()`."""
        return (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value) == f"{self.parts.model.name}.train()"
        )

    @property
    def modes(self) -> Block:
        """The calls of `model.train()` at the beginning of an epoch."""
        return [each for each in self.loop.prologue if self.is_mode(each)]

    @property
    def prologue(self) -> Block:
        """What an epoch does before its steps; nothing if it only switches to training."""
        kept = [each for each in self.loop.prologue if each not in self.gone]
        return [] if all(map(self.is_mode, kept)) else kept

    # Epochs, and the steps of one.

    @property
    def epoch_name(self) -> str:
        """The variable with the number of the epoch."""
        target = self.loop.epoch.target if self.loop.epoch is not None else None
        name = target.id if isinstance(target, ast.Name) else ""
        return self.program.fresh("epoch", "loom_epoch") if name in ("", "_") else name

    def epochs(self) -> tuple[str, str, str]:
        """Return the number of epochs, the first one, and the distance of two."""
        loop = self.loop.epoch
        given = loop.iter if loop is not None else None
        is_named = loop is not None and isinstance(loop.target, ast.Name)
        if not isinstance(given, ast.Call) or not is_named or ast.unparse(given.func) != "range":
            why = "epochs have to be counted by range(): write `for epoch in range(EPOCHS)`"
            raise NotConvertible(loop or 1, why)
        if len(given.args) > 1 and isinstance(given.args[0], ast.Name):
            given = self._with_literal(given, given.args[0])
        return counted_by(given, self.operand, self.text_of)

    def _with_literal(self, given: ast.Call, name: ast.Name) -> ast.Call:
        """Return `range(...)` with the number that its start is set to, as it is on a new run."""
        resume = self.parts.resume
        gone = set(ast.walk(resume.block)) if resume else set()
        stores = [n for n in self.program.stores(name.id, self.loop.scope) if n not in gone]
        values = [
            each.value
            for node in stores
            if isinstance(each := self.source.statement(node), ast.Assign)
            and target_name(each) == name.id
        ]
        if len(stores) != 1 or len(values) != 1 or not isinstance(values[0], ast.Constant):
            at = next((n for n in stores[1:] if hasattr(n, "lineno")), name)
            why = f"`{name.id}` continues from a file of the program; run.steps resumes by itself"
            raise NotConvertible(at, f"{why}: remove that, and begin with 0")
        return ast.Call(given.func, [values[0], *given.args[1:]], [])

    def operand(self, node: ast.expr) -> str:
        """Return the text of an expression that a sign may stand beside."""
        text = self.text_of(node)
        return text if isinstance(node, ast.Name | ast.Constant | ast.Attribute) else f"({text})"

    def text_of(self, node: ast.expr) -> str:
        """Return the text of an expression, also of one that was made here."""
        return self.source.segment(node) if hasattr(node, "end_lineno") else ast.unparse(node)

    def length(self) -> str:
        """Return the number of steps of an epoch."""
        return f"len({self.steps.loader})" if self.steps.loader else self.steps.text

    def epoch_value(self) -> str:
        """Return the value of the variable with the epoch, in a step."""
        _, first, every = self.epochs()
        return _progression(f"{self.step}.epoch", first, every)

    def index_value(self) -> str:
        """Return the value of the variable with the number of a step within its epoch."""
        steps, step = self.steps, self.step
        if self.loop.epoch is None:
            number = f"{step}.number"
        else:
            number = f"{step}.number % {self.length()}" if steps.loader else f"{step}.batch"
        return _progression(number, steps.first, steps.every)

    def epoch_end(self) -> str:
        """Return the condition for the last step of an epoch."""
        if self.owned is not None:
            return f"{self.steps.loader}.is_epoch_done"
        if self.steps.loader:
            return f"({self.step}.number + 1) % {self.length()} == 0"
        return f"{self.step}.batch + 1 == {self.steps.text}"


def _progression(number: str, first: str, every: str) -> str:
    """Return the value of a variable that begins at `first` and grows by `every`."""
    grown = number if every == "1" else f"{every} * {number}"
    if every != "1" and " " in number:
        grown = f"{every} * ({number})"
    if first == "0":
        return grown
    return f"{grown} + {first}" if every == "1" else f"{first} + {grown}"
