"""Late values of a role's fields, made into a plain role in one visible step."""

from collections.abc import Awaitable
from dataclasses import fields, replace
from typing import Any

from torchloom.errors import nearest
from torchloom.specs.exceptions import SpecError
from torchloom.specs.role import Role


def resolved(role: Role) -> Role:
    """Return a copy with `overrides` applied and empty: each callable is called once.

    An awaitable, given or returned, is run to its end.
    """
    known = {field.name for field in fields(role)} - {"overrides"}
    for name in role.overrides:
        if name not in known:
            raise SpecError(f"overrides.{name}", f"unknown field; {nearest(name, known)}")
    values = {name: _value(late) for name, late in role.overrides.items()}
    return replace(role, **{**values, "overrides": {}})


def _value(late: Any) -> Any:
    value = late() if callable(late) else late
    return _run(value) if isinstance(value, Awaitable) else value


def _run(awaitable: Awaitable[Any]) -> Any:
    """Run it on a thread of its own: this one may have a running loop."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def wait() -> Any:
        return await awaitable

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, wait()).result()
