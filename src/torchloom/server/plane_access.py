"""What every route uses: the link to the weaver, and the databases, read in threads."""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from torchloom.server.logs.lines import Files
from torchloom.server.weaver_link import WeaverAway, WeaverLink
from torchloom.weaver.store.reader import PlaneReader
from torchloom.weaver.store.rows import JobRow

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 8


class PlaneAccess:
    """The weaver and the databases of one plane; an app has one."""

    def __init__(self, link: WeaverLink, store: PlaneReader, home: Path) -> None:
        self.link = link
        self.store = store
        self.home = home
        self._threads = ThreadPoolExecutor(_THREADS, "read")

    async def read(self, work: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """Run a blocking read of the database or of files in a thread, and return its result."""
        call = functools.partial(work, *args, **words)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def stored(self, job: str) -> JobRow | None:
        """Return a job by its id, as the database has it."""
        return await self.read(self.store.state.one, JobRow, id=job)

    def files(self, job: str) -> Files:
        """Return where the files of a job's run are; this blocks, so call it in a thread."""
        row = self.store.state.one(JobRow, id=job)
        return Files(self.home, row.account if row else "")

    async def job(self, name: str) -> str:
        """Return the id of a job, given by its id or by a name that the weaver resolves."""
        if await self.stored(name) is not None:
            return name
        found: str = (await self.link.ask("job", job=name))["id"]
        return found

    async def close(self) -> None:
        """Close the connections after the last read has ended."""
        self.link.close()
        await asyncio.to_thread(self._threads.shutdown)
        self.store.close()


def access_of(connection: HTTPConnection) -> PlaneAccess:
    """Return the access of the app that serves a connection."""
    access: PlaneAccess = connection.app.state.access
    return access


AccessDep = Annotated[PlaneAccess, Depends(access_of)]

__all__ = ["PlaneAccess", "AccessDep", "WeaverAway", "access_of"]
