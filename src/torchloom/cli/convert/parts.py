"""Find the parts of a training: its model, optimizer, schedulers, loader, and saved state."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchloom.cli.convert.loops import BY_HAND, Loop, LoopSearch, StepLoop, is_backward
from torchloom.cli.convert.program import (
    Function,
    Program,
    Scope,
    is_store,
    names_in,
    receiver,
    target_name,
)
from torchloom.cli.convert.source import Block, NotConvertible, walk_here

_OPTIONS = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "static_graph")
KEPT_OPTIONS = (*_OPTIONS, "gradient_as_bucket_view")  # of DDP, which run.wrap hands on
PLACES = ("device_ids", "output_device")  # run.wrap finds them by the parameters
_LOADER_OPTIONS = (
    *("dataset", "batch_size", "shuffle", "sampler", "num_workers", "collate_fn", "pin_memory"),
    *("drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor"),
    *("persistent_workers", "pin_memory_device", "in_order", "generator"),
)
NO_NUMBERS = "its dataset has no samples by number"
_GENERATORS = (
    *("torch.Generator", "numpy.random.default_rng", "numpy.random.RandomState", "random.Random"),
    "numpy.random.Generator",
)
_MOVES = ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "load_state_dict", "apply")


@dataclass(slots=True)
class ModelPart:
    """The model: its name, and where DDP wraps it or the run is to do so."""

    name: str
    scope: Scope
    ddp: ast.Call | None = None
    after: ast.stmt | None = None  # without DDP: the statement behind which it is wrapped
    condition: ast.If | None = None  # of which DDP was a branch


@dataclass(slots=True)
class LoaderPart:
    """A loader of torch that becomes the run's, and what belongs to it."""

    name: str
    call: ast.Call
    shuffle: str = ""  # an expression; nothing for the default of run.loader
    samplers: list[ast.stmt] = field(default_factory=list)  # statements that are taken out
    sampler: str = ""


@dataclass(slots=True)
class ResumePart:
    """What the program loads to continue, and where it saves."""

    block: ast.If
    names: set[str] = field(default_factory=set)


