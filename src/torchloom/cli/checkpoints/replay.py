"""`loom checkpoint verify --replay`: repeat some steps twice and compare every tensor."""

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
from torchloom.cli.checkpoints.inventory import StoredCheckpoints, require_own
from torchloom.cli.checkpoints.rerun import ReplayAgent
from torchloom.cli.output import echo, echo_json, say
from torchloom.errors import Failure, LoomError, UserError
from torchloom.launch.records.folder import RunFolder

if TYPE_CHECKING:
    from torchloom.checkpoint import Storage
    from torchloom.messages.plane import Planned

_PREFIX = ".replay-"
_SOME = 20  # steps, if there is no later checkpoint
_TWICE = 2


Digests = Mapping[str, str]  # by a tensor's name
Track = Mapping[int, Digests]  # by the step before which they were taken


@dataclass(frozen=True, slots=True)
class TrackDifference:
    """The first difference between two runs."""

    step: int
    rank: int
    tensor: str


def read_tracks(folder: Path, ranks: int) -> list[Track]:
    """Return the digests that each rank recorded; empty for a rank without any."""
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
    """Return the first step, rank and tensor in which two runs differ."""
    for step in steps:
        for rank, (left, right) in enumerate(zip(one, other, strict=True)):
            if (name := odd(left[step], right[step])) is not None:
                return TrackDifference(step, rank, name)
    return None


def odd(one: Digests, other: Digests) -> str | None:
    """Return the first tensor that differs or that only one side has."""
    for name in (*one, *other):
        if one.get(name) != other.get(name):
            return name
    return None


@contextlib.contextmanager
def borrowed(storage: "Storage", steps: Iterable[int]) -> Iterator["Storage"]:
    """Yield a temporary store with these checkpoints, so that they cannot be pruned meanwhile."""
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
        raise Failure(f"cannot link checkpoints into {folder}: {error.strerror}") from error


def _link(place: Path, folder: Path) -> None:
    """Link a checkpoint's files into a folder; skip a checkpoint that is being removed."""
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
    """The steps to repeat, and the checkpoints that the job saved in them."""

    first: int
    until: int
    marks: tuple[int, ...]
    ranks: int


@dataclass(frozen=True, slots=True)
class Replay:
    """One repetition: the digests of its ranks, and up to which step they are comparable."""

    run: str
    tracks: list[Track]
    limit: int  # before this step the first change of knobs was not repeated
    notes: tuple[str, ...]


def replay(
    found: StoredCheckpoints, step: int | None, steps: int | None, keep: bool, as_json: bool
) -> int:
    """Replay, print the result and return the exit code: 0 for bit-exact."""
    stretch = stretch_of(found, step, steps)
    require_own(found, stretch.first, "checkpoint verify --replay")
    with borrowed(found.storage, (stretch.first, *stretch.marks)) as storage:
        held = replace(found, storage=storage)
        result = _result(held, stretch, keep)
    if as_json:
        echo_json(result)
    else:
        for line in _in_words(result):
            echo(line)
    return 0 if result["exact"] else 1


def _result(found: StoredCheckpoints, stretch: Stretch, keep: bool) -> dict[str, Any]:
    """Repeat the steps twice and return the comparison as JSON."""
    found.storage.verify(stretch.first)
    changes = _changes(found, stretch)
    say(
        f"repeating steps {stretch.first} to {stretch.until - 1} of {found.job} twice "
        f"with {stretch.ranks} rank{'s' if stretch.ranks > 1 else ''}"
    )
    replays = [_trained(found, stretch, changes, keep) for _ in range(_TWICE)]
    compared = _compared(found, stretch, replays)
    return {**compared, "knobs": sum(change.step >= stretch.first for change in changes)}


def stretch_of(found: StoredCheckpoints, step: int | None, steps: int | None) -> Stretch:
    """Return the steps to repeat; by default from one checkpoint to the next."""
    there = sorted(found.storage.committed())
    if step is None and len(there) > 1:
        step = there[-2]  # the newest with a later checkpoint to compare with
    first = found.step(step)
    later = [each for each in there if each > first]
    until = first + steps if steps else (later[0] if later else first + _SOME)
    marks = tuple(each for each in later if each <= until)
    return Stretch(first, until, marks, found.storage.manifest(first).world_size)


def _changes(found: StoredCheckpoints, stretch: Stretch) -> "list[Planned]":
    """Return the knob changes of the job before the end of the steps, in order."""
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
            "start it with `loom up` and try again"
        )
    return []


def _trained(
    found: StoredCheckpoints, stretch: Stretch, changes: "list[Planned]", keep: bool
) -> Replay:
    app_id = rerun.new_id(found.job)
    with (
        tempfile.TemporaryDirectory(prefix="loom-replay-") as folder,
        ReplayAgent(Path(folder), changes) as agent,
    ):
        place = found.storage.place_of(stretch.first)
        digests = Path(folder, "digests")
        variables = rerun.variables(place, stretch.until, digests, agent.path)
        request = RunFolder.named(found.job).request()
        request = rerun.again(request, app_id, stretch.ranks, variables)
        with rerun.running(found.job, request, keep):
            tracks = read_tracks(digests, stretch.ranks)
            _check(found, stretch, tracks, app_id)
        late = [one for one in changes if one.step >= stretch.first]
        missed = [one.step for one in late if one.command not in agent.acted]
        whys = {str(one["why"]) for one in agent.restored if one.get("why")}
    return Replay(app_id, tracks, min([*missed, stretch.until]), tuple(sorted(whys)))


def _check(found: StoredCheckpoints, stretch: Stretch, tracks: list[Track], app_id: str) -> None:
    for rank, track in enumerate(tracks):
        if not track:
            raise rerun.NotReplayed(
                f"rank {rank} of {found.job} recorded no digests in the replay: a replay needs a "
                "program that uses run.steps() and run.wrap or run.track; "
                f"`loom logs {app_id}` shows its output"
            )
        if min(track) != stretch.first:
            raise rerun.NotReplayed(
                f"rank {rank} resumed at step {min(track)} instead of {stretch.first}; "
                f"`loom logs {app_id}` shows why"
            )


def _compared(found: StoredCheckpoints, stretch: Stretch, replays: list[Replay]) -> dict[str, Any]:
    """Compare the replays with each other, then with the job's later checkpoints."""
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
    """Return the checkpoints of the same number of ranks; others have different tensors."""
    steps = sorted(found.storage.committed())
    return [step for step in steps if found.storage.manifest(step).world_size == ranks]


def _notes(stretch: Stretch, replays: list[Replay], limit: int) -> list[str]:
    notes = sorted({note for each in replays for note in each.notes})
    if limit < stretch.until:
        notes.append(
            f"a knob change at step {limit} could not be repeated: compared only up to there"
        )
    return notes


def _in_words(result: dict[str, Any]) -> list[str]:
    lines = [f"note: {note}" for note in result["notes"]]
    first, last = result["from"], result["until"]
    apart = result["difference"]
    if apart is not None:
        found = TrackDifference(apart["step"], apart["rank"], apart["tensor"])
        where = f"before step {found.step}, rank {found.rank}: {found.tensor}"
        return [*lines, f"not bit-exact: {where} differs between {apart['between']}"]
    marks = ", ".join(map(str, result["compared_with"]))
    also = f" and with the job's own checkpoint of step {marks}" if marks else ""
    count = last - first
    agree = f"{count} step{'' if count == 1 else 's'} from {first} agree in both replays{also}"
    lines.append(f"bit-exact: {agree}")
    if not marks:
        lines.append(
            "the job has no later checkpoint in these steps; only the replays were compared"
        )
    return lines
