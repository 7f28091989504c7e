"""What is wrong with a spec, an option or a name.

UserError
├── SpecError                        a field of an app, named by its path
├── InvalidRunConfigException        a run option: unknown, missing, of the wrong type
│   └── InvalidRunConfigValue        ... that cannot be read from text (a ValueError too)
├── MalformedAppHandleException
├── UnknownSchedulerException
├── UnknownAppException
└── NotFound
    ├── UnknownRole                  (a KeyError too)
    └── UnknownNamedResource         (a KeyError too)
Failure
└── AppStatusError                   the app ended, but not well
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torchloom.errors import Failure, NotFound, UserError, nearest, shorten

if TYPE_CHECKING:
    from torchloom.specs.status import AppStatus


class SpecError(UserError):
    """A field with an unusable value; `path` names it, as in `roles[0].resource.cpu`."""

    code = "invalid_spec"

    def __init__(self, path: str, problem: str, source: str = "") -> None:
        self.path = path
        self.problem = problem
        super().__init__(": ".join(part for part in (source, path, problem) if part))


class InvalidRunConfigException(UserError):
    """A run option that the scheduler cannot take."""

    code = "invalid_run_config"

    def __init__(self, invalid_reason: str, cfg_key: str, cfg: Mapping[str, object]) -> None:
        self.cfg_key = cfg_key
        given = shorten(str(dict(cfg)), 200) if cfg else "<EMPTY>"
        super().__init__(f"{invalid_reason}. Given: {given}")


class InvalidRunConfigValue(InvalidRunConfigException, ValueError):
    """An option that is not of its type, or text that is not `key=value`."""


class MalformedAppHandleException(UserError):
    """The text is not an app handle."""

    code = "malformed_app_handle"

    def __init__(self, app_handle: str) -> None:
        shown = shorten(str(app_handle))
        super().__init__(
            f"{shown!r} is not of the form <scheduler_backend>://<session_name>/<app_id>,"
            " for example local://torchx/train-1"
        )


class UnknownSchedulerException(UserError):
    """No scheduler has this name."""

    code = "unknown_scheduler"

    def __init__(self, scheduler_backend: str, known: Iterable[str] = ()) -> None:
        names = sorted(known)
        hints = [
            f"no scheduler {shorten(scheduler_backend)!r}",
            nearest(scheduler_backend, names),
            f"known: {', '.join(names)}" if names else "`loom engines` lists them",
        ]
        super().__init__("; ".join(hint for hint in hints if hint))


class UnknownAppException(UserError):
    """The scheduler does not know this app, or has forgotten it."""

    code = "unknown_app"

    def __init__(self, app_handle: str) -> None:
        super().__init__(
            f"no app {shorten(app_handle)!r}: it was never submitted, or its scheduler has"
            " forgotten it; `loom ls` lists the jobs"
        )


class UnknownRole(NotFound, KeyError):
    """The app has no role of this name."""

    __str__ = NotFound.__str__  # KeyError would print the repr of the message

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        super().__init__("role", str(name), names, f"the app's roles: {', '.join(names) or 'none'}")


class UnknownNamedResource(NotFound, KeyError):
    """No named resource has this name."""

    __str__ = NotFound.__str__

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        remedy = "" if nearest(name, names) else f"known: {', '.join(sorted(names))}"
        super().__init__("named resource", name, names, remedy)


class AppStatusError(Failure):
    """The app ended in another state than SUCCEEDED."""

    code = "app_not_succeeded"

    def __init__(self, status: "AppStatus", *args: object) -> None:
        super().__init__(*args)
        self.status = status
