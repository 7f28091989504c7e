"""All that a job has left, gathered once, for judges that only compare."""

from dataclasses import dataclass
from pathlib import Path

from torchloom.cli.chaos.checking import books, folders, leftovers, rows, secrets, strikes
from torchloom.cli.chaos.checking.books import Book
from torchloom.cli.chaos.checking.case import Case, status
from torchloom.cli.chaos.checking.looking import Look

_NO_BOOKS = "the ranks wrote no ledger: run the job with LOOM_LEDGER=DIR"
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
    left: tuple[str, ...] | None  # nothing where it was not looked for
    leaks: tuple[str, ...]
    is_over: bool = True
    begins: int | None = 0  # the step that ledgers must begin with; whichever they do, if none
    silent: str = ""  # why not all ranks have a ledger, if so

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
    base, own = rows.read(case.job, case.home, case.database), books.read(case.ledger)
    seen = (*(saved or ()), *(folders.committed(root) or ()))
    return Evidence(
        series=strikes.read(case.struck),
        books=own,
        expected=None if against is None else books.read(against),
        base=base,
        root=root,
        saved=None if saved is None else tuple(saved),
        there=frozenset(one.path.name for one in seen),
        damage=tuple((one.path.name, folders.damage(one)) for one in read),
        looks=looks,
        left=leftovers.find(case, root, is_over) if is_over or whole else None,
        leaks=secrets.leaks(case) if whole else (),
        is_over=is_over,
        begins=0 if case.is_from_start else None,
        silent=_silent(case, own),
    )


def _silent(case: Case, own: tuple[Book, ...]) -> str:
    """Return why it is unknown what some rank did, if so."""
    if not any(own):
        return case.no_ledger or _NO_BOOKS
    written = {rank for rank, book in enumerate(own) if book}
    ranks = {int(one["rank"]) for one in status(case.run).get("ranks") or ()}
    missing = sorted(ranks - written)
    return f"rank {missing[0]} wrote no ledger" if missing else ""
