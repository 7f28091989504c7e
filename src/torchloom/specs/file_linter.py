"""Check component functions from their source alone, before any of a user's code runs."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchloom.errors import nearest
from torchloom.specs.arguments import SUPPORTED
from torchloom.specs.arguments import get_fn_docstring as get_fn_docstring

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

# Any other bare name may be an alias of a supported type, which only running the file can tell.
UNSUPPORTED_NAMES = frozenset(
    {"Any", "Callable", "bytearray", "bytes", "complex", "frozenset", "object", "set", "type"}
)


@dataclass
class LinterMessage:
    """One thing that keeps a function from being a component, and what to do about it."""

    name: str
    description: str
    line: int
    char: int
    severity: str = "error"
    path: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f"{self.path}{line}: " if self.path else ""
        return place + "; ".join(part for part in (self.description, self.remedy) if part)


class ComponentFunctionValidator:
    """A rule about one function; a subclass states its own, this class applies all of ours."""

    def validate(self, app_specs_func_def: FunctionNode) -> list[LinterMessage]:
        """Return what is wrong with the function, nothing when it may be a component."""
        return [
            message for rule in standard_rules() for message in rule.validate(app_specs_func_def)
        ]

    def check(self, path: str, component_function: str) -> list[LinterMessage]:
        """Apply this rule to one function of a file; each message knows its file."""
        return validate(path, component_function, [self])

    def _gen_linter_message(
        self, description: str, lineno: int, remedy: str = "", char: int = 0
    ) -> LinterMessage:
        return LinterMessage(type(self).__name__, description, lineno, char, remedy=remedy)


class ArgTypeValidator(ComponentFunctionValidator):
    """Every argument has a type annotation, of a type that a command line can carry."""

    def validate(self, app_specs_func_def: FunctionNode) -> list[LinterMessage]:
        """Return one message per argument that cannot be used."""
        where = f"component {app_specs_func_def.name!r}"
        args = app_specs_func_def.args
        starred = [args.vararg] if args.vararg else []
        messages = []
        for arg in (*args.posonlyargs, *args.args, *starred, *args.kwonlyargs):
            if arg.annotation is None:
                what = f"argument {arg.arg!r} of {where} has no type"
                messages.append(
                    self._at(arg, what, f"write `{arg.arg}: str`, or one of {SUPPORTED}")
                )
            elif reason := why_unsupported(arg.annotation):
                what = f"argument {arg.arg!r} of {where}: {reason}"
                messages.append(self._at(arg, what, f"use {SUPPORTED}"))
        if args.kwarg:
            what = f"{where} takes `**{args.kwarg.arg}`, which a command line cannot fill"
            remedy = "name each argument, or take one `dict[str, str]`"
            messages.append(self._at(args.kwarg, what, remedy))
        return messages

    def _at(self, arg: ast.arg, what: str, remedy: str) -> LinterMessage:
        return self._gen_linter_message(what, arg.lineno, remedy, arg.col_offset)


class ReturnTypeValidator(ComponentFunctionValidator):
    """The function is annotated to return an AppDef."""

    def __init__(self, supported_return_type: str = "AppDef") -> None:
        self._expected = supported_return_type

    def validate(self, app_specs_func_def: FunctionNode) -> list[LinterMessage]:
        """Return a message when the return type is missing, another one, or awaited."""
        returns, name = app_specs_func_def.returns, app_specs_func_def.name
        if isinstance(app_specs_func_def, ast.AsyncFunctionDef):
            what, remedy = f"component {name!r} is async", "make it a plain `def`"
        elif returns is None:
            what = f"component {name!r} has no return annotation"
            remedy = f"write `-> {self._expected}`"
        elif _name_of(unquoted(returns)) != self._expected:
            what = f"component {name!r} returns {ast.unparse(unquoted(returns))!r}"
            remedy = f"return an {self._expected} and write `-> {self._expected}`"
        else:
            return []
        return [self._gen_linter_message(what, app_specs_func_def.lineno, remedy)]


class ComponentFnVisitor(ast.NodeVisitor):
    """Walk a module, apply rules to the function (or class with `build`) of one name."""

    def __init__(
        self,
        component_function_name: str,
        validators: list[ComponentFunctionValidator] | None = None,
    ) -> None:
        self.validators = [ComponentFunctionValidator()] if validators is None else validators
        self.component_function_name = component_function_name
        self.linter_errors: list[LinterMessage] = []
        self.visited_function = False
        self.names: list[str] = []

    def visit_FunctionDef(self, node: FunctionNode) -> None:
        """Check the function if it is the one; never look inside functions."""
        self.names.append(node.name)
        if node.name == self.component_function_name:
            self.visited_function = True
            for validator in self.validators:
                self.linter_errors += validator.validate(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Check the `build` of a class that is named as a component; it may also be inherited."""
        if node.name != self.component_function_name:
            return
        self.visited_function = True
        for method in node.body:
            if isinstance(method, FunctionNode) and method.name == "build":
                self.linter_errors += ReturnTypeValidator().validate(method)


def standard_rules() -> list[ComponentFunctionValidator]:
    """Return the rules every component has to follow."""
    return [ArgTypeValidator(), ReturnTypeValidator()]


