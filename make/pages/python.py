"""The page of the Python interface, from the source: nothing of it is imported."""

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pages.text import fence, first_sentence, prose, section

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_SPECS = (
    *("AppDef", "Role", "Resource", "RetryPolicy", "BindMount", "VolumeMount", "DeviceMount"),
    *("AppState", "AppStatus", "RoleStatus", "ReplicaStatus", "AppDryRunInfo", "Workspace"),
    *("macros", "runopts", "resource", "get_named_resources", "parse_app_handle"),
)
MODULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (  # module, what it is for, names
    ("torchloom", "In a training program: `import torchloom as loom`.", ("init", "Run")),
    (
        "torchloom.worker.run.steps",
        "What `run.steps` yields, and what it may raise.",
        ("Step",),
    ),
    (
        "torchloom.worker.dist",
        "Set-up of `torch.distributed` under any launcher, and helpers for any number of ranks.",
        (),
    ),
    ("torchloom.client", "The plane's HTTP interface as an object.", ()),
    ("torchloom.runner", "Plan, submit, watch and cancel apps on any engine.", ()),
    (
        "torchloom.specs",
        "What an app is. Names, fields and meanings are those of `torchx.specs`.",
        _SPECS,
    ),
    (
        "torchloom.specs.jobspec",
        "The fields of [a job file](job-spec.md), as objects.",
        ("JobSpec",),
    ),
    ("torchloom.schedulers", "Where an app can run.", ("get_schedulers", "get_scheduler")),
    (
        "torchloom.schedulers.api",
        "The base class of engines.",
        ("Scheduler", "DescribeAppResponse"),
    ),
    ("torchloom.components.dist", "Built-in components that start several ranks.", ("ddp", "spmd")),
    (
        "torchloom.components.utils",
        "Built-in components that run one command.",
        ("echo", "sh", "touch", "python", "copy", "booth", "binary", "hydra"),
    ),
)
_ABOUT = """\
Import each name from the module in whose section it is described. `import torchloom` does not
import torch; `init` does. Names that are not listed here may change without notice."""


@dataclass(frozen=True, slots=True)
class Found:
    """A definition, and the module that has it."""

    module: str
    node: Node


def page() -> str:
    """Return the page."""
    return section("# Python", _ABOUT, *(_module(*each) for each in MODULES))


def _module(module: str, about: str, names: tuple[str, ...]) -> str:
    wanted = names or exported(module)
    found = [(name, find(module, name)) for name in wanted]
    return section(
        f"## {module}",
        about,
        *(_definition(name, each) for name, each in found if each is not None),
    )


def _definition(name: str, found: Found) -> str:
    if isinstance(found.node, ast.ClassDef):
        return section(*_class(name, found))
    return section(f"### {name}", _signature(found.node), prose(ast.get_docstring(found.node)))


def _class(name: str, found: Found) -> Iterator[str]:
    yield f"### {name}"
    yield prose(ast.get_docstring(found.node))
    if shown := _fields(found.node):
        yield fence("python", "\n".join([f"class {name}:", *(f"    {each}" for each in shown)]))
    for _, method in sorted(_methods(found).items(), key=lambda item: item[0] != "__init__"):
        if method.name == "__init__":
            continue
        is_property = any(ast.unparse(each) == "property" for each in method.decorator_list)
        yield f"#### {name}.{method.name}"
        yield _signature(method, is_property)
        yield prose(ast.get_docstring(method))


def _written(node: ast.AST) -> str:
    """Return source with the quotes that people write."""
    text = ast.unparse(node)
    return text if '"' in text else text.replace("'", '"')


def _fields(node: Node) -> list[str]:
    """Return the public fields of a class, with types and defaults."""
    rows = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    kept = [each for each in rows if not ast.unparse(each.target).startswith("_")]
    return [_written(each) for each in kept]


def _methods(found: Found) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the public methods by name, those of bases in this package among them."""
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {}
    assert isinstance(found.node, ast.ClassDef)
    for base in found.node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        above = find(found.module, name)
        if above is not None and isinstance(above.node, ast.ClassDef):
            methods |= _methods(above)
    for each in found.node.body:
        if isinstance(each, _FUNCTION) and not each.name.startswith("_") and not _sets(each):
            methods[each.name] = each
    return methods


def _sets(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).endswith(".setter") for each in node.decorator_list)


def _signature(node: Node, is_property: bool = False) -> str:
    assert isinstance(node, _FUNCTION)
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {_written(node.returns)}" if node.returns else ""
    if is_property:
        return fence("python", f"@property\n{word} {node.name}(self){returns}: ...")
    line = f"{word} {node.name}({_written(node.args)}){returns}: ..."
    if len(line) > 100:
        inner = "".join(f"    {each},\n" for each in _arguments(node.args))
        line = f"{word} {node.name}(\n{inner}){returns}: ..."
    return fence("python", line)


def _arguments(args: ast.arguments) -> list[str]:
    """Return arguments one by one, by taking each out of a list of its own."""
    shown: list[str] = []
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    for at, (each, default) in enumerate(zip(plain, defaults, strict=True)):
        shown.append(_argument(each, default))
        if args.posonlyargs and at == len(args.posonlyargs) - 1:
            shown.append("/")
    if args.vararg:
        shown.append(f"*{_written(args.vararg)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [_argument(*each) for each in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return [*shown, f"**{_written(args.kwarg)}"] if args.kwarg else shown


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return _written(argument)
    equals = " = " if argument.annotation else "="
    return f"{_written(argument)}{equals}{_written(default)}"


def exported(module: str) -> tuple[str, ...]:
    """Return the names in a module's `__all__`."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def find(module: str, name: str) -> Found | None:
    """Return the definition of a name, wherever the module has it from."""
    for node in _statements(_tree(module).body):
        if isinstance(node, Node) and node.name == name:
            return Found(module, node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchloom"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(str(node.module), alias.name)
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        yield node
        if isinstance(node, ast.If):
            yield from _statements(node.body)


@cache
def _tree(module: str) -> ast.Module:
    source = importlib.util.find_spec("torchloom")
    assert source is not None
    assert source.submodule_search_locations
    folder = Path(source.submodule_search_locations[0]).joinpath(*module.split(".")[1:])
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    return ast.parse(path.read_text())


def attributes(module: str, name: str) -> list[tuple[str, str, str, str]]:
    """Return the fields of a dataclass: name, type, default, and the docstring below it."""
    found = find(module, name)
    assert found is not None, f"{module} has no {name}"
    rows: list[tuple[str, str, str, str]] = []
    body = found.node.body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            default = ast.unparse(node.value) if node.value else ""
            doc = _text(following)
            rows.append((ast.unparse(node.target), ast.unparse(node.annotation), default, doc))
    return rows


def _text(node: ast.stmt | None) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return " ".join(str(node.value.value).split()) if is_text else ""  # type: ignore[union-attr]


def summary(module: str, name: str) -> str:
    """Return the first sentence of a definition's docstring."""
    found = find(module, name)
    return first_sentence(ast.get_docstring(found.node) or "") if found else ""
