"""A threadlet inside a plain program: it tells the truth, and it is in nobody's way."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

import torchloom.worker.start
from torchloom.bus.codec import frame
from torchloom.bus.progress_page import PageView, StepPhase
from torchloom.messages.plane import (
    Applied,
    Event,
    Goodbye,
    Head,
    Metrics,
    Outcome,
    Planned,
    Ready,
    Register,
)
from torchloom.worker.threadlet import attach

from ...harness.home import TIMEOUT, until
from .conftest import SCRIPTS, Ranks
from .fake_agent import listening

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]

ENTRY = torchloom.worker.start.__file__


def cold(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program through our own entry, in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, ENTRY, *words],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT,  # importing torch takes its time on a busy machine
        check=False,
    )


def test_a_fresh_interpreter_is_attached_and_ends_as_it_would(tmp_path: Path) -> None:
    with listening(tmp_path / "agent") as agent:
        done = cold("file", str(SCRIPTS / "plain.py"), LOOM_AGENT=str(agent.path), LOOM_JOB="j")
        agent.wait(Goodbye)

    assert (done.returncode, done.stderr) == (0, "")
    assert float(done.stdout) == pytest.approx(-1.0)
    assert [one.boundary for one in agent.of(Register)][-1] == "attached"
    assert agent.of(Goodbye)[0].step == 20
    assert {one.head.job for one in agent.heard} == {"j"}
    assert len({one.head.incarnation for one in agent.heard}) == 1


@pytest.mark.parametrize("more", [{"LOOM_ATTACH": "0"}, {"LOOM_AGENT": "", "LOOM_PAGE": ""}])
def test_a_program_is_left_alone_where_that_is_wanted(tmp_path: Path, more: dict[str, str]) -> None:
    code = "import torch, threading, sys; print(threading.active_count(), 'msgspec' in sys.modules)"
    with listening(tmp_path / "agent") as agent:
        done = cold("code", code, **{"LOOM_AGENT": str(agent.path), **more})

    assert (done.returncode, done.stdout, done.stderr) == (0, "1 False\n", "")
    assert agent.connections == 0


def test_torch_is_never_imported_for_a_program_that_does_not(tmp_path: Path) -> None:
    code = "import sys; print('torch' in sys.modules, 'msgspec' in sys.modules)"
    with listening(tmp_path / "agent") as agent:
        done = cold("code", code, LOOM_AGENT=str(agent.path))

    assert (done.returncode, done.stdout, done.stderr) == (0, "False False\n", "")


def test_an_agent_that_is_not_there_changes_nothing(ranks: Ranks) -> None:
    plain = ranks.run("plain.py", attach=False)
    alone = ranks.run("plain.py", LOOM_PAGE=str(ranks.folder / "no" / "page"))
    ranks.agent.close()
    absent = ranks.run("plain.py")

    assert absent == plain
    assert alone[0].splitlines()[-1] + "\n" == plain[0]
    assert "no progress page" in alone[0]


def test_the_page_says_how_far_the_rank_is(ranks: Ranks) -> None:
    running = ranks.start("plain.py", STEPS="60", PAUSE="0.01")
    ranks.agent.wait_for_boundaries(1)
    view = PageView.open(ranks.folder / "page-0")
    assert view is not None
    until(lambda: view.read().step >= 5)
    early = view.read()
    ranks.printed(running)
    late = view.read()

    assert (early.phase, late.step, late.applied) == (StepPhase.STEP, 60, 60)
    assert 0.005e9 < early.lasted_ns < 0.2e9
    assert early.moved_ns < late.moved_ns < time.monotonic_ns()
    assert late.pid == ranks.agent.of(Register)[0].pid


def test_children_do_not_speak_for_the_rank(ranks: Ranks) -> None:
    told = json.loads(ranks.run("children.py")[0].splitlines()[-1])
    ranks.agent.wait(Goodbye)

    view = PageView.open(ranks.folder / "page-0")
    assert view is not None
    page = view.read()
    assert {one.pid for one in ranks.agent.of(Register)} == {told["pid"]}
    assert ranks.agent.connections == 1
    assert (page.step, page.applied, page.pid) == (5, 5, told["pid"])
    assert ranks.agent.of(Goodbye)[0].step == 5


def test_a_process_that_holds_its_gil_is_not_heard_but_seen(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("gil.py", STEPS="20")
    agent.wait_for_boundaries(1)
    state = ranks.folder / "rank-0"
    until(lambda: state.exists() and state.read_text() == "holding")
    view = PageView.open(ranks.folder / "page-0")
    assert view is not None

    seen = []
    while state.read_text() == "holding":
        reading = view.read()
        seen.append((reading.step, reading.phase, reading.silent_for(time.monotonic_ns())))
        time.sleep(0.05)
    applied = agent.set(1, "lr", 0.01)
    agent.insist(1, "stop")
    ranks.printed(running)

    assert {(step, phase) for step, phase, _ in seen} == {(20, StepPhase.STEP)}
    assert [silent for _, _, silent in seen] == sorted(silent for _, _, silent in seen)
    assert seen[-1][2] > 1.5
    assert agent.connections == 1
    assert applied[0].after == 0.01


def test_an_agent_that_comes_back_hears_the_same_words_and_all_numbers(ranks: Ranks) -> None:
    first = ranks.agent
    running = ranks.start("api.py", BATCHES="100000", PAUSE="0.01")
    first.wait_for_boundaries(1, "lr")
    first.wait(Metrics)
    first.close()
    time.sleep(0.5)  # steps go on meanwhile
    with listening(first.path, kept=first.kept) as second:
        second.wait(Register)
        again = second.heard[0]
        applied = second.set(1, "temperature", 0.25)
        second.insist(1, "stop")
        told = json.loads(ranks.printed(running)[0])
        second.wait(Goodbye)

    expected = [(number, number / 2) for number, _, _ in told["numbers"]]
    assert again == first.of(Register)[-1]
    assert points([*first.of(Metrics), *second.of(Metrics)]) == expected
    assert told["temperatures"][applied[0].step] == 0.25


def test_what_a_dying_agent_read_and_did_not_keep_is_sent_again_once(ranks: Ranks) -> None:
    ranks.agent.close()
    with listening(ranks.agent.path, most=4) as first:
        running = ranks.start("api.py", BATCHES="150", PAUSE="0.01")
        until(lambda: first.kept.total() == 4)
        until(lambda: PageView.open(ranks.folder / "page-0").read().step > 100)
    with listening(ranks.agent.path, kept=first.kept) as second:
        told = json.loads(ranks.printed(running)[0])
        second.wait(Goodbye)

    expected = [(number, number / 2) for number, _, _ in told["numbers"]]
    assert len(first.of(Metrics)) <= 4
    assert points([*first.of(Metrics), *second.of(Metrics)]) == expected


def points(messages: list[Metrics]) -> list[tuple[int, float]]:
    """Return the points of one series, in the order in which they came."""
    return [
        (row[0], row[2 + message.names.index("half")])
        for message in messages
        if "half" in message.names
        for row in message.rows
    ]


def test_garbage_is_dropped_and_nothing_dies(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("plain.py", STEPS="100000", PAUSE="0.002")
    agent.wait_for_boundaries(1, "lr")
    line, head = agent.lines[0], agent.heads[0]

    agent.send(line, struct.pack("!I", 5) + b"\xc1abcd")
    agent.send(line, struct.pack("!I", 2 << 20) + bytes(2 << 20))
    for strange in (
        Head(9, head.job, head.generation, head.rank, head.incarnation),
        Head(1, "other", head.generation, head.rank, head.incarnation),
        Head(1, head.job, head.generation - 1, head.rank, head.incarnation),
        Head(1, head.job, head.generation, head.rank + 1, head.incarnation),
        Head(1, head.job, head.generation, head.rank, "former life"),
    ):
        agent.heads[0] = strange
        agent.prepare(range(1), "stop", {}, command="foreign")
    agent.send(line, frame(Outcome(head, "never heard of", 3)))
    agent.heads[0] = head
    applied = agent.set(1, "lr", 0.01)
    agent.insist(1, "stop")
    ended = ranks.printed(running)

    assert agent.of(Ready, command="foreign") == []
    assert applied[0].after == 0.01
    assert agent.connections == 1
    assert ended == [""]


def test_a_rank_listens_on_no_port(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("plain.py", STEPS="100000", PAUSE="0.002")
    agent.wait_for_boundaries(1, "lr")
    pid = agent.of(Register)[0].pid

    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            held.add(os.readlink(entry))
    rows = [
        line.split()
        for name in ("tcp", "tcp6", "udp", "udp6")
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    listening_inodes = {f"socket:[{row[9]}]" for row in rows}
    agent.insist(1, "stop")
    ranks.printed(running)

    assert held & listening_inodes == set()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("many", "not aligned: 9 optimizers take steps, more than 8"),
        ("threads", "not aligned: optimizer steps are taken on threads besides the main one"),
    ],
)
def test_steps_that_are_not_aligned_are_refused_with_the_reason(
    ranks: Ranks, how: str, why: str
) -> None:
    agent = ranks.agent
    running = ranks.start("misaligned.py", HOW=how)
    agent.wait_for_boundaries(1, "opt9.lr" if how == "many" else "lr")

    refused = agent.refusal("knob", {"name": "lr", "value": 0.01})
    os.kill(agent.of(Register)[0].pid, 9)
    running.result(timeout=TIMEOUT)

    assert refused == why


def test_a_later_life_goes_through_the_changes_of_the_former_one_at_their_steps(
    ranks: Ranks,
) -> None:
    ranks.agent.close()
    changes = (
        Planned("a/1", 0, {"name": "lr", "value": 0.25}, True),
        Planned("b/2", 7, {"values": {"lr": 0.5, "unknown": 3}, "hold": True}, True),
        Planned("c/1", 12, {"name": "momentum", "value": 0.5}),
    )
    with listening(ranks.agent.path, changes) as agent:
        text = ranks.run("schedules.py", KIND="constant", WATCH="1", LOOM_ATTEMPT="1", STEPS="20")

    assert json.loads(text[0])["used"] == [0.25] * 7 + [0.5] * 13
    assert {one.head.generation for one in agent.heard} == {1}
    assert [(a.command, a.step, a.before, a.after) for a in agent.of(Applied)] == [
        ("a/1", 0, 0.05, 0.25),
        ("c/1", 12, 0.9, 0.5),
    ]


def test_a_change_that_somebody_wants_now_holds_against_what_a_former_life_did_later(
    ranks: Ranks,
) -> None:
    ranks.agent.close()
    changes = (
        Planned("past/1", 400, {"name": "lr", "value": 0.25}, True),
        Planned("plan/1", 500, {"name": "lr", "value": 0.75}),
    )
    with listening(ranks.agent.path, changes) as agent:
        running = ranks.start(
            "schedules.py", KIND="constant", WATCH="1", LOOM_ATTEMPT="1", STEPS="600", PAUSE="0.002"
        )
        agent.wait_for_boundaries(1, "lr")
        new = agent.set(1, "lr", 0.5)[0].step
        agent.prepare(range(1), "knob", {"name": "lr", "value": 0.75}, "plan/1")
        agent.tell(range(1), "plan/1", 500)  # what it knows it is told again
        text = ranks.printed(running)

    expected = [0.05] * new + [0.5] * (500 - new) + [0.75] * 100
    assert json.loads(text[0])["used"] == expected
    assert new < 400
    assert {(a.command, a.step) for a in agent.of(Applied)} >= {("past/1", 400), ("plan/1", 500)}


def test_what_breaks_in_the_threadlet_is_noted_once_and_training_goes_on(ranks: Ranks) -> None:
    text = ranks.run("odd.py")[0]
    plain = ranks.run("odd.py", attach=False)[0]

    notes = [line for line in text.splitlines() if line.startswith("loom: ")]
    assert notes == [
        "loom: the link to the agent is closed, training continues: RuntimeError: not your business"
    ]
    assert text.splitlines()[-1] + "\n" == plain


def test_a_change_that_breaks_in_the_hook_leaves_the_programs_own_values(ranks: Ranks) -> None:
    agent = ranks.agent
    running = ranks.start("frozen.py")
    agent.wait_for_boundaries(1, "lr")

    command = agent.prepare(range(1), "knob", {"name": "lr", "value": 0.5})
    agent.decide(command, agent.promises(command, 1))
    text = ranks.printed(running)[0]

    notes = [line for line in text.splitlines() if line.startswith("loom: ")]
    assert notes == ["loom: steps are no longer monitored, training continues: TypeError: frozen"]
    assert json.loads(text.splitlines()[-1]) == {"lr": 0.125, "moved": -25.0}
    assert agent.of(Applied) == []
    assert [one.kind for one in agent.of(Event)] == ["threadlet_failed"]


def test_a_program_behind_a_shell_is_attached_and_keeps_its_own_sitecustomize(
    tmp_path: Path,
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('their own')\n")
    ours = Path(attach.__file__).with_name("site")
    path = os.pathsep.join([str(ours), str(tmp_path / "own"), *sys.path])
    inner = f"{sys.executable} {SCRIPTS / 'plain.py'}"
    shown = f"{sys.executable} -c 'import sys; print(any(p.endswith(\"site\") for p in sys.path))'"
    with listening(tmp_path / "agent") as agent:
        env = {**os.environ, "PYTHONPATH": path, "LOOM_AGENT": str(agent.path)}
        words = ["sh", "-c", f"{shown} && {inner}"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        agent.wait(Goodbye)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:3] == ["their own", "False", "their own"]
    assert agent.of(Goodbye)[0].step == 20
