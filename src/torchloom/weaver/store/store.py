"""Open the two databases of a plane, upgraded to this version's schema."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from torchloom.errors import Failure
from torchloom.weaver.store.backup import DatabaseDamaged
from torchloom.weaver.store.engine import Part, engine_of, file_of, make_room
from torchloom.weaver.store.place import INCOMPLETE, DatabasePlace, RestoreIncomplete
from torchloom.weaver.store.schema import refuse_newer, upgrade
from torchloom.weaver.store.series.ingest import LogLimits, PostgresIngest, SqliteIngest
from torchloom.weaver.store.series.records import RecordStore
from torchloom.weaver.store.series.tables import RecordsLost
from torchloom.weaver.store.series.writer import Answer, NumberedBatch, RecordIngest, RecordWriter
from torchloom.weaver.store.state import StateStore

LIMITS = LogLimits()


class DatabaseUnreachable(Failure):
    """The database cannot be opened."""

    code = "database_unreachable"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"cannot open the database {name}: {why}")


@dataclass(frozen=True, slots=True)
class PlaneStore:
    """`state`, `records` and the writer of records; `damage` is what is wrong with one."""

    place: DatabasePlace
    state: StateStore
    records: RecordStore
    damage: dict[str, str] = field(default_factory=dict)

    def take_epoch(self, host: str, pid: int) -> int:
        """Become the weaver that may write, with an epoch that none has had before.

        Agents and launch processes obey none that is lower than one they have seen. So the
        highest is kept in a file of its own, too: a new or an older database begins above it.
        """
        if self.place.folder is None:
            return self.state.take_epoch(host, pid)
        mark = self.place.folder / "epoch"
        least = 0
        with suppress(OSError, ValueError):
            least = int(mark.read_text())
        epoch = self.state.take_epoch(host, pid, least)
        partial = mark.with_name(".epoch")
        with suppress(OSError):  # a full disk: the database has it
            partial.write_text(f"{epoch}\n")
            partial.replace(mark)
        return epoch

    def writer(self, answer: Answer) -> RecordWriter:
        """Return a writer of records; there is to be one."""
        return RecordWriter(self.ingest(), answer)

    def ingest(self, limits: LogLimits = LIMITS) -> RecordIngest:
        """Return what stores batches at once, in the caller's thread."""
        if "records" in self.damage:
            return NoIngest(self.damage["records"])
        if self.place.folder is None:
            return PostgresIngest(self.place.url, limits)
        return SqliteIngest(file_of(self.place.folder, "records"), limits)

    def close(self) -> None:
        """Close both databases."""
        self.state.close()
        self.records.close()


class NoIngest:
    """Stores nothing: agents keep what they have until there is a database for it."""

    def __init__(self, why: str) -> None:
        self._why = why

    def write(self, batches: list[NumberedBatch]) -> list[int]:
        raise RecordsLost(self._why)

    def close(self) -> None:
        pass


def open_store(place: DatabasePlace) -> PlaneStore:
    """Return the store of a place; an empty or older database is upgraded.

    Without `records` jobs run, are steered and recovered; without `state` nothing is.
    """
    if place.folder is not None and (place.folder / INCOMPLETE).exists():
        raise RestoreIncomplete(place.folder)
    state, records = engine_of(place, "state"), engine_of(place, "records")
    with ExitStack() as at_failure:
        at_failure.callback(state.dispose)
        at_failure.callback(records.dispose)
        damage = {}
        with _errors_named(place, "state"):
            refuse_newer(state, "state")  # before anything is written to the other one
        try:
            with _errors_named(place, "records"):
                refuse_newer(records, "records")
                upgrade(records, "records")
        except DatabaseDamaged as error:
            damage["records"] = str(error)
        with _errors_named(place, "state"):
            upgrade(state, "state")
            make_room(state)
        at_failure.pop_all()
    return PlaneStore(place, StateStore(state), RecordStore(records), damage)


@contextmanager
def _errors_named(place: DatabasePlace, part: Part) -> Iterator[None]:
    """Add the file to errors of a database."""
    import sqlalchemy as sa

    try:
        yield
    except sa.exc.OperationalError as error:
        raise DatabaseUnreachable(place.name_of(part), str(error.orig).strip()) from error
    except sa.exc.DBAPIError as error:
        why = str(error.orig).strip()
        if place.folder is None:
            raise DatabaseUnreachable(place.name_of(part), why) from error
        raise DatabaseDamaged(place.folder / f"{part}.db", why) from error
