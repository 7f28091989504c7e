"""Components by name, and what can be wrong with one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from torchloom.errors import LoomError, NotFound, UserError, shorten
from torchloom.specs.api import AppDef
from torchloom.specs.arguments import get_fn_docstring
from torchloom.torchx.names import torchx_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from torchloom.specs.file_linter import ComponentFunctionValidator

BUILTINS: Mapping[str, tuple[str, ...]] = {
    "dist": ("ddp", "loom", "spmd"),
    "utils": ("binary", "copy", "echo", "python", "sh", "touch"),
}
GROUPS = ("torchloom.components", "torchx.components")


Validators = list["ComponentFunctionValidator"] | None


class ComponentNotFoundException(NotFound):
    """Nothing has this component name."""

    code = "component_not_found"

    def __init__(self, name: str, known: Iterable[str] = (), remedy: str = "") -> None:
        super().__init__("component", name, known, remedy)


class ComponentValidationException(UserError):
    """The function exists, but cannot be used as a component."""

    code = "component_invalid"

    def __init__(self, name: str, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n  {problem}" for problem in self.problems)
        super().__init__(f"component {shorten(name)} cannot be used:{lines}")


@dataclass(frozen=True)
class Component:
    """A function that makes an app, and where it comes from."""

    name: str
    fn: Callable[..., AppDef]
    source: str = "built-in"
    validation_errors: list[str] = field(default_factory=list)

    @property
    def fn_name(self) -> str:
        """The function's own name."""
        return self.fn.__name__

    @property
    def description(self) -> str:
        """The description in the function's docstring."""
        return get_fn_docstring(self.fn)[0]


def with_torchx_names(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function so that its calls, too, find torchloom under TorchX's names."""

    @wraps(fn, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        with torchx_names():
            return fn(*args, **kwargs)

    return call


def original(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that wrappers were put around."""
    from inspect import unwrap

    inner: Callable[..., Any] = unwrap(fn)
    return inner


@dataclass
class Catalog:
    """All components by name, and what could not be one: entry point -> why."""

    components: dict[str, Component] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def add(self, component: Component) -> None:
        """Add a component; the first of a name stays, and the second is reported."""
        first = self.components.setdefault(component.name, component)
        if original(first.fn) is not original(component.fn):
            self.broken[f"{component.name} ({component.source})"] = (
                f"the name is taken by a component that is {first.source}; rename the entry point"
            )


def find_components(validators: Validators = None) -> Catalog:
    """Return built-in and installed components, and the entry points that do not work."""
    catalog = Catalog()
    for module, names in BUILTINS.items():
        for name in names:
            catalog.add(Component(f"{module}.{name}", builtin(module, name)))
    for entry in installed_entry_points():
        add_entry_point(catalog, entry, validators)
    return catalog


def builtin(module: str, name: str) -> Callable[..., AppDef]:
    """Return a function of this room."""
    from importlib import import_module

    fn: Callable[..., AppDef] = getattr(import_module(f"torchloom.components.{module}"), name)
    return fn


def installed_entry_points() -> Iterator["EntryPoint"]:
    """Yield the entry points of both groups, torchloom's first."""
    from importlib.metadata import entry_points

    for group in GROUPS:
        yield from sorted(entry_points(group=group), key=lambda entry: entry.name)


def add_entry_point(catalog: Catalog, entry: "EntryPoint", validators: Validators) -> None:
    """Add what an entry point holds; one that fails is listed with its error."""
    source = f"from entry point {entry.name} = {entry.value}"
    try:
        with torchx_names():
            loaded = entry.load()
            prefix = "" if entry.name.startswith("_") else entry.name
            if callable(loaded):
                found = [Component(entry.name, with_torchx_names(loaded), source)]
            else:
                found = list(_in_module(loaded, prefix, source, validators))
    except Exception as error:  # one broken package must not hide the others; it is listed
        problem = str(error) if isinstance(error, LoomError) else f"{type(error).__name__}: {error}"
        catalog.broken[entry.name] = problem
        return
    for component in found:
        catalog.add(component)


def _in_module(
    module: ModuleType | str, prefix: str, source: str, validators: Validators
) -> Iterator[Component]:
    """Yield the public functions of a module and, for a package, of all modules below it."""
    from importlib import import_module
    from pkgutil import iter_modules

    module = import_module(module) if isinstance(module, str) else module
    if getattr(module, "__file__", None):
        yield from _functions_of(module, prefix, source, validators)
    for info in iter_modules(getattr(module, "__path__", ())):
        below = f"{prefix}.{info.name}" if prefix else info.name
        yield from _in_module(f"{module.__name__}.{info.name}", below, source, validators)


def _functions_of(
    module: ModuleType, prefix: str, source: str, validators: Validators
) -> Iterator[Component]:
    from torchloom.specs.file_linter import validate_all

    checked = validate_all(module.__file__ or "", validators)
    for fn_name, messages in checked.items():
        fn = getattr(module, fn_name, None)
        if isinstance(fn, FunctionType):
            name = f"{prefix}.{fn_name}" if prefix else fn_name
            yield Component(name, with_torchx_names(fn), source, [str(m) for m in messages])
