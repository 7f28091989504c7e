"""Find the loop whose body is one step of the training, and how its steps are counted."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchloom.cli.convert.program import (
    Function,
    Program,
    Scope,
    names_in,
    receiver,
    target_name,
)
from torchloom.cli.convert.source import Block, NotConvertible, walk_here

Loop = ast.For | ast.While
Text = Callable[[ast.expr], str]
_BARS = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.trange", "tqdm.notebook.tqdm", "rich.progress.track")
BY_HAND = "convert it by hand; `loom docs convert-nanogpt` shows how"


@dataclass(frozen=True, slots=True)
class Counter:
    """A variable that each step increments by one: its value is known from the step's number."""

    name: str
    first: int
    increment: ast.AugAssign

    def value(self, number: str) -> str:
        """Return the value at the beginning of a step."""
        return f"{number} + {self.first}" if self.first else number


@dataclass(frozen=True, slots=True)
class StepLoop:
    """The loop over steps, inside of the loop over epochs if there is one."""

    step: Loop
    epoch: ast.For | None
    scope: Scope

    @property
    def outermost(self) -> Loop:
        """The statement that becomes `for step in run.steps(...)`."""
        return self.epoch or self.step

    @property
    def prologue(self) -> Block:
        """The statements of an epoch before its steps."""
        return self.epoch.body[: self.epoch.body.index(self.step)] if self.epoch else []

    @property
    def epilogue(self) -> Block:
        """The statements of an epoch after its steps."""
        return self.epoch.body[self.epoch.body.index(self.step) + 1 :] if self.epoch else []


@dataclass(frozen=True, slots=True)
class StepSource:
    """What `run.steps` is given: a loader's name, or a number of steps."""

    text: str
    loader: str = ""  # the name of a loader; nothing for a number
    batch: str = ""  # the target of a batch
    index: str = ""  # the variable with the number of a step within its epoch
    first: str = "0"  # of that variable
    every: str = "1"  # by how much it grows
    end: ast.If | None = None  # the test that ends a loop without a condition
    bar: ast.Call | None = None  # a progress bar around the loader