def validate(
    path: str,
    component_function: str,
    validators: list[ComponentFunctionValidator] | None = None,
) -> list[LinterMessage]:
    """Return what keeps `component_function` of the file from being a component."""
    module = _parse(path)
    if isinstance(module, LinterMessage):
        return [module]
    return _check(module, path, component_function, validators)


def validate_all(
    path: str, validators: list[ComponentFunctionValidator] | None = None
) -> dict[str, list[LinterMessage]]:
    """Return the messages of every public function of a file, which is parsed once."""
    module = _parse(path)
    if isinstance(module, LinterMessage):
        return {"": [module]}
    visitor = ComponentFnVisitor("")
    visitor.visit(module)
    public = [name for name in visitor.names if not name.startswith("_")]
    return {name: _check(module, path, name, validators) for name in public}


def why_unsupported(hint: ast.expr) -> str:
    """Return why a type cannot come from a command line, or nothing if it can."""
    hint = unquoted(hint)
    shown = ast.unparse(hint)
    if _name_of(hint):
        return f"type {shown!r} is not supported" if _name_of(hint) in UNSUPPORTED_NAMES else ""
    alternatives = list(_alternatives(hint))
    if len(alternatives) == 1 and alternatives[0] is not hint:
        return why_unsupported(alternatives[0])
    if len(alternatives) > 1:
        return f"type {shown!r} allows more than one type"
    if not alternatives or not isinstance(hint, ast.Subscript):
        return f"{shown!r} is not a type"
    return _why_container_unsupported(hint, shown)


def _why_container_unsupported(hint: ast.Subscript, shown: str) -> str:
    container = _name_of(hint.value).lower()
    items = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
    if container == "annotated":
        return why_unsupported(items[0])
    if container not in {"dict", "list", "tuple"}:
        return f"type {shown!r} is not supported"
    if container == "dict" and len(items) != 2:
        return f"type {shown!r} needs a key and a value type"
    if container == "list" and len(items) != 1:
        return f"type {shown!r} needs exactly one element type"
    if container == "tuple" and not isinstance(hint.slice, ast.Tuple):
        return f"type {shown!r} is a tuple of one; write the type alone, or list[T]"
    if container == "dict" and _is_plain_list(items[1]):
        items = items[:1]
    if nested := next((item for item in items if not _is_plain(item)), None):
        return f"type {shown!r} holds {ast.unparse(nested)!r}, which is not a plain type"
    return ""


def _is_plain_list(item: ast.expr) -> bool:
    item = unquoted(item)
    is_list = isinstance(item, ast.Subscript) and _name_of(item.value).lower() == "list"
    return is_list and not why_unsupported(item)


def _is_plain(item: ast.expr) -> bool:
    item = unquoted(item)
    return bool(_name_of(item)) and not why_unsupported(item)


def _alternatives(hint: ast.expr) -> Iterator[ast.expr]:
    """Yield what `X | None`, `Optional[X]` and `Union[X, None]` allow apart from None."""
    hint = unquoted(hint)
    if isinstance(hint, ast.BinOp) and isinstance(hint.op, ast.BitOr):
        yield from _alternatives(hint.left)
        yield from _alternatives(hint.right)
    elif isinstance(hint, ast.Subscript) and _name_of(hint.value) in {"Optional", "Union"}:
        parts = hint.slice.elts if isinstance(hint.slice, ast.Tuple) else [hint.slice]
        for part in parts:
            yield from _alternatives(part)
    elif not (isinstance(hint, ast.Constant) and hint.value is None):
        yield hint


def unquoted(hint: ast.expr) -> ast.expr:
    """Return the expression inside a quoted annotation, or the annotation as it is."""
    if not (isinstance(hint, ast.Constant) and isinstance(hint.value, str)):
        return hint
    try:
        return ast.parse(hint.value.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return hint


def _name_of(hint: ast.expr) -> str:
    """Return the last part of a plain or dotted name, nothing for other expressions."""
    if isinstance(hint, ast.Attribute):
        return hint.attr
    return hint.id if isinstance(hint, ast.Name) else ""


def _parse(path: str) -> ast.Module | LinterMessage:
    what, line, char, remedy = "", 0, 0, "correct the file"
    try:
        return ast.parse(Path(path).read_bytes(), filename=path)
    except OSError as error:
        what, remedy = f"cannot read the file: {error.strerror}", "check the path"
    except SyntaxError as error:
        what, line, char = f"syntax error: {error.msg}", error.lineno or 0, error.offset or 0
    except (ValueError, RecursionError) as error:  # null bytes; nesting without end
        what = f"not Python source: {error}"
    return LinterMessage("syntax", what, line, char, path=path, remedy=remedy)


def _check(
    module: ast.Module,
    path: str,
    function: str,
    validators: list[ComponentFunctionValidator] | None,
) -> list[LinterMessage]:
    visitor = ComponentFnVisitor(function, validators)
    visitor.visit(module)
    if not visitor.visited_function:
        known = ", ".join(visitor.names[:10]) or "none"
        remedy = nearest(function, visitor.names) or f"functions in the file: {known}"
        what = f"no function {function!r} in the file"
        visitor.linter_errors.append(LinterMessage("name", what, 0, 0, remedy=remedy))
    for message in visitor.linter_errors:
        message.path = path
    return visitor.linter_errors
