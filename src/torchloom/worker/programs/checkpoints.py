"""Checkpoints that a trainer saves in its own way, as checkpoints of the run.

Beside what the trainer saves, each rank saves a small part of its own in the run's store: the
changes of knobs that are in force. Rank 0 adds names, sizes and hashes of the trainer's files once
all ranks have saved. A later process resumes from the newest whose files are still those.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from torchloom.bus.progress_page import StepPhase
from torchloom.checkpoint import open_storage, survey
from torchloom.checkpoint.errors import (
    BadManifest,
    CheckpointError,
    NotCommitted,
    StoreUnavailable,
)
from torchloom.checkpoint.layout import Draft
from torchloom.checkpoint.manifest import Manifest
from torchloom.checkpoint.storage import Pace, Storage
from torchloom.specs.jobspec import Checkpointing
from torchloom.worker import environment
from torchloom.worker.environment import CHECKPOINT_ROOT_VARIABLE, RESUME_VARIABLE
from torchloom.worker.programs.program import ObservedProgram
from torchloom.worker.run import agreement
from torchloom.worker.run.checkpoints import (
    NONE,
    CheckpointSaves,
    NotShared,
    check_shared,
    handle_signal,
    local_part,
    parsed,
    versions,
)
from torchloom.worker.saving import Reader, load
from torchloom.worker.threadlet.rank_identity import submitted

T = TypeVar("T")
_OTHERS = 60.0  # seconds for all ranks to save their parts
_FIRST_LOOK, _LAST_LOOK = 0.01, 0.5  # seconds between two checks for that; doubled in between
_FIXED = "NCCL_ALGO"  # NCCL sums in a fixed order only with a fixed algorithm


@dataclass(frozen=True, slots=True)
class TrainerSave:
    """What a trainer has just saved, before it is recorded."""

    step: int  # of the run
    path: str
    own: Mapping[str, Any]  # what this rank saves beside it
    facts: Mapping[str, Any]
    trigger: str


@dataclass(frozen=True, slots=True)
class FoundTrainerCheckpoint:
    """A checkpoint that a trainer saved; `own` is what this rank saved beside it."""

    step: int  # of the run
    place: str  # in the run's store
    path: str  # of the trainer's files
    own: Mapping[str, Any]
    manifest: Manifest

    def differences(self, world_size: int, framework: str, version: str) -> list[str]:
        """Return what is known to make the resumed training other than an undisturbed one."""
        found, manifest = [], self.manifest
        if manifest.world_size != world_size:
            found.append(f"world size {manifest.world_size} -> {world_size}")
        now = {"torch": versions()["torch"], framework: version}
        found += [
            f"{name} {was} -> {now[name]}"
            for name, was in manifest.versions.items()
            if name in now and was != now[name]
        ]
        if agreement.backend() not in ("", "gloo") and not environment.is_set(_FIXED):
            found.append(f"{agreement.backend()} may sum in another order: set {_FIXED}")
        torch: Any = sys.modules["torch"]
        is_on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        if is_on_gpu and not torch.are_deterministic_algorithms_enabled():
            found.append("torch.use_deterministic_algorithms is off")
        return found


class TrainerCheckpoints:
    """The checkpoints of one training: what its trainer saves, and where it resumes.

    `kind` is the trainer's framework. `training` counts the trainings of this process, from 1:
    a later process resumes each of them from its own checkpoints.
    """

    def __init__(self, program: ObservedProgram, kind: str, version: str, training: int) -> None:
        self._threadlet = program.threadlet
        self._kind = kind
        self._version = version
        self._training = training
        self._saves = CheckpointSaves(program.threadlet, Checkpointing())
        self._pending: TrainerSave | None = None
        self._excuse = ""
        self._since = time.monotonic()

    # Saving.

    @property
    def metrics(self) -> dict[str, Any]:
        """The last numbers of the training, which are kept with each checkpoint."""
        return self._saves.metrics

    def begin(self, is_alone: bool = False) -> None:
        """Before the first step: accept requests, and check the store. A collective call.

        A rank that joins a running training alone skips what the ranks check together.
        """
        if not self._saves.is_possible:
            return
        if is_alone:
            handle_signal(self._threadlet)
            return
        storage, rank = self._storage(), self._threadlet.identity.rank
        if rank == 0 and storage.root.startswith("/"):
            os.makedirs(storage.root, exist_ok=True)  # shows the launcher that this run saves
        try:
            check_shared(storage, rank)
        except NotShared as error:
            self._excuse = str(error)
            sys.stderr.write(f"loom: checkpoints of {self._kind} are not recorded: {error}\n")
            return
        if rank == 0:
            spec = submitted(environment.variables()).checkpointing
            every = spec.get("every_n_seconds") if spec.get("enabled", True) else None
            facts = {"every_n_seconds": every, "trainer": self._kind}
            self._threadlet.event("checkpointing", facts)
        handle_signal(self._threadlet)

    def why_unsaved(self, folder: str, size: int) -> str:
        """Return why a checkpoint of about this many bytes cannot be saved in a folder now."""
        if not self._saves.is_possible:
            return "the program was not started by `loom run`: its checkpoints are not recorded"
        return self._excuse or _why_unwritable(folder, size)

    def saved(self, save: TrainerSave) -> None:
        """Note that the trainer has saved on this rank; `record` follows when it continues.

        A trainer may save one step twice: then the second counts.
        """
        self._pending = save

    def record(self) -> None:
        """Record what was saved last, in the background."""
        save, self._pending = self._pending, None
        if save is None or self._excuse:
            return
        facts = {"versions": {self._kind: self._version}, "optimizer_state": True, **save.facts}
        self._saves.epoch = int(facts.get("epoch") or 0)
        rules = {"rules": self._threadlet.optimizers.state(), **save.own}
        more = self._files_of(save) if self._threadlet.identity.rank == 0 else None
        self._saves.save(save.step, save.trigger, lambda: ({}, rules, None), facts, more)

    def finish(self) -> None:
        """Record what was saved last, and wait until that is done."""
        self.record()
        self._saves.finish()

    # Live recovery.

    def state(self) -> dict[str, Any]:
        """Return what a joining rank needs of it."""
        return self._saves.state()

    def rejoin(self, step: int, generation: int, state: Mapping[str, Any] | None) -> None:
        """Continue at a step of another generation, with a peer's `state()` if it sent one."""
        self._saves.rejoin(step, generation, None if state is None else dict(state))

    def _files_of(self, save: TrainerSave) -> Callable[[Draft, Pace], Mapping[str, Any]]:
        """Return what lists the trainer's files, once all ranks have saved theirs."""

        def files(draft: Draft, pace: Pace) -> Mapping[str, Any]:
            storage = self._storage()
            _await_all(storage, draft, self._threadlet.identity.world_size, pace)
            found = survey(self._kind, save.path, self._training, pace)
            self._report_gone(storage)
            return {"trainer": found.to_dict()}

        return files

    def _report_gone(self, storage: Storage) -> None:
        """Report checkpoints whose files the trainer has removed."""
        for step in storage.committed():
            manifest = _manifest(storage, step)
            if manifest is not None and manifest.trainer and not manifest.trainer.exists():
                self._threadlet.event("checkpoint_gone", {"step": step})

    # Resuming.

    def find(self) -> FoundTrainerCheckpoint | None:
        """Return the checkpoint to resume from: the named one, or an older one if it is damaged.

        None for a new run. A collective call.
        """
        place = environment.text(RESUME_VARIABLE).rstrip("/")
        root, newest = parsed(place)
        self._since = time.monotonic()
        if place in ("", NONE) or newest is None or not root:
            return None
        storage = open_storage(root, environment.variables())
        asks = self._rank() == 0 or not agreement.together()  # one rank lists the checkpoints
        known, whole = self._candidates(storage, newest) if asks else (0, [])
        steps = iter(whole)
        while (step := agreement.gather(next(steps, -1))[0]) >= 0:
            found = self._opened(storage, step)
            if all(agreement.gather(int(found is not None))):
                return found
        if agreement.gather(known)[0]:
            self.begun_anew(f"no checkpoint of {self._kind} in {root} is intact")
        return None

    def find_saved(self, path: str) -> FoundTrainerCheckpoint | None:
        """Return what was saved beside a checkpoint that the program itself resumes from."""
        root = environment.text(CHECKPOINT_ROOT_VARIABLE)
        self._since = time.monotonic()
        if not root:
            return None
        storage = self._storage()
        for step in storage.committed():
            manifest = _manifest(storage, step)
            trainer = manifest.trainer if manifest is not None else None
            if manifest and trainer and os.path.realpath(trainer.path) == os.path.realpath(path):
                with contextlib.suppress(CheckpointError):
                    return self._loaded(storage, manifest)
        return None

    def restored(
        self, found: FoundTrainerCheckpoint | None, step: int, path: str, whys: list[str]
    ) -> None:
        """Continue at a step of the run, with the changes of knobs that were in force."""
        if found is not None:
            self._threadlet.resume_at(step, found.own["rules"])
            self._saves.saved = step
            world = self._threadlet.identity.world_size
            whys = found.differences(world, self._kind, self._version) + whys
        why = "; ".join(filter(None, whys))
        self._report(step, found.place if found else "", path, why)
        if why and self._rank() == 0:
            sys.stderr.write(f"loom: resumed at step {step}, not bit-exact: {why}\n")

    def _candidates(self, storage: Storage, newest: int) -> tuple[int, list[int]]:
        """Return how many checkpoints this training has up to a step, and which are there.

        Those that are gone are reported. The newest comes first.
        """
        known, steps = 0, []
        for step in storage.committed():
            if step > newest:
                continue
            manifest = self._useful(step, partial(storage.manifest, step))
            trainer = manifest.trainer if manifest is not None else None
            if trainer is None:
                continue
            is_mine = (trainer.kind, trainer.training) == (self._kind, self._training)
            known += is_mine
            if not trainer.exists():
                self._threadlet.event("checkpoint_gone", {"step": step})
            elif is_mine:
                steps.append(step)
        return known, steps

    def _opened(self, storage: Storage, step: int) -> FoundTrainerCheckpoint | None:
        """Return a checkpoint if its files are those that were saved; report one that is not.

        Ranks of one host check one part of the files each. A collective call.
        """

        def checked() -> FoundTrainerCheckpoint:
            manifest = storage.manifest(step)
            if manifest.trainer is None:
                raise BadManifest("it names no files of a trainer")
            manifest.trainer.part(*local_part(environment.variables())).verify(step)
            return self._loaded(storage, manifest)

        return self._useful(step, checked)

    def _loaded(self, storage: Storage, manifest: Manifest) -> FoundTrainerCheckpoint:
        rank, world = self._threadlet.identity.rank, self._threadlet.identity.world_size
        own = load(storage, manifest.step, Reader(rank, world)).own
        assert manifest.trainer is not None
        place = storage.place_of(manifest.step)
        return FoundTrainerCheckpoint(manifest.step, place, manifest.trainer.path, own, manifest)

    def _useful(self, step: int, read: Callable[[], T]) -> T | None:
        """Return the result of `read`; report a damaged checkpoint and return None."""
        try:
            return read()
        except StoreUnavailable:
            raise  # an older step would be taken for the newest
        except CheckpointError as error:
            name = str(getattr(error, "name", "") or "")
            facts: dict[str, Any] = {"step": step, "name": name, "why": str(error)}
            self._threadlet.event("checkpoint_damaged", facts)
            sys.stderr.write(f"loom: the checkpoint of step {step} cannot be used: {error}\n")
            return None

    def begun_anew(self, why: str) -> None:
        """Report that a training that was to be resumed begins at its first step."""
        if self._rank() == 0:
            sys.stderr.write(f"loom: {why}: the training begins at step 0\n")
        self._report(0, "", "", why)

    def _report(self, step: int, place: str, path: str, why: str) -> None:
        seconds = round(time.monotonic() - self._since, 3)
        facts: dict[str, Any] = {"step": step, "checkpoint": place, "path": path}
        facts |= {"trainer": self._kind, "seconds": seconds, "exact": not why, "why": why}
        self._threadlet.event("restored", facts)

    def _storage(self) -> Storage:
        return open_storage(self._saves.root, environment.variables())

    def _rank(self) -> int:
        return self._threadlet.identity.rank

    def enter(self, phase: StepPhase) -> None:
        """Show what this rank is busy with."""
        self._threadlet.page.enter(phase, time.monotonic_ns())


def _manifest(storage: Storage, step: int) -> Manifest | None:
    """Return what is committed of a step; None if that cannot be read."""
    try:
        return storage.manifest(step)
    except (BadManifest, NotCommitted):
        return None


def _await_all(storage: Storage, draft: Draft, world_size: int, pace: Pace) -> None:
    """Wait until all ranks write their parts of a draft: each has saved what is its own before."""
    deadline, look = time.monotonic() + _OTHERS, _FIRST_LOOK
    while (count := len(storage.written(draft))) < world_size:
        if time.monotonic() > deadline:
            raise CheckpointError(f"{count} of {world_size} ranks have saved step {draft.step}")
        pace()
        time.sleep(look)
        look = min(2 * look, _LAST_LOOK)


def _why_unwritable(folder: str, size: int) -> str:
    """Return why nothing of this size can be written in a folder; empty if it seems possible."""
    while not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    try:
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return f"nothing can be saved in {folder}: {error.strerror or error}"
    if free < size:
        return f"{folder} has {free >> 20} MiB free, and a checkpoint takes about {size >> 20}"
    return ""
