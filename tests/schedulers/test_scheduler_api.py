import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import UserError
from torchloom.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    Stream,
    filter_regex,
    split_lines,
    split_lines_iterator,
)
from torchloom.schedulers.local_request import make_unique, random_id
from torchloom.specs.api import (
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    Resource,
    Role,
    Workspace,
    runopts,
)

RECORDED = json.loads(
    Path(__file__).parents[1].joinpath("runner/recordings/torchx.json").read_text()
)


class Memory(Scheduler[str]):
    """The smallest engine: what is scheduled is remembered."""

    def __init__(self) -> None:
        super().__init__("memory", "session")
        self.apps: dict[str, str] = {}

    def _run_opts(self) -> runopts:
        opts = runopts()
        opts.add("queue", type_=str, required=True, help="where")
        opts.add("priority", type_=int, default=3, help="how soon")
        return opts

    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[str]:
        return AppDryRunInfo(f"{app.name}@{cfg['queue']}/{cfg['priority']}", str)

    def schedule(self, dryrun_info: AppDryRunInfo[str]) -> str:
        self.apps["id-1"] = dryrun_info.request
        return "id-1"

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        return DescribeAppResponse(app_id) if app_id in self.apps else None

    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        return [ListAppResponse(app_id, AppState.RUNNING) for app_id in self.apps]

    def _cancel_existing(self, app_id: str) -> None:
        self.apps[app_id] = "cancelled"


class Louder(Role):
    def pre_proc(self, scheduler: str, dryrun_info: AppDryRunInfo[Any]) -> AppDryRunInfo[Any]:
        dryrun_info.request = f"{dryrun_info.request} on {scheduler} by {self.name}!"
        return dryrun_info


def app(*roles: Role) -> AppDef:
    return AppDef("app", list(roles) or [Role("a", "")])


def test_a_dry_run_fills_in_the_options_and_says_what_it_is_of() -> None:
    asked = app()

    info = Memory().submit_dryrun(asked, {"queue": "q", "extra": "kept"})

    assert (info.request, str(info)) == ("app@q/3", "app@q/3")
    assert info.app is asked
    assert dict(info.cfg) == {"queue": "q", "extra": "kept", "priority": 3}
    assert info._scheduler == "memory"


def test_every_role_may_change_the_request_in_turn() -> None:
    info = Memory().submit_dryrun(app(Louder("a", ""), Louder("b", "")), {"queue": "q"})

    assert info.request == "app@q/3 on memory by a! on memory by b!"


def test_submit_is_a_dry_run_that_is_scheduled() -> None:
    engine, asked = Memory(), app()

    assert engine.submit(asked, {"queue": "q"}, workspace="/p") == "id-1"
    assert engine.apps == {"id-1": "app@q/3"}
    assert asked.roles[0].workspace == Workspace({"/p": ""})


def test_what_is_unknown_is_neither_cancelled_nor_deleted() -> None:
    engine = Memory()

    engine.cancel("id-9")
    engine.delete("id-9")

    assert engine.apps == {}
    assert not engine.exists("id-9")


def test_an_engine_says_what_it_cannot_do() -> None:
    engine = Memory()
    engine.submit(app(), {"queue": "q"})

    with pytest.raises(UserError, match="memory cannot delete apps"):
        engine.delete("id-1")
    with pytest.raises(UserError, match="memory keeps no logs"):
        engine.log_iter("id-1", "a", 0)


def test_most_engines_want_to_know_what_a_role_needs() -> None:
    engine = Memory()
    engine._validate(app(Role("a", "", resource=Resource(cpu=1, memMB=128))), "memory", {})

    with pytest.raises(UserError, match="role 'b' names no resource; memory needs one"):
        engine._validate(app(Role("b", "")), "memory", {})


# Lines.


@pytest.mark.parametrize(("text", "expected"), RECORDED["split_lines"])
def test_lines_are_split_as_torchx_splits_them(text: str, expected: list[str]) -> None:
    assert split_lines(text) == expected


def test_lines_out_of_chunks_are_whole_wherever_the_chunks_were_cut() -> None:
    text = "one\ntwo\n\nthree"

    for size in range(1, len(text) + 1):
        cut: Iterator[str] = (text[i : i + size] for i in range(0, len(text), size))
        assert list(split_lines_iterator(cut)) == ["one\n", "two\n", "\n", "three"]


def test_a_regex_is_found_anywhere_in_a_line() -> None:
    assert list(filter_regex(r"\d", ["a1\n", "b\n", "2"])) == ["a1\n", "2"]


def test_streams_have_torchxs_names() -> None:
    assert [stream.value for stream in Stream] == ["stdout", "stderr", "combined"]


# Names.


def test_a_made_name_is_the_given_one_and_something_nobody_else_has() -> None:
    names = {make_unique("app") for _ in range(1000)}

    assert len(names) == 1000
    assert all(name.startswith("app-") and len(name) == len("app-") + 13 for name in names)


def test_random_characters_are_fit_for_any_engine_and_spell_no_words() -> None:
    made = [random_id(5) for _ in range(500)]

    assert all(len(text) == 5 and text[0].isalpha() and text == text.lower() for text in made)
    assert not set("".join(made)) & set("aeiouy")
    assert len(make_unique("x", 7)) == len("x-") + 7
