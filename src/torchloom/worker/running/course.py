"""One training from its first step to its last, over however many lives of its ranks."""

import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchloom.specs.jobspec import Checkpointing, Mode
from torchloom.worker.running import digests, exactness, peers, restoring
from torchloom.worker.running.loader import Loader
from torchloom.worker.running.restoring import Found
from torchloom.worker.running.saves import Saves
from torchloom.worker.running.seeding import mix, seed_generators
from torchloom.worker.running.sources import Dealt, Source, open_source
from torchloom.worker.running.things import State, Things
from torchloom.worker.running.wrap import Wrapped
from torchloom.worker.threadlet.submitted import Submitted
from torchloom.worker.threadlet.threadlet import Threadlet


class Course:
    """What a run carries from life to life, and where it is."""

    def __init__(self, threadlet: Threadlet, spec: Submitted) -> None:
        self.things = Things()
        self.saves = Saves(threadlet, wishes_of(spec.checkpointing))
        self.resumed_from: int | None = None
        self._threadlet = threadlet
        self._spec = spec
        self._place = restoring.named(os.environ)
        self._seed: int | None = None
        self._order = 0  # 0 where the program seeded all ranks alike, else a rank's own number
        self._found: Found | None = None
        self._since = 0.0  # when this life began to look for it
        self._looked = False
        self._loops = 0  # calls of run.steps
        self._source: Source | None = None
        self._rank = 0
        self._is_open = False  # whether it can be asked to save
        self._is_steady = False  # whether a step was applied in this life
        folder, seat = os.environ.get(digests.VARIABLE), threadlet.seat
        self._digests = (
            digests.Digests(Path(folder), seat.rank, seat.generation) if folder else None
        )

    # What the program hands over.

    def wrap(self, model: nn.Module, name: str, options: Mapping[str, Any]) -> Wrapped:
        """Have all ranks train a model together, and carry it."""
        wrapped = Wrapped(model, options, sync=not self._place)
        self.things.add_model(name, wrapped)
        return wrapped

    def loader(self, dataset: Any, **more: Any) -> Loader:
        """Deal a dataset to all ranks."""
        return Loader(dataset, weakref.proxy(self), **more)

    def wish(self, told: Mapping[str, Any]) -> None:
        """Save as the program says, whatever the job said."""
        self.saves.wishes = wishes_of(told)

    # Who is there, and what all of them draw from.

    @property
    def rank(self) -> int:
        """Return this rank's number among those that train together."""
        return dist.get_rank() if peers.together() else self._threadlet.seat.rank

    @property
    def world_size(self) -> int:
        """Return how many train together."""
        return dist.get_world_size() if peers.together() else self._threadlet.seat.world_size

    @property
    def seed(self) -> int:
        """Return the run's seed: the job's, else rank 0's own of the run's first life."""
        if self._seed is None:
            if self._place and self.things:
                self._look()
            if self._seed is None:
                told = peers.gather(torch.initial_seed() & (1 << 63) - 1)
                self._order = 0 if len(set(told)) == 1 else self.rank + 1
                self._seed = told[0] if self._spec.seed is None else self._spec.seed
        return self._seed

    # The loop.

    @property
    def has_begun(self) -> bool:
        """Tell whether it is known by now where this life begins."""
        return self._source is not None

    def begin(self, source: Any, first: int, epochs: int, step: int) -> tuple[Dealt, int] | None:
        """Begin a loop where it is to begin; return its batches, and the number of its first step.

        Nothing where an earlier life has been through it already.
        """
        self._loops += 1
        if self.things and not self._looked:
            self._look()
        if self._found is not None and self._found.loaded.own["loop"] > self._loops:
            return None
        self._source = open_source(source, first, epochs, mix("loader", self.seed, self._order))
        if self._found is not None:
            step, self._found = self._restore(self._found), None
        self._rank = self.rank
        if self.things and not self._is_open:
            self._is_open = True
            self.saves.begin(step, lambda at: self.save(at, "command"))
        return self._source.deal(), step

    def boundary(self, step: int) -> None:
        """Before a step: save what is to be saved, and have everybody draw what follows from it."""
        if not self.things:
            return
        if self._digests is not None:
            self._digests.write(step, self.things.tensors())
        if trigger := self.saves.due(step):
            self.save(step, trigger)
        if self._is_steady:
            self.saves.prepare(self._capture)
        self._is_steady = True
        self.things.begin_step()
        seed_generators(mix("step", self._seed or 0, self._rank, step))

    def save(self, step: int, trigger: str) -> None:
        """Save the state before this step."""
        if self.things:
            facts = {"optimizer_state": self.things.has_optimizer}
            self.saves.save(step, trigger, self._capture, facts)

    def finish(self, step: int, trigger: str, anyway: bool = False) -> None:
        """End a loop: save a last time, and wait until it is written."""
        if not self.things:
            return
        if self._digests is not None:
            self._digests.write(step, self.things.tensors())
        if self.saves.wishes.enabled or self.saves.wanted or anyway:
            self.save(step, trigger)
        self.saves.finish()

    def noting(self, add: Callable[[int, dict[str, Any]], None]) -> Callable[..., None]:
        """Return what logs, and remembers the last numbers: checkpoints are chosen by them."""
        last = self.saves.metrics

        def note(step: int, values: dict[str, Any]) -> None:
            add(step, values)
            for name, value in values.items():
                last[name] = value.detach() if isinstance(value, Tensor) else value

        return note

    # What is saved, and put back.

    def _capture(self) -> tuple[State, State]:
        position = self._source.position() if self._source is not None else {}
        self.saves.epoch = int(position.get("epoch", 0))
        where = {"loop": self._loops, "position": position}
        chance = {"seed": self.seed, "order": self._order}
        shared = {**self.things.shared(), "knobs": self._threadlet.optimizers.state()}
        return shared, {**self.things.own(), **where, **chance}

    def _look(self) -> None:
        """Find what to go on from, once; all ranks come here together."""
        self._looked = True
        if not self._place:
            return
        self._since = time.monotonic()
        tell = self._threadlet.event
        self._found = restoring.find(self._place, self.rank, self.world_size, tell)
        if self._found is None:
            self._begin_anew()
        else:
            own = self._found.loaded.own
            self._seed, self._order = int(own["seed"]), int(own["order"])
            if not self._found.loaded.exact_world and self._order:
                self._order = self.rank + 1

    def _begin_anew(self) -> None:
        why = f"no checkpoint of {self._place.rpartition('/')[0]} is intact"
        sys.stderr.write(f"loom: {why}: the run begins at step 0\n")
        for model in self.things.models.values():
            model.rebuild(sync=True)
        self._tell_restored(0, "", why)
        self._place = ""

    def _restore(self, found: Found) -> int:
        """Give everything the state of the checkpoint; return its step."""
        loaded, step = found.loaded, int(found.loaded.step)
        own = dict(loaded.own)
        if not loaded.exact_world:
            own.pop("gradients", None)  # of ranks that are others now
        whys = exactness.differences(loaded, self.things, self.world_size)
        whys += self.things.put_back(loaded.shared, own)
        if self._source is not None:
            whys.append(
                self._source.restore(own["position"], loaded.manifest.world_size, self.world_size)
            )
        if found.root == self.saves.root:
            self.saves.saved = step
        self.resumed_from = step
        self._threadlet.go_on(step, loaded.shared["knobs"])
        why = "; ".join(filter(None, whys))
        self._tell_restored(step, found.place, why)
        if why and self.rank == 0:
            sys.stderr.write(f"loom: resumed at step {step}, not bit-exact: {why}\n")
        return step

    def _tell_restored(self, step: int, place: str, why: str) -> None:
        seconds = round(time.monotonic() - self._since, 3)
        facts: dict[str, Any] = {"step": step, "checkpoint": place, "seconds": seconds}
        self._threadlet.event("restored", {**facts, "exact": not why, "why": why})


def wishes_of(told: Mapping[str, Any]) -> Checkpointing:
    """Return what a job says of its checkpoints; it was checked when it was submitted."""
    known = {name: told[name] for name in Checkpointing.__slots__ if name in told}
    if "mode" in known:
        known["mode"] = Mode(known["mode"])
    return replace(Checkpointing(), **known)
