"""Which values a loop carries from one step into the next, and which of them the training needs.

A process that takes the place of another begins with the values from before the loop. So a value
that is carried and decides what is trained must come from the run, or the loop is refused.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence

from torchloom.cli.convert.program import Function, Program, is_store

_MUTATORS = ("append", "extend", "add", "update", "insert", "pop", "popleft", "appendleft", "clear")


class CarriedNames:
    """Finds where an iteration of a loop may read a name before it assigns it.

    `reads` has these names by place: a variable, or a function that reads one from outside.
    """

    def __init__(
        self, program: Program, body: Sequence[ast.stmt], known: Iterable[str] = ()
    ) -> None:
        self._program = program
        stored = (node for part in body for node in ast.walk(part))
        self._stored = {node.id for node in stored if is_store(node)}
        self.reads: dict[ast.AST, set[str]] = {}
        self._under: dict[str, set[str]] = {}  # by a test: what is assigned where it holds
        self._walk(body, set(known))

    def _walk(self, body: Iterable[ast.stmt], known: set[str]) -> set[str]:
        for statement in body:
            known = self._statement(statement, known)
        return known

    def _statement(self, node: ast.stmt, known: set[str]) -> set[str]:
        """Return the names that are assigned for certain after a statement."""
        if isinstance(node, ast.If):
            return self._if(node, known)
        if isinstance(node, ast.For | ast.AsyncFor):
            self._read(known, node.iter)
            return self._walk(node.body, self._assign(node.target, known))  # it runs at least once
        if isinstance(node, ast.While):
            self._read(known, node.test)
            self._walk(node.body, set(known))
            return known
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self._read(known, item.context_expr)
                known = self._assign(item.optional_vars, known)
            return self._walk(node.body, known)
        if isinstance(node, ast.Try):
            return self._try(node, known)
        if isinstance(node, ast.Match):
            self._read(known, node.subject)
            for case in node.cases:
                self._walk(case.body, set(known))
            return known
        return self._simple(node, known)

    def _if(self, node: ast.If, known: set[str]) -> set[str]:
        """Walk both branches; what the same test has assigned before is known under it again."""
        self._read(known, node.test)
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        is_all = not isinstance(node.test, ast.BoolOp) or isinstance(node.test.op, ast.And)
        keys = {ast.dump(each) for each in tests} if is_all else set()
        before = known.union(*(self._under.get(each, set()) for each in keys))
        body, orelse = self._walk(node.body, before), self._walk(node.orelse, set(known))
        self._under[ast.dump(node.test)] = set(body)
        return _joined(node.body, node.orelse, body, orelse)

    def _simple(self, node: ast.stmt, known: set[str]) -> set[str]:
        if isinstance(node, Function | ast.ClassDef):
            self._read(known, *node.body)
            return known | {node.name}
        if isinstance(node, ast.AugAssign):
            self._read(known, node.value)
            if isinstance(node.target, ast.Name):
                self._note(node.target, known)
            return self._assign(node.target, known)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            if node.value is not None:
                self._read(known, node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                known = self._assign(target, known)
            return known
        self._read(known, node)
        return known

    def _try(self, node: ast.Try, known: set[str]) -> set[str]:
        after = self._walk([*node.body, *node.orelse], set(known))
        for handler in node.handlers:
            found = self._walk(handler.body, set(known))
            after = after if _leaves(handler.body) else after & found
        return self._walk(node.finalbody, after)

    def _assign(self, target: ast.AST | None, known: set[str]) -> set[str]:
        if target is None:
            return known
        self._read(known, target)  # what it is indexed by
        stored = (node for node in ast.walk(target) if isinstance(node, ast.Name))
        return known | {node.id for node in stored if is_store(node)}

    def _read(self, known: set[str], *nodes: ast.AST) -> None:
        for part in nodes:
            own = {node.id for node in ast.walk(part) if is_store(node)}
            for node in ast.walk(part):
                if isinstance(node, ast.Name) and not is_store(node) and node.id not in own:
                    self._note(node, known)

    def _note(self, node: ast.Name, known: set[str]) -> None:
        names = {node.id} | self._program.free_names(node.id)
        if carried := names & self._stored - known:
            self.reads[node] = carried


def _joined(
    body: Sequence[ast.stmt], orelse: Sequence[ast.stmt], one: set[str], other: set[str]
) -> set[str]:
    """Return what is assigned after one of two branches; one that leaves does not count."""
    if _leaves(body):
        return other
    return one if _leaves(orelse) else one & other


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)


class Influence:
    """What each name of a loop is made of, and so what the training depends on.

    A name with `@` is the value that a step has from the one before.
    """

    def __init__(
        self, program: Program, body: Sequence[ast.stmt], carried: Mapping[ast.AST, set[str]]
    ) -> None:
        self._program = program
        self._carried = carried
        self._made_of: dict[str, set[str]] = {}
        self.seeds: set[str] = set()
        self.changed: dict[str, list[ast.AST]] = {}  # objects that are changed in place, and where
        self._walk(body, set(), is_inner=False)

    def needed(self, seeds: Iterable[str] = ()) -> set[str]:
        """Return the names that these, and the training, depend on."""
        found: set[str] = set()
        left = [*self.seeds, *seeds]
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += self._made_of.get(name, ())
        return found

    def read_by(self, *nodes: ast.AST) -> set[str]:
        """Return the names that are read here, and by the functions that are called here."""
        found: set[str] = set()
        for part in nodes:
            for node in ast.walk(part):
                if isinstance(node, ast.Name) and not is_store(node):
                    found |= self._named(node)
        return found

    def _named(self, node: ast.Name) -> set[str]:
        names = {node.id} | self._program.free_names(node.id)
        carried = self._carried.get(node, set())
        return {carried_name(name) if name in carried else name for name in names}

    def _walk(self, body: Iterable[ast.stmt], conditions: set[str], is_inner: bool) -> None:
        for node in body:
            self._statement(node, conditions, is_inner)

    def _statement(self, node: ast.stmt, conditions: set[str], is_inner: bool) -> None:
        for part in _own_parts(node):
            self._expression(part, conditions)
        if isinstance(node, ast.Break | ast.Continue | ast.Return) and not (
            is_inner and isinstance(node, ast.Break | ast.Continue)
        ):
            self.seeds |= conditions
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._store(node, conditions)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._make(node.target, self.read_by(node.iter) | conditions)
        elif isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None:
                    self._make(item.optional_vars, self.read_by(item.context_expr) | conditions)
        tests = [getattr(node, name) for name in ("test", "iter", "subject") if hasattr(node, name)]
        inner = conditions | self.read_by(*tests) if tests else conditions
        is_inner = is_inner or isinstance(node, ast.For | ast.While | ast.AsyncFor)
        for block in _blocks(node):
            self._walk(block, inner, is_inner)

    def _store(
        self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, conditions: set[str]
    ) -> None:
        found = set(conditions) if node.value is None else self.read_by(node.value) | conditions
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found |= self._named(node.target)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._make(target, found)
            self._note_change(target)
            if "param_groups" in ast.unparse(target) or _indexes_group(target):
                self.seeds |= found

    def _make(self, target: ast.AST, found: set[str]) -> None:
        """Note what the names of a target are made of; what it is indexed by counts, too."""
        names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        for name in names:
            self._made_of.setdefault(name, set()).update(found | names - {name})

    def _expression(self, part: ast.AST, conditions: set[str]) -> None:
        for node in ast.walk(part):
            if isinstance(node, ast.NamedExpr):
                self._make(node.target, self.read_by(node.value) | conditions)
            if not isinstance(node, ast.Call):
                continue
            kind = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            given = self.read_by(*node.args, *(each.value for each in node.keywords))
            if kind in ("backward", "step", "unscale_", "zero_grad"):
                self.seeds |= given | conditions | self.read_by(node.func)
            elif "clip_grad" in ast.unparse(node.func):
                self.seeds |= given | conditions
            elif kind in _MUTATORS and isinstance(node.func, ast.Attribute):
                self._make(node.func.value, given | conditions)
                self._note_change(node.func)

    def _note_change(self, target: ast.AST) -> None:
        base = target
        while isinstance(base, ast.Attribute | ast.Subscript):
            base = base.value
        if base is not target and isinstance(base, ast.Name):
            self.changed.setdefault(base.id, []).append(target)


def carried_name(name: str) -> str:
    """Return what the value of a name from the step before is called."""
    return f"{name}@"


def _own_parts(node: ast.stmt) -> list[ast.AST]:
    """Return the expressions of a statement, without those of statements in it."""
    return [
        part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr | ast.withitem)
    ]


def _blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(node, Function | ast.ClassDef):
        return []
    blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [each.body for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
    return [block for block in blocks if block]


def _indexes_group(target: ast.AST) -> bool:
    """Tell whether this sets a value of an optimizer's group, as `group["lr"] = lr` does."""
    key = target.slice if isinstance(target, ast.Subscript) else None
    return isinstance(key, ast.Constant) and key.value in (
        "lr",
        "weight_decay",
        "momentum",
        "betas",
    )
