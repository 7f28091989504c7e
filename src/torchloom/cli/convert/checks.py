"""What is true of the statements of a loop: which train, which wait for others, what is carried."""

import ast
from collections.abc import Iterable, Sequence

from torchloom.cli.convert import limits
from torchloom.cli.convert.flow import CarriedNames, Influence, carried_name
from torchloom.cli.convert.loops import LoopSearch, StepCount, StepLoop, StepSource, own_jumps
from torchloom.cli.convert.parts import PartSearch
from torchloom.cli.convert.program import Program, is_store, names_in, receiver
from torchloom.cli.convert.source import Block, NotConvertible, walk_here

_DRAWS = ("rand", "perm", "shuffle", "choice", "sample", "multinomial", "normal", "uniform")
_BY_OBJECT = (
    "let it follow from the step's number, or keep it in an object whose class has state_dict and"
    " load_state_dict, and change it before the forward pass"
)


class EarlyFetch:
    """A batch that is fetched before the loop, and for the next step in it."""

    def __init__(self, first: ast.Assign, again: ast.Assign, before: ast.stmt) -> None:
        self.first = first
        self.again = again
        self.before = before  # the statement that uses it
        self.names = {node.id for node in ast.walk(again) if is_store(node)}


class StepChecks:
    """Refuses a loop whose steps could not be repeated or continued by another process."""

    def __init__(
        self,
        program: Program,
        search: LoopSearch,
        loop: StepLoop,
        parts: PartSearch,
        count: StepCount,
        steps: StepSource,
    ) -> None:
        self._program = program
        self._search = search
        self._loop = loop
        self._parts = parts
        self._count = count
        body = loop.outermost.body
        limits.refuse_in_steps(program, parts.inside, self.trains)
        self._refuse_jumps(steps)
        self._carried = self._carried_reads()
        self._influence = Influence(program, body, self._carried)
        self.needed = self._influence.needed()
        self.prefetch = self._prefetched()
        self.generators = self._generators()
        self.objects: list[str] = []  # others with a state that the training depends on
        self._refuse_carried()
        self._refuse_changed()
        self._refuse_drawn_orders(loop.prologue)
        self.last = max(at for at, node in enumerate(loop.step.body) if self.trains([node]))

    # What statements do.

    def trains(self, nodes: Sequence[ast.stmt]) -> bool:
        """Tell whether statements compute gradients, or change what is trained."""
        return any(self._is_training(node) for node in self._program.reached(*nodes))

    def _is_training(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return False
        name, owner = node.func.attr, receiver(node)
        if name in ("backward", "zero_grad", "update_parameters"):
            return True
        if name == "update" and self._parts.model.name in names_in(*node.args):
            return True  # an average of the weights
        tracked = {self._parts.optimizer, self._parts.scaler, *self._parts.schedulers} - {""}
        return name in ("step", "update") and owner in tracked

    def waits(self, *nodes: ast.AST) -> bool:
        """Tell whether statements may wait for other ranks."""
        return self._program.is_collective({self._parts.model.name}, *nodes)

    def schedules(self, node: ast.stmt) -> bool:
        """Tell whether a statement changes what the next steps train with."""
        reached = self._program.reached(node)
        calls = [each for each in reached if isinstance(each, ast.Call)]
        is_stepped = any(
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "step"
            and receiver(call) in self._parts.schedulers
            for call in calls
        )
        stores = [each for each in reached if isinstance(each, ast.Subscript | ast.Attribute)]
        return is_stepped or any(
            not isinstance(each.ctx, ast.Load) and "param_groups" in ast.unparse(node)
            for each in stores
        )

    def evaluates(self, *nodes: ast.AST) -> bool:
        """Tell whether something here may switch the model to evaluation."""
        calls = [each for each in self._program.reached(*nodes) if isinstance(each, ast.Call)]
        return any(
            (isinstance(call.func, ast.Attribute) and call.func.attr == "eval")
            or self._program.hands_out(self._parts.model.name, call)
            for call in calls
        )

    # What is refused.

    def _refuse_jumps(self, steps: StepSource) -> None:
        loop = self._loop
        if loop.epoch is None:
            return
        for jump in own_jumps(*loop.step.body):
            if isinstance(jump, ast.Break):
                why = (
                    "this `break` ends an epoch, and run.steps goes through all epochs in one loop"
                )
                raise NotConvertible(jump, f"{why}: give run.steps fewer batches instead")
            if loop.epilogue:
                why = "this `continue` would leave out what follows at the end of an epoch"
                raise NotConvertible(jump, f"{why}: write an `if` instead")
        for jump in own_jumps(*loop.prologue):
            raise NotConvertible(jump, "an epoch is left before it begins: write an `if` around it")
        if self.waits(*loop.prologue):
            why = "this waits for other ranks before an epoch: move it behind the loop over batches"
            raise NotConvertible(loop.prologue[0], why)

    def _prefetched(self) -> EarlyFetch | None:
        """Return the batch that is fetched ahead; the step can fetch it when it begins."""
        inside = [node for node in self._parts.inside if isinstance(node, ast.Assign)]
        outside = [
            node
            for node in walk_here(*self._loop.scope.body)
            if isinstance(node, ast.Assign) and node.lineno < self._loop.outermost.lineno
        ]
        for again in inside:
            names = {node.id for node in ast.walk(again) if is_store(node)}
            same = [one for one in outside if ast.dump(one) == ast.dump(again)]
            if len(same) == 1 and names and all(map(self._is_carried, names)):
                before = self._first_use(again, names)
                if before is not None:
                    return EarlyFetch(same[0], again, before)
        return None

    def _first_use(self, again: ast.Assign, names: set[str]) -> ast.stmt | None:
        """Return the statement, in the block of the second fetch, that uses the first one."""
        block = self._program.source.block(again)
        for node in block[: block.index(again)]:
            if names_in(node) & names:
                return node
        return None

    def _generators(self) -> list[str]:
        """Return the generators that the steps draw from; refuse what draws too late."""
        found = [
            name
            for name in self._parts.generators(self.needed)
            if not self._parts.is_stored_in_loop(name)
        ]
        trained = False
        for node in (*self._loop.step.body, *self._loop.epilogue):
            drawn = self._influence.read_by(node) & set(found)
            if trained and drawn:
                what = sorted(drawn)[0]
                why = f"{what} draws behind the training of a step, and is carried as it was before"
                raise NotConvertible(node, f"{why}: draw with a generator of its own here")
            trained = trained or any(map(_is_backward, walk_here(node)))
        return found

    def _carried_reads(self) -> dict[ast.AST, set[str]]:
        """Return where values are read that steps or epochs carry from one to the next."""
        program, loop = self._program, self._loop
        targets = [each.target for each in (loop.step, loop.epoch) if isinstance(each, ast.For)]
        known = {node.id for each in targets for node in ast.walk(each) if is_store(node)}
        bodies = [loop.step.body, *([loop.epoch.body] if loop.epoch is not None else [])]
        found: dict[ast.AST, set[str]] = {}
        for body in bodies:
            for node, names in CarriedNames(program, body, known).reads.items():
                found[node] = found.get(node, set()) | names
        return found

    def _is_set_before(self, name: str) -> bool:
        """Tell whether a variable has a value before the first step of any process."""
        loop, program = self._loop, self._program
        first = loop.step.lineno  # the beginning of an epoch runs in each process, too
        own = program.stores(name, loop.scope)
        if any(isinstance(node, ast.arg) or getattr(node, "lineno", first) < first for node in own):
            return True
        return not own or name in program.imports or name in program.functions

    def _is_carried(self, name: str) -> bool:
        """Tell whether the training depends on a variable's value from the step before."""
        return carried_name(name) in self.needed

    def _refuse_carried(self) -> None:
        """Refuse a variable that the training needs, and that is made of earlier steps."""
        known = self._count.counters.keys() | (self.prefetch.names if self.prefetch else set())
        for node, names in self._carried.items():
            for name in sorted(names - known):
                if not self._is_set_before(name):
                    why = (
                        f"`{name}` may be read before it is assigned by a process that joins later"
                    )
                    raise NotConvertible(node, f"{why}: assign it before the loop, too")
                if self._is_carried(name):
                    why = f"`{name}` is carried from step to step, and the training depends on it"
                    more = "a process that replaces another would not have it"
                    raise NotConvertible(node, f"{why}; {more}: {_BY_OBJECT}")

    def _refuse_changed(self) -> None:
        """Refuse an object that the training needs, and that steps change in place."""
        stored = {node.id for node in ast.walk(self._loop.outermost) if is_store(node)}
        parts = self._parts
        own = {parts.model.name, parts.optimizer, parts.scaler, *parts.schedulers, *self.generators}
        changed = self._influence.changed
        for name in sorted(changed.keys() & self.needed - stored - own):
            late = self._after_training(changed[name])
            if late or not parts.is_stateful(name):
                why = f"steps change `{name}`, and the training depends on it"
                raise NotConvertible((late or changed[name])[0], f"{why}: {_BY_OBJECT}")
            self.objects.append(name)
        for name in sorted(self.needed & self._program.functions.keys()):
            function = self._program.functions[name]
            outer = Program.outer_names(function)
            kept = [node for node in ast.walk(function) if is_store(node) and node.id in outer]
            if kept:
                why = f"{name}() changes `{kept[0].id}` from step to step"
                raise NotConvertible(kept[0], f"{why}: {_BY_OBJECT}")

    def _after_training(self, places: list[ast.AST]) -> list[ast.AST]:
        """Return the places that are behind the computation of gradients."""
        lines = [call.lineno for call in self._parts.losses()]
        return [each for each in places if getattr(each, "lineno", 0) > min(lines, default=0)]

    def _refuse_drawn_orders(self, prologue: Block) -> None:
        """Refuse an order that an epoch draws by hand: it would be another one after a recovery."""
        for node in prologue:
            names = {each.id for each in ast.walk(node) if is_store(each)}
            calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
            drawn = [each for each in calls if _is_drawn(each)]
            if drawn and (names or not calls) and names & self.needed:
                why = "each epoch draws this, and a process that joins later would draw another"
                raise NotConvertible(node, f"{why}: give run.loader a dataset, or draw in the step")

    def refuse_moved(self, nodes: Iterable[ast.stmt], moved: ast.stmt) -> None:
        """Refuse to put a change of the schedule before statements that read it."""
        read = {self._parts.optimizer, *self._parts.schedulers}
        made = {each.id for node in nodes for each in ast.walk(node) if is_store(each)}
        for node in nodes:
            if names_in(node) & read or made & names_in(moved):
                why = "the schedule is changed behind what waits for other ranks, and depends on it"
                raise NotConvertible(
                    moved, f"{why}: change it in the step, before optimizer.step()"
                )


def _is_backward(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
    )


def _is_drawn(call: ast.Call) -> bool:
    """Tell whether a call draws random numbers, by no generator that is seeded here."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    is_seeded = any(
        each.arg == "generator" and "manual_seed" in ast.unparse(each.value)
        for each in call.keywords
    )
    return any(word in name for word in _DRAWS) and not is_seeded
