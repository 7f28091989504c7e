"""A wish for other ranks lasts as long as the command that is to end those there are."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from torchloom.rules.control.command import Status
from torchloom.weaver.api.resumption import ResizeApi
from torchloom.weaver.jobs.registry import RELEASING, RESIZING


@pytest.mark.parametrize(
    ("status", "is_void"),
    [
        (Status.ACCEPTED, False),
        (Status.PREPARING, False),
        (Status.APPLIED, False),
        (Status.REFUSED, True),
        (Status.ABORTED, True),
        (None, True),  # the weaver before came no further than the wish
    ],
)
def test_a_wish_goes_with_its_command(status: Status | None, is_void: bool) -> None:
    wish = {"command": "c2", "workers": 1, "author": "ann", "reason": ""}
    job = SimpleNamespace(id="j", state="RUNNING", reason="", facts={RESIZING: wish})
    weaver: Any = MagicMock()
    weaver.jobs.active.return_value, weaver.jobs.get.return_value = [job], job
    weaver.jobs.mark.side_effect = lambda _, facts: job.facts.update(facts)
    weaver.commands.status.side_effect = lambda job, command: {"c2": status}[command]
    resizing = ResizeApi(weaver, MagicMock(), MagicMock())

    resizing.check()

    let_go = [("j", {RELEASING: None, RESIZING: None})] if is_void else []
    assert [call.args for call in weaver.jobs.mark.call_args_list] == let_go
