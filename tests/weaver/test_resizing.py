"""A wish for other ranks lasts as long as the command that is to end those there are."""

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from torchloom.rules.command import Status
from torchloom.weaver.jobs import RELEASING, RESIZING
from torchloom.weaver.resizing import Resizing


@pytest.mark.parametrize(
    ("status", "is_void"),
    [
        (Status.ACCEPTED, False),
        (Status.PREPARING, False),
        (Status.APPLIED, False),
        (Status.REFUSED, True),
        (Status.ABORTED, True),
    ],
)
def test_a_wish_goes_with_its_command(status: Status, is_void: bool) -> None:
    wish = {"command": "c2", "workers": 1, "author": "ann", "reason": ""}
    job = SimpleNamespace(id="j", state="RUNNING", reason="", facts={RESIZING: wish})
    audit = [
        SimpleNamespace(id="c1", status=Status.REFUSED),
        SimpleNamespace(id="c2", status=status),
    ]
    weaver: Any = MagicMock()
    weaver.jobs.active.return_value, weaver.jobs.get.return_value = [job], job
    weaver.commands.state.return_value.audit = audit
    resizing = Resizing(weaver, MagicMock(), MagicMock())

    resizing.look()

    let_go = [("j", {RELEASING: False, RESIZING: None})] if is_void else []
    assert [call.args for call in weaver.jobs.mark.call_args_list] == let_go