def is_backward(node: ast.AST) -> bool:
    """Tell whether this computes gradients."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr == "backward")
    )


class LoopSearch:
    """Finds the loop over steps by what it calls: `backward` and an optimizer's `step`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.scalers = {
            target_name(node)
            for node in program.nodes
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Call)
            and program.is_torch(node.value.func, "GradScaler")
        } - {""}
        self.optimizers = self._optimizers()

    def _optimizers(self) -> set[str]:
        program = self._program
        zeroed = {name for name, _ in program.method_calls("zero_grad")}
        found = {name for name, _ in program.method_calls("step")} & zeroed
        for name, call in program.method_calls("step"):
            if name in self.scalers and call.args and isinstance(call.args[0], ast.Name):
                found.add(call.args[0].id)
            value = program.value_of(name)
            if value is not None and _is_optimizer(program.dotted(value.func)):
                found.add(name)
        return found - {""} - self.scalers

    def is_update(self, node: ast.AST) -> bool:
        """Tell whether this is a step of an optimizer."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        name = receiver(node)
        return node.func.attr == "step" and name in self.optimizers | self.scalers

    def found(self) -> StepLoop:
        """Return the loop, or raise NotConvertible."""
        loops = [node for node in self._program.nodes if isinstance(node, Loop)]
        trains = [loop for loop in loops if self._trains(loop)]
        inner = [one for one in trains if not any(one in self._above(each) for each in trains)]
        if not inner:
            raise self._none()
        if len(inner) > 1:
            why = f"a second training loop; the first is in line {inner[0].lineno}: {BY_HAND}"
            raise NotConvertible(inner[1], why)
        loop = self._in_its_epochs(inner[0])
        self._check(loop)
        return loop

    def _above(self, node: ast.AST) -> list[Loop]:
        """Return the loops that a node is in, up to its function."""
        found = []
        for each in self._program.source.ancestors(node):
            if isinstance(each, Function):
                break
            if isinstance(each, Loop):
                found.append(each)
        return found

    def _trains(self, loop: Loop) -> bool:
        nodes = list(walk_here(*loop.body))
        return any(map(is_backward, nodes)) and any(map(self.is_update, nodes))

    def _none(self) -> NotConvertible:
        """Return why there is no loop to convert."""
        program = self._program
        backward = next((call for call in program.calls if is_backward(call)), None)
        if backward is None:
            why = "no loop that trains was found: nothing calls .backward()"
            return NotConvertible(1, f"{why}; `loom run` runs the program as it is")
        held = [call for call in program.calls if _is_held_step(call)]
        if held and not self.optimizers:
            what = ast.unparse(held[0].func)
            why = f"{what}() belongs to an object: only an optimizer in a variable is understood"
            return NotConvertible(held[0], f"{why}: {BY_HAND}")
        scope = program.source.scope(backward)
        if isinstance(scope, Function):
            why = f"the step is in {scope.name}(), the loop is not: move its lines into the loop"
            return NotConvertible(scope, why)
        why = "no loop has both .backward() and optimizer.step() in it: write them in one loop"
        return NotConvertible(backward, why)

    def _in_its_epochs(self, step: Loop) -> StepLoop:
        above = self._above(step)
        if len(above) > 1:
            raise NotConvertible(above[1], f"a loop around those over epochs and steps: {BY_HAND}")
        scope = self._program.source.scope(step)
        epoch = above[0] if above else None
        if epoch is None:
            return StepLoop(step, None, scope)
        if not isinstance(epoch, ast.For) or step not in epoch.body:
            why = "the loop over steps has to be directly in a `for epoch in range(...)`"
            raise NotConvertible(epoch, f"{why}: write it so")
        return StepLoop(step, epoch, scope)

    def _check(self, loop: StepLoop) -> None:
        """Refuse what no loop may have to become one of steps."""
        for one in [loop.step, *([loop.epoch] if loop.epoch else [])]:
            if one.orelse:
                raise NotConvertible(
                    one.orelse[0], "this loop has an `else`: write it after the loop"
                )
            if one.body[0].lineno == one.lineno:
                raise NotConvertible(one, "write the body of this loop on lines of its own")
        if isinstance(loop.scope, ast.AsyncFunctionDef):
            raise NotConvertible(loop.scope, "the loop is in an `async` function: use a plain one")
        for node in walk_here(*loop.scope.body):
            if isinstance(node, ast.Yield | ast.YieldFrom) and isinstance(loop.scope, Function):
                raise NotConvertible(node, "the loop is in a generator: write it in a function")
        self._check_calls(loop)

    def _check_calls(self, loop: StepLoop) -> None:
        """Refuse a function with the loop over batches that a loop over epochs calls."""
        scope = loop.scope
        if not isinstance(scope, Function):
            return
        for call in self._program.calls:
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            above = self._above(call) if name == scope.name else []
            if above:
                why = f"this loop calls {name}(), which has the loop over batches"
                more = "write one inside of the other, since run.steps counts through all epochs"
                raise NotConvertible(above[0], f"{why} (line {loop.step.lineno}): {more}")


def _is_optimizer(whole: str) -> bool:
    """Tell whether a full name is a class of optimizers, of torch or of another package."""
    package, _, name = whole.rpartition(".")
    return "lr_scheduler" not in package and "optim" in package and name[:1].isupper()


def _is_held_step(call: ast.Call) -> bool:
    func = call.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr == "step"
        and isinstance(func.value, ast.Attribute | ast.Subscript)
        and "opt" in ast.unparse(func.value)
    )


class StepCount:
    """How the steps of a loop are counted: by a loader, by `range`, or by a variable."""

    def __init__(self, program: Program, loop: StepLoop, ignored: set[ast.AST]) -> None:
        self._program = program
        self._loop = loop
        self._ignored = ignored  # statements that are taken out
        self.counters = self._counters()

    def _counters(self) -> dict[str, Counter]:
        """Return the variables that every step increments by one."""
        found = {}
        body = self._loop.step.body
        for at, node in enumerate(body):
            if (
                isinstance(node, ast.AugAssign)
                and isinstance(node.op, ast.Add)
                and isinstance(node.target, ast.Name)
                and isinstance(node.value, ast.Constant)
                and node.value.value == 1
                and not _may_continue(body[:at])
                and (first := self._first(node.target.id)) is not None
            ):
                found[node.target.id] = Counter(node.target.id, first, node)
        return found

    def _first(self, name: str) -> int | None:
        """Return the number that a counter begins with; None unless it is written there."""
        every = [
            node
            for node in self._program.stores(name, self._loop.scope)
            if not any(each in self._ignored for each in self._program.source.ancestors(node))
        ]
        before = [self._program.source.statement(node) for node in every[:-1]]
        if len(every) != 2 or not isinstance(before[0], ast.Assign):
            return None
        value, loop = before[0].value, self._loop.outermost
        is_literal = isinstance(value, ast.Constant) and type(value.value) is int
        is_before = before[0].lineno < loop.lineno
        return value.value if is_literal and is_before else None  # type: ignore[attr-defined]

    def source(self) -> StepSource:
        """Return what the steps are counted by."""
        step = self._loop.step
        found = self._of_while(step) if isinstance(step, ast.While) else self._of_for(step)
        stored = {
            node.id
            for each in walk_here(self._loop.outermost)
            if isinstance(node := each, ast.Name) and not isinstance(node.ctx, ast.Load)
        }
        if not found.loader and (changed := names_in(ast.parse(found.text)) & stored):
            what = sorted(changed)[0]
            why = f"the number of steps depends on {what}, which the loop changes"
            raise NotConvertible(step, f"{why}: compute it before the loop")
        return found

    def _of_while(self, step: ast.While) -> StepSource:
        """Return the number of steps of a loop that increments a variable itself."""
        test = step.test
        if isinstance(test, ast.Constant) and test.value:
            end, is_after = self._end(step)
            limit, extra = self._limit(end.test, ends=True)
            return StepSource(self._minus(limit, extra + is_after), end=end)
        limit, extra = self._limit(test, ends=False)
        return StepSource(self._minus(limit, extra))

    def _minus(self, limit: tuple[str, Counter], extra: int) -> str:
        text, counter = limit
        more = extra - counter.first
        return f"{text} {'+' if more > 0 else '-'} {abs(more)}" if more else text

    def _end(self, step: ast.While) -> tuple[ast.If, int]:
        """Return the test that ends a loop, and whether a step is done after the last count."""
        ends = [
            node
            for node in step.body
            if isinstance(node, ast.If)
            and len(node.body) == 1
            and isinstance(node.body[0], ast.Break)
            and not node.orelse
            and names_in(node.test) & self.counters.keys()
        ]
        ends = [node for node in ends if isinstance(node.test, ast.Compare)]
        if len(ends) != 1:
            why = "`while True` without one `if COUNTER >= LIMIT: break` at its end"
            raise NotConvertible(step, f"{why}: write `for COUNTER in range(LIMIT)`")
        at = step.body.index(ends[0])
        increments = [each.increment for each in self.counters.values()]
        if at and any(each not in increments for each in step.body[at + 1 :]):
            why = "the loop ends in its middle: move this test to its end or its beginning"
            raise NotConvertible(ends[0], why)
        name = next(iter(names_in(ends[0].test) & self.counters.keys()))
        is_counted = step.body.index(self.counters[name].increment) < at
        return ends[0], int(at > 0 and not is_counted)

    def _limit(self, test: ast.expr, ends: bool) -> tuple[tuple[str, Counter], int]:
        """Return the limit of a counter, and how many steps more are done than it says."""
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            left, right, kind = test.left, test.comparators[0], type(test.ops[0])
            if isinstance(left, ast.Name) and left.id in self.counters:
                known = {ast.GtE: 0, ast.Gt: 1} if ends else {ast.Lt: 0, ast.LtE: 1}
                if kind in known:
                    text = self._text(right)
                    return (text, self.counters[left.id]), known[kind]
        why = "the number of steps is not known from this condition"
        raise NotConvertible(test, f"{why}: write `for NUMBER in range(STEPS)`")

    def _text(self, node: ast.expr) -> str:
        text = self._program.source.segment(node)
        is_simple = isinstance(
            node, ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript
        )
        return text if is_simple or text.startswith("(") else f"({text})"

    def _of_for(self, step: ast.For) -> StepSource:
        target, given, bar = step.target, step.iter, None
        index, first = "", "0"
        for _ in range(3):
            if not isinstance(given, ast.Call) or not given.args:
                break
            if isinstance(given.func, ast.Name) and given.func.id == "enumerate":
                index, target, first = self._enumerated(given, target)
            elif self._program.dotted(given.func) in _BARS:
                bar = given
            else:
                break
            given = given.args[0]
        if isinstance(given, ast.Call) and ast.unparse(given.func) == "range":
            return self._of_range(given, target)
        if not isinstance(given, ast.Name):
            what = self._program.source.segment(given)
            why = f"{what} is not a variable: give the loader a name before the loop"
            raise NotConvertible(step, why)
        batch = self._program.source.segment(target)
        if isinstance(target, ast.Tuple) and len(target.elts) > 1 and batch[0] == "(":
            batch = batch[1:-1]
        return StepSource(given.id, given.id, batch, index, first, bar=bar)

    def _enumerated(self, call: ast.Call, target: ast.expr) -> tuple[str, ast.expr, str]:
        """Return the counting variable, the target of the batch, and where it begins to count."""
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            raise NotConvertible(target, "write `for NUMBER, BATCH in enumerate(LOADER)`")
        index, batch = target.elts
        starts = [*call.args[1:], *(each.value for each in call.keywords)]
        first = self._text(starts[0]) if starts else "0"
        if not isinstance(index, ast.Name):
            raise NotConvertible(target, "write `for NUMBER, BATCH in enumerate(LOADER)`")
        return index.id, batch, first

    def _of_range(self, call: ast.Call, target: ast.expr) -> StepSource:
        if not isinstance(target, ast.Name):
            raise NotConvertible(target, "a loop over range() needs one variable")
        count, first, every = counted_by(call, self._text, self._program.source.segment)
        return StepSource(count, "", "", target.id, first, every)


def counted_by(call: ast.Call, operand: Text, whole: Text) -> tuple[str, str, str]:
    """Return how many numbers `range(...)` has, the first one, and the distance of two."""
    args = call.args
    if len(args) == 1:
        return whole(args[0]), "0", "1"
    first, last = args[0], args[1]
    if len(args) == 3:
        return f"len({whole(call)})", operand(first), operand(args[2])
    if isinstance(first, ast.Constant) and first.value == 0:
        return whole(last), "0", "1"
    if (
        isinstance(last, ast.BinOp)
        and isinstance(last.op, ast.Add)
        and ast.dump(last.right) == ast.dump(first)
    ):
        return whole(last.left), operand(first), "1"
    return f"len({whole(call)})", operand(first), "1"


def _may_continue(body: Block) -> bool:
    """Tell whether a step may be left before its end and the loop be continued."""
    return any(isinstance(node, ast.Continue) for node in own_jumps(*body))


def own_jumps(*nodes: ast.AST) -> Iterator[ast.Break | ast.Continue]:
    """Yield the `break` and `continue` that belong to the loop around these statements."""
    for node in nodes:
        if isinstance(node, ast.Break | ast.Continue):
            yield node
        elif isinstance(node, Loop | ast.AsyncFor):
            yield from own_jumps(*node.orelse)
        elif not isinstance(node, Function | ast.ClassDef):
            yield from own_jumps(*ast.iter_child_nodes(node))
