"""`loom checkpoint verify --replay`: train a stretch again, twice, and compare every tensor."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchloom.cli.checkpoints import rerun, torch_process
from torchloom.cli.checkpoints.inventory import StoredCheckpoints
from torchloom.cli.checkpoints.rerun import ReplayAgent
from torchloom.cli.output import echo, echo_json, say
from torchloom.errors import Failure, LoomError, UserError
from torchloom.launch.records.folder import RunFolder

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage
    from torchloom.messages.plane import Planned

_PREFIX = ".replay-"
_SOME = 20  # steps, where no later checkpoint says how many
_TWICE = 2


Digests = Mapping[str, str]  # by a tensor's name
Track = Mapping[int, Digests]  # by the step before which they were taken


@dataclass(frozen=True, slots=True)
class TrackDifference:
    """The first thing that two runs do not have in common."""

    step: int
    rank: int
    tensor: str


def read_tracks(folder: Path, ranks: int) -> list[Track]:
    """Return what each rank noted; a rank that noted nothing has an empty track."""
    return [_track(folder / f"rank_{rank}.jsonl") for rank in range(ranks)]


def _track(path: Path) -> Track:
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {line["step"]: line["tensors"] for line in lines}


def common_tracks(tracks: Sequence[Track], limit: int | None = None) -> list[int]:
    """Return the steps that all tracks have, in order, up to a limit."""
    steps = set[int].intersection(*map(set, tracks)) if tracks else set()
    return sorted(step for step in steps if limit is None or step <= limit)


def first_difference(
    one: Sequence[Track], other: Sequence[Track], steps: Sequence[int]
) -> TrackDifference | None:
    """Return the first step, and in it the first rank and tensor, that two runs have otherwise."""
    for step in steps:
        for rank, (left, right) in enumerate(zip(one, other, strict=True)):
            if (name := odd(left[step], right[step])) is not None:
                return TrackDifference(step, rank, name)
    return None


def odd(one: Digests, other: Digests) -> str | None:
    """Return the first tensor that is not the same, or that only one has."""
    for name in (*one, *other):
        if one.get(name) != other.get(name):
            return name
    return None


@contextlib.contextmanager
def borrowed(storage: "Storage", steps: Iterable[int]) -> Iterator["Storage"]:
    """Give a store with those of these checkpoints that are still there; it goes afterwards."""
    from torchloom.checkpoint import open_storage

    root = Path(storage.root)
    if not root.is_absolute():
        yield storage
        return
    folder = root.parent / f"{_PREFIX}{os.urandom(4).hex()}"
    try:
        _take(storage, steps, folder)
        yield open_storage(str(folder), {})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _take(storage: "Storage", steps: Iterable[int], folder: Path) -> None:
    try:
        for step in steps:
            _link(Path(storage.place_of(step)), folder)
    except OSError as error:
        raise Failure(f"cannot hold on to checkpoints in {folder}: {error.strerror}") from error


def _link(place: Path, folder: Path) -> None:
    """Give a checkpoint's files second names; one that is going just now has none of them."""
    own = folder / place.name
    own.mkdir(mode=0o700, parents=True)
    try:
        for name in os.listdir(place):
            _link_one(place / name, own / name)
    except FileNotFoundError:
        shutil.rmtree(own)


def _link_one(file: Path, own: Path) -> None:
    try:
        os.link(file, own)
    except PermissionError:  # another user's, or a file system without links
        shutil.copyfile(file, own)


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps to be trained again, and the checkpoints that the job itself made of them."""

    first: int
    until: int
    marks: tuple[int, ...]
    ranks: int


@dataclass(frozen=True, slots=True)
class Replay:
    """One training of the stretch: what its ranks noted, and how far that may be compared."""

    run: str
    tracks: list[Track]
    limit: int  # before this step the first change of knobs was not repeated
    notes: tuple[str, ...]


def replay(
    found: StoredCheckpoints, step: int | None, steps: int | None, keep: bool, as_json: bool
) -> int:
    """Compare, say what came of it, and return the exit code: 0 for bit-exact."""
    stretch = stretch_of(found, step, steps)
    with borrowed(found.storage, (stretch.first, *stretch.marks)) as storage:
        held = replace(found, storage=storage)
        told = _told(held, stretch, keep)
    if as_json:
        echo_json(told)
    else:
        for line in _in_words(told):
            echo(line)
    return 0 if told["exact"] else 1


def _told(found: StoredCheckpoints, stretch: Stretch, keep: bool) -> dict[str, Any]:
    """Train the stretch twice and return what came of it, as JSON has it."""
    found.storage.verify(stretch.first)
    changes = _changes(found, stretch)
    say(
        f"steps {stretch.first} to {stretch.until - 1} of {found.job} are trained again, twice, "
        f"by {stretch.ranks} rank{'s' if stretch.ranks > 1 else ''}"
    )
    replays = [_trained(found, stretch, changes, keep) for _ in range(_TWICE)]
    told = _compared(found, stretch, replays)
    return {**told, "knobs": sum(change.step >= stretch.first for change in changes)}


def stretch_of(found: StoredCheckpoints, step: int | None, steps: int | None) -> Stretch:
    """Return which steps to repeat: from one checkpoint to the next, where nothing else is said."""
    there = sorted(found.storage.committed())
    if step is None and len(there) > 1:
        step = there[-2]  # the newest that has one to be compared with
    first = found.step(step)
    later = [each for each in there if each > first]
    until = first + steps if steps else (later[0] if later else first + _SOME)
    marks = tuple(each for each in later if each <= until)
    return Stretch(first, until, marks, found.storage.manifest(first).world_size)


def _changes(found: StoredCheckpoints, stretch: Stretch) -> "list[Planned]":
    """Return what was changed of the job's knobs before the end of the stretch, in order."""
    from torchloom.client import plane
    from torchloom.client.errors import NoPlane
    from torchloom.messages.plane import Planned

    try:
        audit = plane.ask("audit", job=found.job)
    except NoPlane:
        return _none_changed(found)
    except LoomError as error:
        if error.code != "not_found":
            raise
        return _none_changed(found)  # the job never had a plane
    return [
        Planned(f"{one['id']}/0", one["effective_step"], one["payload"], True)
        for one in audit
        if one["kind"] == "knob" and one["state"] == "applied"
        if one["effective_step"] < stretch.until
    ]


