"""Errors of checkpoints, as one tree.

CheckpointError
├── BadManifest         a manifest that no commit of ours can have written
├── NotCommitted        there is no checkpoint of this step
├── AlreadyCommitted    another, intact checkpoint of this step is there
├── Incomplete          a draft lacks a shard that its manifest names
├── Damaged             a committed checkpoint lacks bytes, or has others than were written
├── NotHashed           what a trainer saved was removed or changed while it was read
├── Fenced              a newer generation of the run has begun; the older may not commit
└── StoreUnavailable    the store did not answer, or is full; the same call may succeed later
"""

from torchloom.errors import Failure, UserError, shorten


class BadRoot(UserError):
    """A place for checkpoints that cannot be one."""

    code = "bad_checkpoint_root"


class CheckpointError(Failure):
    """Saving, committing or reading a checkpoint did not work."""

    code = "checkpoint_error"


class BadManifest(CheckpointError):
    """The text is no manifest; the message names the field."""

    code = "bad_manifest"

    def __init__(self, why: str) -> None:
        self.why = shorten(why, 300)
        super().__init__(f"not a manifest of a checkpoint: {self.why}")


class NotCommitted(CheckpointError):
    """No checkpoint of this step is committed."""

    code = "not_committed"

    def __init__(self, root: str, step: int) -> None:
        self.step = step
        super().__init__(f"no checkpoint of step {step} in {root}; `loom checkpoint ls` shows all")


class AlreadyCommitted(CheckpointError):
    """An intact checkpoint of this step, with another manifest, is there; it stays."""

    code = "already_committed"

    def __init__(self, root: str, step: int) -> None:
        self.step = step
        super().__init__(f"step {step} is already committed in {root} and intact: it is kept")


class Incomplete(CheckpointError):
    """A shard of the draft is missing or has another size than in its manifest."""

    code = "incomplete_checkpoint"

    def __init__(self, step: int, name: str, why: str) -> None:
        self.step = step
        self.name = name
        self.why = why
        super().__init__(f"the draft of step {step} cannot be committed: {name}: {why}")


class Damaged(CheckpointError):
    """A committed checkpoint has changed since; an older one must be used."""

    code = "damaged_checkpoint"

    def __init__(self, step: int, name: str, why: str) -> None:
        self.step = step
        self.name = name
        self.why = why
        super().__init__(f"the checkpoint of step {step} is damaged: {name}: {why}")


class Fenced(CheckpointError):
    """The commit is of a generation that has been replaced."""

    code = "fenced"

    def __init__(self, generation: int, fence: int) -> None:
        self.generation = generation
        self.fence = fence
        super().__init__(
            f"generation {generation} may not commit: generation {fence} of the run has begun"
        )


class StoreUnavailable(CheckpointError):
    """The store failed in a way that may pass: full, broken, not reachable, not allowed."""

    code = "store_unavailable"

    def __init__(self, root: str, why: str) -> None:
        self.root = root
        self.why = shorten(why, 300)
        super().__init__(f"the checkpoint store {root} is unavailable: {self.why}")
