"""Any order of saving, dying, fencing, damaging and removing leaves a store a model can predict."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from torchloom.checkpoint import (
    AlreadyCommitted,
    Draft,
    Fenced,
    Incomplete,
    LocalStorage,
    NotCommitted,
    shard_name,
)

from .scenarios import manifest_of, write
from .witness import content, spoil, whole_steps

pytestmark = pytest.mark.process

STEPS = st.sampled_from([7, 100, 99_999, 100_000])
GENERATIONS = st.integers(0, 3)


class Store(RuleBasedStateMachine):
    """A store in a folder beside a model of it: what is committed, drafted, damaged, fenced."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
        self.storage = LocalStorage(str(self.root))
        self.committed: dict[int, int] = {}
        self.damaged: set[int] = set()
        self.drafts: set[tuple[int, int]] = set()
        self.halves: set[tuple[int, int]] = set()
        self.fence = 0

    def teardown(self) -> None:
        """Leave nothing."""
        shutil.rmtree(self.root)

    @rule(step=STEPS, generation=GENERATIONS)
    def write(self, step: int, generation: int) -> None:
        """Have all ranks write."""
        write(self.storage, step, generation)
        self.drafts.add((step, generation))
        self.halves.discard((step, generation))

    @rule(step=STEPS, generation=GENERATIONS)
    def commit(self, step: int, generation: int) -> None:
        """Commit, and expect what the model says."""
        there = self.committed.get(step)
        expected: type[Exception] | None = None
        if there == generation:  # again; a flipped bit is not looked for then
            pass
        elif self.fence > generation:
            expected = Fenced
        elif (step, generation) not in self.drafts:
            expected = Incomplete
        elif there is not None and step not in self.damaged:
            expected = AlreadyCommitted
        else:
            self.committed[step] = generation
            self.damaged.discard(step)
            self.drafts.discard((step, generation))

        refused = pytest.raises(expected) if expected else contextlib.nullcontext()
        with refused:
            self.storage.commit(Draft(step, generation, 1), manifest_of(step, generation))

    @rule(generation=GENERATIONS)
    def restart(self, generation: int) -> None:
        """Fence, and clear the drafts of older generations."""
        self.storage.fence(generation)
        cleared = self.storage.clear_drafts(generation)

        self.fence = max(self.fence, generation)
        old = {draft for draft in self.drafts | self.halves if draft[1] < generation}
        self.drafts -= old
        self.halves -= old
        assert cleared == sorted(Draft(*draft, 1).name for draft in old)

    @rule(step=STEPS, generation=GENERATIONS)
    def write_half(self, step: int, generation: int) -> None:
        """Have a writer die in the middle."""
        data = memoryview(content(step, 0, generation))
        self.storage.write_shard(Draft(step, generation, 1), shard_name(0), [data])
        if (step, generation) not in self.drafts:
            self.halves.add((step, generation))

    @rule(step=STEPS, generation=GENERATIONS)
    def discard(self, step: int, generation: int) -> None:
        """Give a draft up."""
        self.storage.discard(Draft(step, generation, 1))
        self.drafts.discard((step, generation))
        self.halves.discard((step, generation))

    @rule(step=STEPS)
    def damage(self, step: int) -> None:
        """Flip a bit of what is committed."""
        if step in self.committed and step not in self.damaged:
            spoil(self.root / f"ckpt_step_{step:05d}" / "worker_0.pt")
            self.damaged.add(step)

    @rule(step=STEPS)
    def remove(self, step: int) -> None:
        """Remove one, or none."""
        self.storage.remove(step)
        self.committed.pop(step, None)
        self.damaged.discard(step)

    @rule(step=STEPS)
    def set_aside(self, step: int) -> None:
        """Set one aside, if it is there."""
        with contextlib.suppress(NotCommitted):
            self.storage.set_aside(step)
            assert step in self.committed
        self.committed.pop(step, None)
        self.damaged.discard(step)

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        """The store, the witness and the model agree."""
        assert self.storage.committed() == sorted(self.committed, reverse=True)
        assert self.storage.latest() == max(self.committed, default=None)
        intact = {step: g for step, g in self.committed.items() if step not in self.damaged}
        assert whole_steps(self.root) == intact


TestStore = Store.TestCase
TestStore.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
