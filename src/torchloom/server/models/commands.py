"""Commands to a running job, their previews and their outcomes."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchloom.server.models.common import Answer, Page, Request, Text


class Checkpoint(Answer, schema="Checkpoint"):
    """One attempt to write a checkpoint, and its outcome."""

    job: str
    step: int
    generation: int
    attempt: int
    state: Literal["writing", "committing", "committed", "failed", "removing", "removed", "damaged"]
    world_size: int
    bytes: int
    place: str
    metrics: dict[str, float]
    trigger: str
    trainer: str = Field(description="the program's trainer that saved it in its own way, or empty")
    path: str = Field(description="where the trainer's files are, or empty")
    reason: str
    created_at: str | None
    committed_at: str | None
    seconds: float | None = Field(description="seconds from its first shard to its commit")


class Checkpoints(Page, schema="Checkpoints"):
    items: list[Checkpoint]


class Check(Answer, schema="Check"):
    """One check of a checkpoint, by reading and hashing it, and its result."""

    id: str
    job: str
    step: int
    state: Literal["waiting", "running", "whole", "damaged", "failed"]
    bytes: int
    read: int = Field(description="bytes read so far")
    shard: str | None = Field(description="the damaged file")
    reason: str
    author: str
    asked_at: str | None
    seconds: float | None = Field(description="seconds that the check took, once it has ended")


class CommandRank(Answer, schema="CommandRank"):
    """What one rank did."""

    rank: int
    state: str
    step: int | None


class Command(Answer, schema="Command"):
    """A command to a running job and its outcome."""

    id: str
    number: int
    job: str
    kind: str
    payload: Any
    at: int | None
    author: str
    reason: str
    asked_at: str | None
    state: str
    generation: int
    effective_step: int | None
    before: Any
    after: Any
    outcome: str
    ended_at: str | None
    ranks: list[CommandRank]
    checkpoint: Checkpoint | None = Field(
        default=None, description="for `checkpoint`: the checkpoint that was saved"
    )


class Commands(Page, schema="Commands"):
    items: list[Command]


Scalar = bool | int | float | str


class CommandRequest(Request, schema="CommandRequest"):
    """Change a running job at one step on all its ranks."""

    verb: Literal["set", "undo", "pause", "resume", "resize", "stop", "checkpoint"]
    values: Annotated[dict[str, Scalar], Field(max_length=100)] | None = Field(
        default=None, description="for `set`: knobs and their new values"
    )
    hold: bool = Field(
        default=False, description="for `set`: keep the value fixed, whatever the schedule"
    )
    guard: Text | None = Field(
        default=None, description="for `set`: undo the change if this condition becomes true"
    )
    span: Annotated[int, Field(ge=1, le=1 << 40)] | None = Field(
        default=None, description="for `set`: number of steps for which the guard applies"
    )
    command: Text | None = Field(
        default=None, description="for `undo`: the id of the change; default: the last one"
    )
    at: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        default=None, description="earliest step at which to act; default: the next possible one"
    )
    workers: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="for `resize`, and for `resume` of an ended job: the new number of ranks",
    )
    from_step: Annotated[int, Field(ge=0, lt=1 << 62)] | None = Field(
        default=None, description="for `resume`: the step of the checkpoint; default: the newest"
    )
    until: Annotated[int, Field(ge=1, lt=1 << 62)] | None = Field(
        default=None,
        description="for `resume`: train up to this step; extends a completed job",
    )
    distributed: dict[str, Any] | None = Field(
        default=None,
        description=(
            "for `resume` of an ended job: changes of `distributed` in its job file, such as"
            " `strategy` and `mesh`"
        ),
    )
    from_scratch: bool = Field(
        default=False, description="for `resume`: start over if there is no checkpoint"
    )
    unpause: bool = Field(
        default=False,
        description="for `resume`: only continue a paused job; an ended job is not restarted",
    )
    release: bool = Field(
        default=False, description="for `pause`: save, end the ranks and release their devices"
    )
    reason: Text = ""
    wait: Annotated[float, Field(ge=0, le=60)] = Field(
        default=30.0, description="seconds to wait for the outcome"
    )


class PreviewRequest(CommandRequest, schema="PreviewRequest"):
    """A command that is only previewed; `cancel` is what DELETE of a job does."""

    verb: Literal["set", "undo", "pause", "resume", "resize", "stop", "checkpoint", "cancel"]  # type: ignore[assignment]


class Change(Answer, schema="Change"):
    """A knob, its current value and the one it would get."""

    name: str
    before: Any
    after: Any


class Preview(Answer, schema="Preview"):
    """What a command would do, or why it would be refused."""

    job: str
    verb: str
    ok: bool
    summary: str
    ranks: list[int] = Field(description="the ranks that the command would reach")
    effective_step: int | None = Field(
        description="approximate step; null if it does not wait for a step"
    )
    changes: list[Change]
    warnings: list[str]
    refused: dict[str, Any] | None = Field(description="the problem that the command would return")
    command: str = Field(description="the `loom` command that does the same")
