"""The table of kinds: all of it is carried out, undone, documented."""

import re
from pathlib import Path

import pytest

from torchloom.chaos.faults.actions import WAYS
from torchloom.chaos.faults.kinds import KINDS, RANK, UnknownKind, kinds_of, table_rows
from torchloom.errors import UserError
from torchloom.rules import lifecycle

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "chaos.md"


def test_every_kind_has_a_way_and_every_way_a_kind() -> None:
    assert list(KINDS) == list(WAYS)
    assert len(KINDS) == 12


def test_only_kinds_that_hit_a_rank_end_one() -> None:
    assert [kind.name for kind in KINDS.values() if kind.ends_rank] == ["kill", "raise"]
    assert [kind.name for kind in KINDS.values() if kind.hits == RANK] == ["kill", "stop", "raise"]


def test_only_links_need_root_and_what_lasts_can_be_told_how_long() -> None:
    assert [kind.name for kind in KINDS.values() if kind.root] == ["cut-link", "slow-link"]
    assert all(kind.lasts == ("lasts" in kind.fields) for kind in KINDS.values())


def _reasons(kind: str, rank: str) -> list[str]:
    return [reason.replace("{rank}", rank) for reason in KINDS[kind].reasons]


def test_the_reasons_are_those_that_the_rules_spell() -> None:
    assert _reasons("kill", "2") == [lifecycle.exit_reason(2, -9)]
    assert _reasons("raise", "2") == [lifecycle.exit_reason(2, 1)]
    stopped = [
        lifecycle.hang_reason(3),
        lifecycle.heartbeat_reason(3),
        lifecycle.exit_reason(3, -9),
    ]
    assert _reasons("stop", "3") == stopped
    node = lifecycle.node_reason("n1")
    assert any(re.fullmatch(one, node) for one in _reasons("cut-link", "[0-9]+"))
    assert _reasons("kill-weaver", "") == []


def test_kinds_are_named_by_a_list_each_once() -> None:
    assert [kind.name for kind in kinds_of("stop, kill,stop,")] == ["stop", "kill"]
    with pytest.raises(UnknownKind):
        kinds_of("kill,stab")
    with pytest.raises(UserError, match="--kinds is empty; known: kill, stop"):
        kinds_of(",")


def test_the_page_has_the_table() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.*?) \| (.*?) \| (.*?) \|", PAGE.read_text(), re.M)

    assert [row[0] for row in rows] == list(KINDS)
    assert [row[:2] for row in rows] == [row[:2] for row in table_rows()]
    assert [row[3] for row in rows] == [row[3] for row in table_rows()]
