"""All that a job has left, gathered once, for judges that only compare."""

from dataclasses import dataclass
from pathlib import Path

from torchloom.cli.chaos.checking import books, folders, leftovers, rows, secrets, strikes
from torchloom.cli.chaos.checking.books import Book
from torchloom.cli.chaos.checking.case import Case
from torchloom.cli.chaos.checking.looking import Look

_NEWEST = 2  # checkpoints that are read each time


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts of one job, as they were found outside of it."""

    series: strikes.Series
    books: tuple[Book, ...]
    expected: tuple[Book, ...] | None  # of a run that nobody disturbed
    base: rows.Base
    root: str
    saved: tuple[folders.Saved, ...] | None
    there: frozenset[str]  # names of checkpoints, seen before or behind a look into the database
    damage: tuple[tuple[str, str], ...]  # by name of a checkpoint
    looks: tuple[Look, ...]
    left: tuple[str, ...] | None  # nothing while the job still runs
    leaks: tuple[str, ...]

    @property
    def faults(self) -> tuple[strikes.Struck, ...]:
        """Return what was done."""
        return self.series.faults

    @property
    def hit(self) -> frozenset[str]:
        """Return the names of checkpoints that were damaged on purpose."""
        shards = (Path(one.name) for one in self.faults if one.kind == "corrupt-shard")
        return frozenset(shard.parent.name.partition(".bad")[0] for shard in shards)


def gather(case: Case, looks: tuple[Look, ...], is_over: bool, whole: bool = True) -> Evidence:
    """Read everything; while the job runs not all content of checkpoints, and no logs."""
    root, against = case.checkpoints, case.against
    saved = folders.committed(root)
    read = (saved or [])[0 if whole else -_NEWEST :]
    base = rows.read(case.job, case.home, case.database)
    seen = (*(saved or ()), *(folders.committed(root) or ()))
    return Evidence(
        series=strikes.read(case.struck),
        books=books.read(case.ledger),
        expected=None if against is None else books.read(against),
        base=base,
        root=root,
        saved=None if saved is None else tuple(saved),
        there=frozenset(one.path.name for one in seen),
        damage=tuple((one.path.name, folders.damage(one)) for one in read),
        looks=looks,
        left=leftovers.find(case, root) if is_over else None,
        leaks=secrets.leaks(case) if whole else (),
    )
