"""Take specs from other libraries as ours, when they have our fields."""

from dataclasses import is_dataclass

from torchloom.errors import shorten
from torchloom.specs.exceptions import SpecError
from torchloom.specs.resources import Resource
from torchloom.specs.role import AppDef, Role
from torchloom.specs.shape import APP, RESOURCE
from torchloom.specs.unfold import unfold_app, unfold_resource


def coerce_app(obj: object) -> AppDef:
    """Return our AppDef as it is, and a copy of one whose class is another's (TorchX's own)."""
    if isinstance(obj, AppDef):
        if not isinstance(obj.roles, list) or not all(isinstance(r, Role) for r in obj.roles):
            raise SpecError("roles", f"expected a list of Role, got {shorten(repr(obj.roles))}")
        return obj
    if not is_dataclass(obj) or isinstance(obj, type) or not hasattr(obj, "roles"):
        shown = f"{type(obj).__name__}: {shorten(repr(obj))}"
        raise SpecError("", f"expected an AppDef, got {shown}; a component has to return one")
    app: AppDef = APP(unfold_app(obj), "")
    return app


def coerce_resource(obj: object, path: str = "resource") -> Resource:
    """Return our Resource as it is, and a copy of one whose class is another's."""
    if isinstance(obj, Resource):
        return obj
    resource: Resource = RESOURCE(unfold_resource(obj, path), path)
    return resource
