"""Find what a name of the job means: one of ours, or a function of the user's own."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchloom.errors import nearest, shorten
from torchloom.specs.exceptions import SpecError
from torchloom.worker.train.hyper import MODULE

Function = Callable[[Mapping[str, Any]], Any]


def unknown(field: str, name: str, known: Iterable[str]) -> SpecError:
    """Return the error for a name that means nothing."""
    there = tuple(known)
    hints = (f"no {shorten(name)!r}", nearest(name, there), f"there are: {', '.join(there)}")
    return SpecError(field, "; ".join(hint for hint in hints if hint))


def own_function(field: str, name: str) -> Function:
    """Return the function that `module:package.function` names."""
    words = name.removeprefix(MODULE)
    module, _, function = words.rpartition(".")
    if not module or not all(part.isidentifier() for part in words.split(".")):
        problem = f"{shorten(name)!r} names no function: write {MODULE}package.function"
        raise SpecError(field, problem)
    found = getattr(_imported(field, module), function, None)
    if not callable(found):
        raise SpecError(field, f"the module {shorten(module)} has no function {shorten(function)}")
    own: Function = found
    return own


def _imported(field: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # something that the module imports
            raise
        problem = f"no module {shorten(module)}: start the job where it lies, or install it"
        raise SpecError(field, problem) from error
