"""Runs as experiments, alone and side by side."""

from typing import Annotated, Any

from pydantic import Field

from torchloom.server.models.common import LONGEST, Answer, Request
from torchloom.server.paging import Page


class Run(Answer, schema="Run"):
    """One experiment of a job, as lists show it."""

    run_id: str
    job_id: str
    name: str
    owner: str
    state: str
    created_at: str | None
    metrics: dict[str, Any]


class ListedRun(Run, schema="ListedRun"):
    """A run in a list, with what it was given."""

    config: dict[str, Any]


class Runs(Page, schema="Runs"):
    items: list[ListedRun]


class RunDetail(Run, schema="RunDetail"):
    """One experiment with everything that was recorded of it."""

    config: dict[str, Any]
    timeline: list[dict[str, Any]]
    artifacts: list[dict[str, Any]]


class CompareRequest(Request, schema="CompareRequest"):
    """Which runs to lay side by side."""

    runs: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=LONGEST)]],
        Field(min_length=2, max_length=20),
    ]


class Comparison(Answer, schema="Comparison"):
    """Runs side by side: what differs in their settings, what came of each."""

    runs: list[Run]
    config: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