def _none_changed(found: StoredCheckpoints) -> "list[Planned]":
    last = found.storage.latest()
    if last is not None and found.storage.manifest(last).knobs:
        raise UserError(
            f"knobs of {found.job} were changed while it ran, and only the plane knows when; "
            "`loom up` starts it, then try again"
        )
    return []


def _trained(
    found: StoredCheckpoints, stretch: Stretch, changes: "list[Planned]", keep: bool
) -> Replay:
    app_id = rerun.new_id(found.job)
    with (
        tempfile.TemporaryDirectory(prefix="loom-replay-") as folder,
        ReplayAgent(Path(folder), changes) as hearing,
    ):
        place = found.storage.place_of(stretch.first)
        digests = Path(folder, "digests")
        variables = rerun.variables(place, stretch.until, digests, hearing.path)
        request = RunFolder.named(found.job).request()
        request = rerun.again(request, app_id, stretch.ranks, variables)
        with rerun.running(found.job, request, keep):
            noted = read_tracks(digests, stretch.ranks)
            _check(found, stretch, noted, app_id)
        late = [one for one in changes if one.step >= stretch.first]
        missed = [one.step for one in late if one.command not in hearing.acted]
        whys = {str(one["why"]) for one in hearing.restored if one.get("why")}
    return Replay(app_id, noted, min([*missed, stretch.until]), tuple(sorted(whys)))


def _check(found: StoredCheckpoints, stretch: Stretch, noted: list[Track], app_id: str) -> None:
    for rank, track in enumerate(noted):
        if not track:
            raise rerun.NotReplayed(
                f"rank {rank} of {found.job} noted nothing when it was run again: only a program "
                "that trains by run.steps() what it gave to run.wrap or run.track can be compared; "
                f"`loom logs {app_id}` shows what it did"
            )
        if min(track) != stretch.first:
            raise rerun.NotReplayed(
                f"rank {rank} went on from step {min(track)} instead of {stretch.first}; "
                f"`loom logs {app_id}` shows why"
            )


def _compared(found: StoredCheckpoints, stretch: Stretch, replays: list[Replay]) -> dict[str, Any]:
    """Compare the replays with each other, then with what the job itself saved later."""
    one, other = replays
    limit = min(one.limit, other.limit)
    steps = common_tracks([*one.tracks, *other.tracks], limit)
    apart = first_difference(one.tracks, other.tracks, steps)
    between = "two replays" if apart else ""
    marks = [mark for mark in _marks(found, stretch.ranks) if mark in steps[1:]]
    for mark in marks if apart is None else ():
        asked = {"root": found.storage.root, "step": mark}
        saved = torch_process.ask("digests", found.record, asked)
        apart = first_difference(one.tracks, [{mark: each} for each in saved], [mark])
        if apart is not None:
            between = f"the replay and the checkpoint of step {mark}"
            break
    return {
        "job": found.job,
        "from": stretch.first,
        "until": steps[-1],
        "ranks": stretch.ranks,
        "runs": [each.run for each in replays],
        "exact": apart is None,
        "difference": None if apart is None else {**asdict(apart), "between": between},
        "compared_with": marks,
        "notes": _notes(stretch, replays, limit),
    }


def _marks(found: StoredCheckpoints, ranks: int) -> list[int]:
    """Return the checkpoints that as many ranks made; others have other tensors of their own."""
    steps = sorted(found.storage.committed())
    return [step for step in steps if found.storage.manifest(step).world_size == ranks]


def _notes(stretch: Stretch, replays: list[Replay], limit: int) -> list[str]:
    notes = sorted({note for each in replays for note in each.notes})
    if limit < stretch.until:
        notes.append(
            f"a change of knobs at step {limit} could not be repeated: compared up to there alone"
        )
    return notes


def _in_words(told: dict[str, Any]) -> list[str]:
    lines = [f"note: {note}" for note in told["notes"]]
    first, last = told["from"], told["until"]
    apart = told["difference"]
    if apart is not None:
        found = TrackDifference(apart["step"], apart["rank"], apart["tensor"])
        where = f"before step {found.step}, rank {found.rank}: {found.tensor}"
        return [*lines, f"not bit-exact: {where} differs between {apart['between']}"]
    marks = ", ".join(map(str, told["compared_with"]))
    also = f" and with the job's own checkpoint of step {marks}" if marks else ""
    count = last - first
    agree = f"{count} step{'' if count == 1 else 's'} from {first} agree in both replays{also}"
    lines.append(f"bit-exact: {agree}")
    if not marks:
        lines.append("the job has no later checkpoint within reach; only the replays were compared")
    return lines