class PartSearch:
    """Finds the parts of the training in a loop."""

    def __init__(self, program: Program, search: LoopSearch, loop: StepLoop) -> None:
        self._program = program
        self._search = search
        self._loop = loop
        self.inside = list(walk_here(*loop.outermost.body))
        self.reached = program.reached(*loop.outermost.body)
        self.optimizer = self._optimizer()
        self.schedulers = sorted(self._schedulers())
        self.scaler = self._scaler()
        self.model = self._model()
        self.resume = self._resume()

    def _stepped(self) -> Iterator[tuple[str, ast.Call]]:
        for name, call in self._program.method_calls("step"):
            if name and call in self.reached:
                yield name, call

    def _optimizer(self) -> str:
        """Return the name of the only optimizer."""
        found: dict[str, ast.Call] = {}
        for name, call in self._stepped():
            if name in self._search.scalers and call.args and isinstance(call.args[0], ast.Name):
                found.setdefault(call.args[0].id, call)
            elif name in self._search.optimizers:
                if call.args or call.keywords:
                    why = "a step with a closure runs the model several times"
                    raise NotConvertible(call, f"{why}: {BY_HAND}")
                found.setdefault(name, call)
        if len(found) > 1:
            names = ", ".join(found)
            why = f"the loop has several optimizers ({names}), and their models are not known"
            raise NotConvertible(list(found.values())[1], f"{why}: {BY_HAND}")
        return next(iter(found))

    def _schedulers(self) -> set[str]:
        """Return what steps with the optimizer: torch's schedulers, and others made of it."""
        found = set()
        for name, _ in self._stepped():
            value = self._program.value_of(name)
            if value is None or name in self._search.scalers | {self.optimizer}:
                continue
            whole = self._program.dotted(value.func)
            if "lr_scheduler" in whole or self.optimizer in names_in(*value.args, *value.keywords):
                found.add(name)
        return found

    def _scaler(self) -> str:
        return next((name for name, _ in self._stepped() if name in self._search.scalers), "")

    def averages(self) -> list[str]:
        """Return torch's averages of the weights that the loop updates."""
        updated = self._program.method_calls("update_parameters")
        names = {name: self._program.value_of(name) for name, c in updated if c in self.reached}
        return [
            name
            for name, value in names.items()
            if value is not None and self._program.is_torch(value.func, "AveragedModel")
        ]

    # The model.

    def _model(self) -> ModelPart:
        wrapping = self._program.one_call("DistributedDataParallel")
        return self._wrapped(wrapping) if wrapping is not None else self._unwrapped()

    def _wrapped(self, call: ast.Call) -> ModelPart:
        source = self._program.source
        statement = source.statement(call)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is not call:
            why = "DistributedDataParallel is not assigned to a variable here"
            raise NotConvertible(call, f"{why}: write `model = DistributedDataParallel(model)`")
        name = target_name(statement)
        if not name or not call.args:
            why = "write `model = DistributedDataParallel(model)`, with the model first"
            raise NotConvertible(call, why)
        self._check_options(call)
        condition = source.parent(statement)
        part = ModelPart(name, source.scope(call), call)
        if isinstance(condition, ast.If) and not _is_main(condition):
            part.condition = self._condition(condition, statement, name)
        return part

    def _check_options(self, call: ast.Call) -> None:
        for each in call.keywords:
            if each.arg not in (*KEPT_OPTIONS, *PLACES):
                why = f"run.wrap cannot keep DDP's {each.arg or 'options'}: leave it out"
                raise NotConvertible(each.value, why)

    def _condition(self, node: ast.If, wrapping: ast.stmt, name: str) -> ast.If:
        """Check that a model may be wrapped without its condition: also a single process may."""
        for each in node.body:
            is_module = (
                isinstance(each, ast.Assign)
                and isinstance(each.value, ast.Attribute)
                and each.value.attr == "module"
                and names_in(each.value) == {name}
            )
            if each is not wrapping and not is_module:
                why = "run.wrap is for a single process, too, but this line is for several only"
                raise NotConvertible(each, f"{why}: move it out of the `if` that has DDP")
        for each in node.orelse:
            is_same = isinstance(each, ast.Assign) and isinstance(each.value, ast.Name)
            if not is_same:
                why = "run.wrap is right for a single process, too: remove this `else`"
                raise NotConvertible(each, why)
        return node

    def _unwrapped(self) -> ModelPart:
        found = self._candidates()
        if len(found) != 1:
            names = ", ".join(sorted(found)) or "none"
            why = f"which model is trained is not known (found: {names})"
            raise NotConvertible(self._loop.step, f"{why}: give optimizer MODEL.parameters()")
        name = found.pop()
        scope = self._scope_of(name)
        before = [
            self._program.source.statement(node)
            for node in self._program.stores(name, scope)
            if not isinstance(node, ast.arg)
        ]
        before += [each for each in self._moves(name, scope) if each not in before]
        chain = [self._in_block_of_loop(each, scope) for each in before]
        if any(one is self._loop.outermost for one in chain):
            raise NotConvertible(self._loop.step, f"the loop assigns {name}, which is its model")
        last = max(chain, key=lambda one: one.lineno, default=None)
        return ModelPart(name, scope, None, last)

    def _candidates(self) -> set[str]:
        """Return the names of models: what the optimizer has the parameters of, else is called."""
        value = self._program.value_of(self.optimizer)
        calls = _calls(value) if value is not None else iter(())
        if held := {receiver(call) for call in calls if _has_parameters(call)} - {""}:
            return held
        moded = {name for name, _ in self._program.method_calls("train", "parameters", "eval")}
        called = {
            node.func.id
            for node in self.reached
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        return moded & called - self._program.functions.keys()

    def _scope_of(self, name: str) -> Scope:
        """Return where a name of the loop is bound."""
        if self._program.is_bound_in(name, self._loop.scope):
            return self._loop.scope
        if self._program.is_bound_in(name, self._program.source.tree):
            return self._program.source.tree
        raise NotConvertible(self._loop.step, f"{name} is assigned in no place that is known here")

    def _moves(self, name: str, scope: Scope) -> Iterator[ast.stmt]:
        """Yield statements such as `model.to(device)`, after which a model may be wrapped."""
        for owner, call in self._program.method_calls(*_MOVES):
            statement = self._program.source.statement(call)
            is_before = statement.lineno < self._loop.step.lineno and isinstance(
                statement, ast.Expr
            )
            if owner == name and is_before and self._program.source.scope(call) is scope:
                yield statement

    def _in_block_of_loop(self, statement: ast.stmt, scope: Scope) -> ast.stmt:
        """Return the statement itself, or what it is in, of the blocks that the loop is in."""
        source = self._program.source
        around = set(source.ancestors(self._loop.outermost))
        if scope is not self._loop.scope:
            around = {scope}
        while (parent := source.parent(statement)) not in around and parent is not None:
            statement = source.statement(parent)
        return statement

    # Random numbers.

    def generators(self, needed: set[str]) -> list[str]:
        """Return the generators of the program's own that the loop draws from."""
        found = []
        for name in sorted(needed):
            value = self._program.value_of(name)
            while value is not None and isinstance(value.func, ast.Attribute):
                if self._program.dotted(value.func) or not isinstance(value.func.value, ast.Call):
                    break
                value = value.func.value  # torch.Generator().manual_seed(1)
            if value is not None and self._program.dotted(value.func) in _GENERATORS:
                found.append(name)
        return found

    def is_stateful(self, name: str) -> bool:
        """Tell whether a variable has an object of a class of this file with a state dict."""
        value = self._program.value_of(name)
        kind = value.func.id if value is not None and isinstance(value.func, ast.Name) else ""
        classes = [n for n in self._program.nodes if isinstance(n, ast.ClassDef) and n.name == kind]
        methods = {each.name for one in classes for each in one.body if isinstance(each, Function)}
        return {"state_dict", "load_state_dict"} <= methods

    # The loader.

    def loader(self, name: str) -> tuple[LoaderPart | None, str]:
        """Return a loader that can become the run's, or why it stays as it is."""
        call = self._program.value_of(name)
        if call is None or not self._program.is_torch(call.func, "DataLoader"):
            return None, "it is not made by DataLoader(...) in this file"
        part = LoaderPart(name, call)
        given = {each.arg: each.value for each in call.keywords}
        if (
            None in given
            or len(call.args) > 3
            or any(isinstance(a, ast.Starred) for a in call.args)
        ):
            return None, "its arguments are not all written here"
        given |= dict(zip(("dataset", "batch_size", "shuffle"), call.args, strict=False))
        odd = sorted(str(each) for each in given.keys() - set(_LOADER_OPTIONS))
        if odd:
            return None, f"run.loader has no {odd[0]}"
        if self._is_iterable(given.get("dataset")):
            return None, NO_NUMBERS
        why = self._sampled(part, given)
        return (None, why) if why else (part, "")

    def _is_iterable(self, dataset: ast.expr | None) -> bool:
        """Tell whether a dataset is of a class of this file that is an IterableDataset."""
        value = self._program.value_of(dataset.id) if isinstance(dataset, ast.Name) else dataset
        kind = value.func if isinstance(value, ast.Call) else None
        classes = (node for node in self._program.nodes if isinstance(node, ast.ClassDef))
        return isinstance(kind, ast.Name) and any(
            each.name == kind.id and "IterableDataset" in ast.unparse(each).partition(":")[0]
            for each in classes
        )

    def _sampled(self, part: LoaderPart, given: dict[str | None, ast.expr]) -> str:
        """Note how the samples are drawn; return why that cannot be kept."""
        source, sampler = self._program.source, given.get("sampler")
        shuffle = given.get("shuffle")
        part.shuffle = source.segment(shuffle) if shuffle is not None else "False"
        if isinstance(sampler, ast.Constant) or sampler is None:
            part.shuffle = "" if part.shuffle == "True" else part.shuffle
            return ""
        values: list[ast.expr] = [sampler]
        if isinstance(sampler, ast.Name):
            part.sampler = sampler.id
            every = self._program.assignments(sampler.id)
            values = [each.value for each in every if each.value is not None]
            part.samplers = [self._whole(each) for each in every]
        kinds = [kind for value in values for kind in _alternatives(value)]
        calls = [kind for kind in kinds if isinstance(kind, ast.Call)]
        known = [each for each in calls if self._program.is_torch(each.func, "DistributedSampler")]
        nothing = [kind for kind in kinds if isinstance(kind, ast.Constant) and kind.value is None]
        if not known or len(known) + len(nothing) != len(kinds):
            part.samplers = []
            return "its sampler is not torch's DistributedSampler"
        shuffled = [each.value for each in known[0].keywords if each.arg == "shuffle"]
        part.shuffle = source.segment(shuffled[0]) if shuffled else ""
        part.shuffle = "" if part.shuffle == "True" else part.shuffle
        return ""

    def _whole(self, statement: ast.stmt) -> ast.stmt:
        """Return the `if` that does nothing but assign a sampler, else the statement."""
        parent = self._program.source.parent(statement)
        if isinstance(parent, ast.If) and not _is_main(parent):
            name = target_name(statement) if isinstance(statement, ast.Assign) else ""
            both = [*parent.body, *parent.orelse]
            if all(isinstance(each, ast.Assign) and target_name(each) == name for each in both):
                return parent
        return statement

    # What the program saves and loads itself.

    def _resume(self) -> ResumePart | None:
        """Return the block in which the program continues from a file of its own."""
        loads = [
            call for call in self._program.calls if self._program.dotted(call.func) == "torch.load"
        ]
        for call in loads:
            block = self._resuming(call)
            if block is not None:
                return block
        return None

    def _resuming(self, call: ast.Call) -> ResumePart | None:
        source = self._program.source
        if source.scope(call) is not self._loop.scope:
            return None
        for node in source.ancestors(call):
            if isinstance(node, ast.If) and not _is_main(node) and not node.orelse:
                part = ResumePart(node)
                if node.lineno < self._loop.outermost.lineno and self._only_loads(node.body, part):
                    return part
        return None

    def _only_loads(self, body: Block, part: ResumePart) -> bool:
        """Tell whether a block restores what the run restores, and sets variables, no more."""
        loaded: set[str] = set()
        tracked = {self.optimizer, self.scaler, self.model.name, *self.schedulers}
        for node in body:
            if isinstance(node, ast.Assign) and (name := target_name(node)):
                part.names.add(name)
                if any(self._program.dotted(each.func) == "torch.load" for each in _calls(node)):
                    loaded.add(name)
            elif isinstance(node, ast.Delete):
                continue
            elif not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
                return False
            else:
                func = node.value.func
                is_said = "print" in ast.unparse(func) or "log" in ast.unparse(func)
                is_put = isinstance(func, ast.Attribute) and func.attr == "load_state_dict"
                owner = func.value if isinstance(func, ast.Attribute) else func
                if not is_said and not (is_put and names_in(owner) & (tracked | self._aliases())):
                    return False
        part.names -= loaded
        return bool(loaded) and any(
            names_in(node.value) & loaded
            for node in body
            if isinstance(node, ast.Assign) and target_name(node) in part.names
        )

    def _aliases(self) -> set[str]:
        """Return other names of the model, such as `raw_model`."""
        value = self.model.ddp.args[0] if self.model.ddp else None
        return {value.id} if isinstance(value, ast.Name) else set()

    def losses(self) -> list[ast.Call]:
        """Return the calls of `backward` in the loop."""
        return [node for node in self.inside if isinstance(node, ast.Call) and is_backward(node)]

    def innermost(self, node: ast.AST) -> Loop | None:
        """Return the loop inside of a step that a node is in, for parts of a batch."""
        for each in self._program.source.ancestors(node):
            if each is self._loop.step:
                return None
            if isinstance(each, Loop):
                return each
        return None

    def is_stored_in_loop(self, name: str) -> bool:
        """Tell whether the loop assigns a name."""
        return any(is_store(node) and node.id == name for node in self.inside)


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _has_parameters(call: ast.Call) -> bool:
    """Tell whether this is `model.parameters()`, or `model.configure_optimizers(...)`."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return "param" in name or name.startswith("configure")


def _alternatives(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _is_main(node: ast.If) -> bool:
    """Tell whether this is `if __name__ == "__main__":`."""
    return "__name__" in names_in(node.test)
