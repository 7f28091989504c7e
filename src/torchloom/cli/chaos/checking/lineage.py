"""Judge the steps: each applied once in the run that counts, with the bits it would have had."""

from collections import Counter
from collections.abc import Iterator, Sequence

from torchloom.cli.chaos.checking.books import Book, Line, applied, last_word
from torchloom.cli.chaos.checking.evidence import Evidence
from torchloom.cli.chaos.checking.verdicts import Verdict, first, unknown


def each_once(found: Evidence) -> Verdict:
    """I3: nothing twice in a generation, nothing left out, the same when it was done again."""
    if found.silent:
        return unknown("I3", found.silent)
    books = enumerate(found.books)
    own = (fact for rank, book in books for fact in _of_one(rank, book, found.begins))
    return first("I3", *own, *_apart(found.books))


def _of_one(rank: int, book: Book, begins: int | None) -> Iterator[str]:
    times = Counter((line.generation, line.incarnation, line.step) for line in applied(book))
    for (generation, _, step), count in times.items():
        if count > 1:
            yield f"rank {rank} applied step {step} {count} times in generation {generation}"
    done: dict[int, Line] = {}
    for line in applied(book):
        before = done.setdefault(line.step, line)
        if before.incarnation == line.incarnation and before is not line:
            yield f"rank {rank} lived on and applied step {line.step} again"
        if (before.bits, before.samples) != (line.bits, line.samples):
            yield f"rank {rank}: step {line.step} was another when it was done again"
    had = {line.step for line in book}
    start = min(had, default=0) if begins is None else begins
    if missing := set(range(start, max(had, default=-1))) - had:
        yield f"rank {rank} never had step {min(missing)}"


def _apart(books: Sequence[Book]) -> Iterator[str]:
    """Yield a step behind which ranks that share their parameters had different ones."""
    words = [last_word(book) for book in books]
    both = sorted(set.intersection(*(set(word) for word in words)))
    bits = {step: {word[step].bits[0] for word in words} for step in both}
    if both and len(bits[both[0]]) > 1:
        return  # each rank has a part of its own
    for step in both:
        if len(bits[step]) > 1:
            yield f"behind step {step} ranks had different parameters"


def same_bits(found: Evidence) -> Verdict:
    """I4: parameters, optimizers, buffers, samples and chance are those of another run."""
    if found.silent:
        return unknown("I4", found.silent)
    if found.expected is None or not any(found.expected):
        return unknown("I4", "no ledger of an undisturbed run was given: --against DIR")
    if len(found.books) != len(found.expected):
        facts = f"{len(found.books)} ranks here, {len(found.expected)} there"
        return unknown("I4", f"the other run is not the same: {facts}")
    pairs = enumerate(zip(found.books, found.expected, strict=True))
    return first("I4", *(fact for rank, (mine, its) in pairs for fact in _other(rank, mine, its)))


def _other(rank: int, book: Book, expected: Book) -> Iterator[str]:
    known = last_word(expected)
    for line in book:
        its = known.get(line.step)
        if its is None:
            if line.is_applied:
                yield f"rank {rank} applied step {line.step}, which the other run has not"
        elif what := _difference(line, its):
            yield f"rank {rank}: other {what} behind step {line.step}"


def _difference(line: Line, its: Line) -> str:
    names = ("parameters", "optimizer states", "buffers")
    for name, mine, theirs in zip(names, line.bits, its.bits, strict=True):
        if mine != theirs:
            return name
    for name, one, other in (
        ("samples", line.samples, its.samples),
        ("random numbers", line.chance, its.chance),
    ):
        if one is not None and one != other:
            return name
    return ""


def is_exact(found: Evidence) -> bool | None:
    """Tell whether the whole run, to its last step, is the other one; nothing if nobody knows."""
    if found.expected is None or not any(found.expected) or not any(found.books):
        return None
    if len(found.books) != len(found.expected):
        return False
    pairs = list(zip(found.books, found.expected, strict=True))
    ends = all(_end(mine) == _end(its) for mine, its in pairs)
    return ends and not any(fact for mine, its in pairs for fact in _other(0, mine, its))


def _end(book: Book) -> int:
    return max((line.step for line in book), default=-1)
