"""Find a component by name: built in, of an installed package, or a function in a file."""

import os
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import Any

from torchloom.components.catalog import (
    BUILTINS,
    Catalog,
    Component,
    ComponentNotFoundException,
    ComponentValidationException,
    Validators,
    add_entry_point,
    builtin,
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
    "find_components",
    "get_builtin_source",
    "get_component",
    "get_components",
]


def get_components(validators: Validators = None) -> dict[str, Component]:
    """Return every usable component by name."""
    found = find_components(validators).components
    return {name: found[name] for name in found if not found[name].validation_errors}


def get_component(name: str, validators: Validators = None) -> Component:
    """Return the component of this name: `dist.ddp`, `file.py:fn`, `package.module:fn`."""
    module, _, fn_name = name.rpartition(".")
    if fn_name in BUILTINS.get(module, ()):
        return Component(name, builtin(module, fn_name))
    component = _from_file_or_module(name, validators) if ":" in name else None
    component = component or _installed(name, validators)
    if component.validation_errors:
        raise ComponentValidationException(name, component.validation_errors)
    return component


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
