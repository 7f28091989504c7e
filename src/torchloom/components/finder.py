"""Find a component by name: built in, of an installed package, or a function in a file."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from torchloom.components.catalog import (
    BUILTINS,
    OTHER_NAMES,
    Catalog,
    Component,
    ComponentNotFoundException,
    ComponentValidationException,
    Validators,
    add_entry_point,
    builtin,
    components_in,
    find_components,
    installed_entry_points,
    original,
    with_torchx_names,
)
from torchloom.errors import shorten
from torchloom.specs.builders import ComponentFailed
from torchloom.torchx.names import torchx_names

__all__ = [
    "Catalog",
    "Component",
    "ComponentNotFoundException",
    "ComponentValidationException",
    "ComponentsFinder",
    "CustomComponentsFinder",
    "ModuleComponentsFinder",
    "find_components",
    "get_builtin_source",
    "get_component",
    "get_components",
    "is_namespace_package",
    "is_package",
    "module_relname",
]


class ComponentsFinder(ABC):
    """Finds components somewhere."""

    @abstractmethod
    def find(self, validators: Validators = None) -> list[Component]:
        """Return the components, with what is wrong with each."""


class ModuleComponentsFinder(ComponentsFinder):
    """Finds the components of a module and of all modules below it.

    Args:
        module: The module, or its name.
        group: What their names begin with; default: nothing.
    """

    def __init__(self, module: str | ModuleType, group: str = "") -> None:
        self.base_module = module
        self.group = group

    def find(self, validators: Validators = None) -> list[Component]:
        name = getattr(self.base_module, "__name__", self.base_module)
        with torchx_names():
            return list(components_in(self.base_module, self.group, f"from {name}", validators))


class CustomComponentsFinder(ComponentsFinder):
    """Finds one component in a file or, by its dotted name, in a module."""

    def __init__(self, filepath: str, function_name: str) -> None:
        self._name = f"{filepath}:{function_name}"

    def find(self, validators: Validators = None) -> list[Component]:
        return [_from_file_or_module(self._name, validators)]


def get_components(validators: Validators = None) -> dict[str, Component]:
    """Return every usable component by name."""
    found = find_components(validators).components
    return {name: found[name] for name in found if not found[name].validation_errors}


def get_component(name: str, validators: Validators = None) -> Component:
    """Return the component of this name: `dist.ddp`, `file.py:fn`, `package.module:fn`."""
    module, _, fn_name = OTHER_NAMES.get(name, name).rpartition(".")
    if fn_name in BUILTINS.get(module, ()):
        return Component(name, builtin(module, fn_name))
    component = _from_file_or_module(name, validators) if ":" in name else None
    component = component or _installed(name, validators)
    if component.validation_errors:
        raise ComponentValidationException(name, component.validation_errors)
    return component


def is_namespace_package(module: ModuleType) -> bool:
    """Tell whether a module is a folder without an `__init__`."""
    return getattr(module, "__file__", None) is None


def is_package(module: ModuleType) -> bool:
    """Tell whether a module is a package, with an `__init__` or without one."""
    return hasattr(module, "__path__")


def module_relname(module: ModuleType, relative_to: ModuleType) -> str:
    """Return the name of a module below another one; ValueError if it is not below it."""
    name, above = module.__name__, relative_to.__name__
    if not f"{name}.".startswith(f"{above}."):
        raise ValueError(f"{name} is not below {above}")
    return name[len(above) + 1 :]


def get_builtin_source(name: str, validators: Validators = None) -> str:
    """Return a component's source with the imports and helpers it needs, to start from."""
    from torchloom.components.component_file import source_of

    return source_of(original(get_component(name, validators).fn))


def _from_file_or_module(name: str, validators: Validators) -> Component:
    place, _, fn_name = name.rpartition(":")
    if os.path.isfile(place):
        return _from_file(name, place, fn_name, validators)
    if all(part.isidentifier() for part in place.split(".")) and not place.endswith(".py"):
        return _from_module(name, place, fn_name, validators)
    raise ComponentNotFoundException(name, remedy=f"there is no file {shorten(place)!r}")


def _from_file(name: str, path: str, fn_name: str, validators: Validators) -> Component:
    from torchloom.components.component_file import ComponentFile

    problems = _problems(name, path, fn_name, validators)
    if problems:
        raise ComponentValidationException(name, problems)
    home = ComponentFile(path)
    module = home.load()
    return Component(name, home.bound(_function(module, name, fn_name)), home.path)


def _from_module(name: str, module_name: str, fn_name: str, validators: Validators) -> Component:
    module = _imported(name, module_name)
    file = getattr(module, "__file__", None)
    if file is None:
        raise ComponentNotFoundException(name, remedy=f"{module_name} is a folder, not a module")
    problems = _problems(name, file, fn_name, validators)
    fn = _function(module, name, fn_name)
    return Component(name, with_torchx_names(fn), file, problems)


def _problems(name: str, path: str, fn_name: str, validators: Validators) -> list[str]:
    from torchloom.specs.file_linter import validate

    messages = validate(path, fn_name, validators)
    unknown = next((message for message in messages if message.name == "name"), None)
    if unknown:
        raise ComponentNotFoundException(name, remedy=str(unknown))
    return [str(message) for message in messages]


def _function(module: ModuleType, name: str, fn_name: str) -> Callable[..., Any]:
    found = getattr(module, fn_name, None)
    if isinstance(found, type) and callable(getattr(found, "build", None)):
        return _built_by(found)
    if not callable(found) or isinstance(found, type):
        raise ComponentValidationException(
            name, [f"{fn_name} is neither a function nor a class with `build(self) -> AppDef`"]
        )
    fn: Callable[..., Any] = found
    return fn


def _built_by(cls: type[Any]) -> Callable[..., Any]:
    """Return a component function whose arguments are those of the class."""

    @wraps(cls, updated=())
    def build(*args: Any, **kwargs: Any) -> Any:
        return cls(*args, **kwargs).build()

    return build


def _imported(name: str, module_name: str) -> ModuleType:
    from importlib import import_module

    try:
        with torchx_names():
            return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            remedy = f"there is no file and no module {shorten(module_name)!r}"
            raise ComponentNotFoundException(name, remedy=remedy) from error
        raise ComponentFailed(f"module {module_name}", error, "") from error
    except Exception as error:  # a user's module may raise anything
        raise ComponentFailed(f"module {module_name}", error, "") from error


def _installed(name: str, validators: Validators) -> Component:
    """Return the component of an entry point; only those that can have the name are imported."""
    catalog = Catalog()
    for entry in installed_entry_points():
        if entry.name.startswith("_") or f"{name}.".startswith(f"{entry.name}."):
            add_entry_point(catalog, entry, validators)
    if name in catalog.components:
        return catalog.components[name]
    for place, why in catalog.broken.items():
        if name.startswith(place):
            raise ComponentValidationException(name, [f"entry point {place}: {why}"])
    module, _, fn_name = name.rpartition(".")
    if module and not name.endswith(".py") and _is_module(module):
        return _from_module(name, module, fn_name, validators)
    known = [known for known in get_components() if known != name]
    raise ComponentNotFoundException(name, known, _remedy(name))


def _is_module(name: str) -> bool:
    """Say whether Python could import it; a folder that merely has the name does not count."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def _remedy(name: str) -> str:
    if name.endswith(".py"):
        return f"name the function in the file: {shorten(name)}:FUNCTION"
    return "`loom components` lists them; your own is FILE.py:FUNCTION"
