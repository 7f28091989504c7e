"""What the names of a program mean: imports, functions, who assigns and who uses a name."""

import ast
import builtins
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TypeGuard

from torchloom.cli.convert.source import NotConvertible, SourceText, walk_here

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
Function = ast.FunctionDef | ast.AsyncFunctionDef
Assignment = ast.Assign | ast.AnnAssign
_COLLECTIVE_MODULES = ("torch.distributed.",)
_NOT_COLLECTIVE = (
    *("get_rank", "get_world_size", "is_initialized", "is_available", "get_backend"),
    *("is_torchelastic_launched", "is_nccl_available", "is_gloo_available", "get_node_local_rank"),
)
_EVALUATIONS = ("evaluate", "validate", "eval", "test", "predict", "score")
_BUILTINS = frozenset(dir(builtins))


class Program:
    """A program and its names."""

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.nodes = list(ast.walk(source.tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.imports = dict(_imports(self.nodes))

    # Names.

    def dotted(self, node: ast.AST) -> str:
        """Return the full name of what an expression refers to by imports; else nothing."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.imports:
            return ""
        return ".".join([self.imports[node.id], *reversed(parts)])

    def is_torch(self, node: ast.AST, *names: str) -> bool:
        """Tell whether an expression is something of torch with one of these last names."""
        whole = self.dotted(node)
        return whole.startswith("torch.") and whole.rpartition(".")[2] in names

    @cached_property
    def known(self) -> frozenset[str]:
        """Every identifier of the program."""
        names = {node.id for node in self.nodes if isinstance(node, ast.Name)}
        names |= {node.arg for node in self.nodes if isinstance(node, ast.arg)}
        names |= {node.name for node in self.nodes if isinstance(node, Function | ast.ClassDef)}
        return frozenset(names | self.imports.keys())

    def fresh(self, *candidates: str) -> str:
        """Return the first of these names that the program does not use."""
        return next(name for name in candidates if name not in self.known)

    @cached_property
    def functions(self) -> dict[str, Function]:
        """The functions of the program by name; of two with one name, none."""
        found: dict[str, Function] = {}
        twice = set()
        for node in self.nodes:
            if isinstance(node, Function):
                twice |= {node.name} & found.keys()
                found[node.name] = node
        return {name: one for name, one in found.items() if name not in twice}

    # Who assigns, who uses.

    def assignments(self, name: str) -> list[Assignment]:
        """Return the statements that assign a single name, wherever they are."""
        return [
            node
            for node in self.nodes
            if isinstance(node, Assignment) and target_name(node) == name and node.value is not None
        ]

    def value_of(self, name: str) -> ast.Call | None:
        """Return the call whose result a name has, if one statement alone assigns it."""
        found = self.assignments(name)
        value = found[0].value if len(found) == 1 else None
        return value if isinstance(value, ast.Call) else None

    def stores(self, name: str, scope: Scope) -> list[ast.AST]:
        """Return the nodes of a scope that bind a name, parameters among them."""
        return [
            node
            for node in (*walk_here(*scope.body), *_parameters(scope))
            if (is_store(node) and node.id == name)
            or (isinstance(node, ast.arg) and node.arg == name)
        ]

    def is_bound_in(self, name: str, scope: Scope) -> bool:
        """Tell whether a scope binds a name."""
        return bool(self.stores(name, scope))

    def loads(self, name: str) -> list[ast.Name]:
        """Return where a name is read."""
        return [
            node
            for node in self.nodes
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]

    def method_calls(self, *names: str) -> Iterator[tuple[str, ast.Call]]:
        """Yield calls `NAME.method(...)` of these methods, with the name before the dot."""
        for call in self.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr in names:
                yield receiver(call), call

    # What functions do, and those they call.

    def reached(self, *nodes: ast.AST) -> list[ast.AST]:
        """Return all nodes in these, and in the functions of the program that they call."""
        found: list[ast.AST] = []
        seen: set[str] = set()
        left = list(nodes)
        while left:
            here = list(walk_here(left.pop()))
            found += here
            for node in here:
                name = node.id if isinstance(node, ast.Name) else ""
                if name in self.functions and name not in seen and not is_store(node):
                    seen.add(name)
                    left += self.functions[name].body
        return found

    def free_names(self, name: str) -> set[str]:
        """Return what a function, and those it calls, read from outside of themselves."""
        found: set[str] = set()
        seen: set[str] = set()
        left = [name]
        while left:
            one = left.pop()
            if one in seen or one not in self.functions:
                continue
            seen.add(one)
            function = self.functions[one]
            outer = self.outer_names(function)
            own = {node.id for node in ast.walk(function) if is_store(node)} - outer
            free = names_in(*function.body) - own - {each.arg for each in _parameters(function)}
            found |= free
            left += free
        return found

    @staticmethod
    def outer_names(function: Function) -> set[str]:
        """Return the names that a function declares as `global` or `nonlocal`."""
        nodes = (node for node in ast.walk(function) if isinstance(node, ast.Global | ast.Nonlocal))
        return {name for node in nodes for name in node.names}

    def is_collective(self, model: Iterable[str], *nodes: ast.AST) -> bool:
        """Tell whether what runs here may wait for other ranks.

        The forward pass of a wrapped model may: DDP shares its buffers. So may a function of
        another file that is given the model.
        """
        models = set(model)
        calls = [node for node in self.reached(*nodes) if isinstance(node, ast.Call)]
        return any(self._may_wait(call, models) for call in calls)

    def _may_wait(self, call: ast.Call, models: set[str]) -> bool:
        whole = self.dotted(call.func)
        if whole.startswith(_COLLECTIVE_MODULES):
            return whole.rpartition(".")[2] not in _NOT_COLLECTIVE
        if isinstance(call.func, ast.Name) and call.func.id in models:
            return True
        given = {each.id for each in call.args if isinstance(each, ast.Name)} & models
        if not given or whole.startswith("torch."):
            return False
        if isinstance(call.func, ast.Attribute):
            return call.func.attr in _EVALUATIONS
        function = self.functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        return function is None or self._runs_an_argument(function)

    def hands_out(self, name: str, call: ast.Call) -> bool:
        """Tell whether a call gives a variable to a function of another file."""
        given = {each.id for each in call.args if isinstance(each, ast.Name)}
        is_ours = isinstance(call.func, ast.Name) and call.func.id in self.functions
        return name in given and not is_ours and not self.dotted(call.func).startswith("torch.")

    def _runs_an_argument(self, function: Function) -> bool:
        """Tell whether a function calls what it was given, or hands it on."""
        given = {each.arg for each in _parameters(function)}
        calls = (node for node in walk_here(*function.body) if isinstance(node, ast.Call))
        named = ((call.func.id, call) for call in calls if isinstance(call.func, ast.Name))
        return any(
            name in given
            or any(isinstance(each, ast.Name) and each.id in given for each in call.args)
            for name, call in named
            if name not in _BUILTINS
        )

    def one_call(self, *names: str) -> ast.Call | None:
        """Return the only call of a function of torch with this last name; None without one."""
        found = [call for call in self.calls if self.is_torch(call.func, *names)]
        if len(found) > 1:
            why = f"{names[0]} is called a second time: only one model is understood"
            raise NotConvertible(found[1], f"{why}; `loom docs convert-nanogpt` shows how by hand")
        return found[0] if found else None


def target_name(node: Assignment) -> str:
    """Return the name that a statement assigns; nothing for several or other targets."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    only = targets[0] if len(targets) == 1 else None
    return only.id if isinstance(only, ast.Name) else ""


def receiver(call: ast.Call) -> str:
    """Return the name before the dot of a method call; nothing for anything else."""
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return value.id if isinstance(value, ast.Name) else ""


def is_store(node: ast.AST) -> TypeGuard[ast.Name]:
    """Tell whether a name is assigned or deleted here."""
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def names_in(*nodes: ast.AST) -> set[str]:
    """Return the names that are read here."""
    found = (node for part in nodes for node in ast.walk(part))
    return {node.id for node in found if isinstance(node, ast.Name) and not is_store(node)}


def _parameters(scope: Scope) -> list[ast.arg]:
    if isinstance(scope, ast.Module):
        return []
    return [node for node in ast.walk(scope.args) if isinstance(node, ast.arg)]


def _imports(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
