"""The name of a submitted app, good on every scheduler: `slurm://torchx/123`."""

import re
from typing import NamedTuple

from torchloom.specs.exceptions import MalformedAppHandleException

AppHandle = str


class ParsedAppHandle(NamedTuple):
    """The three parts of a handle."""

    scheduler_backend: str
    session_name: str
    app_id: str


def parse_app_handle(app_handle: AppHandle) -> ParsedAppHandle:
    """Return the parts; the session may be empty, and only the last `/` ends it."""
    match = re.fullmatch("(.+)://(.*)/(.+)", app_handle)
    if match is None:
        raise MalformedAppHandleException(app_handle)
    return ParsedAppHandle(*match.groups())


def make_app_handle(scheduler_backend: str, session_name: str, app_id: str) -> AppHandle:
    """Return the handle with these parts."""
    return f"{scheduler_backend}://{session_name}/{app_id}"
