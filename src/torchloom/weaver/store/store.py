"""Open what the plane remembers: both databases, brought to this version's schema."""

from contextlib import ExitStack
from dataclasses import dataclass

from torchloom.errors import Failure
from torchloom.weaver.store.engine import engine_of, file_of
from torchloom.weaver.store.ingest_postgres import PostgresIngest
from torchloom.weaver.store.ingest_sqlite import SqliteIngest
from torchloom.weaver.store.log import Limits
from torchloom.weaver.store.migrate import upgrade
from torchloom.weaver.store.place import Place
from torchloom.weaver.store.records import RecordStore
from torchloom.weaver.store.room import make_room
from torchloom.weaver.store.state import StateStore
from torchloom.weaver.store.writer import Answer, Ingest, RecordWriter

LIMITS = Limits()


class DatabaseUnreachable(Failure):
    """The database cannot be opened."""

    code = "database_unreachable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot open the database {name}: {why}")


@dataclass(frozen=True, slots=True)
class Store:
    """The two halves, and a way to write records."""

    place: Place
    state: StateStore
    records: RecordStore

    def writer(self, answer: Answer) -> RecordWriter:
        """Return a writer of records; there is to be one."""
        return RecordWriter(self.ingest(), answer)

    def ingest(self, limits: Limits = LIMITS) -> Ingest:
        """Return what stores batches at once, in the caller's thread."""
        if self.place.folder is None:
            return PostgresIngest(self.place.url, limits)
        return SqliteIngest(file_of(self.place.folder, "records"), limits)

    def close(self) -> None:
        """Let both databases go."""
        self.state.close()
        self.records.close()


def open_store(place: Place) -> Store:
    """Return the store of a place; an empty or older database is upgraded."""
    import sqlalchemy as sa

    state, records = engine_of(place, "state"), engine_of(place, "records")
    with ExitStack() as at_failure:
        at_failure.callback(state.dispose)
        at_failure.callback(records.dispose)
        try:
            upgrade(state, "state")
            upgrade(records, "records")
            make_room(state)
        except sa.exc.DBAPIError as error:
            raise DatabaseUnreachable(place.state, str(error.orig).strip()) from error
        at_failure.pop_all()
    return Store(place, StateStore(state), RecordStore(records))
