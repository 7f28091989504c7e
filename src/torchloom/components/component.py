"""A component, as the finder hands it out, and what can be wrong with one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from torchloom.components.torchx_names import torchx_names
from torchloom.errors import NotFound, UserError, shorten
from torchloom.specs.api import AppDef
from torchloom.specs.arguments import get_fn_docstring

if TYPE_CHECKING:
    from torchloom.specs.file_linter import ComponentFunctionValidator

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
        """What the function's docstring says of it."""
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
