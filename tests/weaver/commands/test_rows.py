"""What may be stored later is stored in time, and what is known by heart is what is stored."""

import asyncio
from dataclasses import replace
from pathlib import Path

from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.messages.plane import Applied, Message, Outcome
from torchloom.rules.control.command import Ack, Command, CommandEntry, CommandKind, Status
from torchloom.weaver.commands.driver import wrapped
from torchloom.weaver.commands.rows import CommandRows
from torchloom.weaver.events import Journal
from torchloom.weaver.service import Weaver
from torchloom.weaver.store import open_store

from ...harness.fake_agents import crowd, rows, until
from ...harness.fresh_databases import fresh

STATES = "SELECT kind FROM events WHERE kind LIKE 'command%' ORDER BY seq"
COMMANDS = "SELECT id, state, effective FROM commands ORDER BY number"
ACKS = "SELECT command, rank, step FROM command_acks ORDER BY rank"


def entry(name: str = "c1", number: int = 1) -> CommandEntry:
    payload = wrapped({"lr": 0.03}, False)
    return CommandEntry(Command(name, CommandKind.KNOB, payload, "ann", "why"), number)


def ledger_at(folder: Path) -> CommandRows:
    state = open_store(fresh(folder)).state
    return CommandRows(state, Journal(state))


def test_what_is_kept_is_stored_with_the_next_that_is_stored_in_one_go(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    ledger.store("job-1", [entry()])
    committed = replace(entry(), status=Status.COMMITTED, step=7)

    ledger.keep("job-1", [committed, replace(committed, acks={0: Ack(7, 0.1, 0.03)})])

    assert rows(tmp_path, COMMANDS) == [("c1", "accepted", None)]
    both = {0: Ack(7, 0.1, 0.03), 1: Ack(7, 0.1, 0.03)}
    ledger.store("job-1", [replace(committed, status=Status.APPLIED, acks=both)])
    assert rows(tmp_path, COMMANDS) == [("c1", "applied", 7)]
    assert rows(tmp_path, ACKS) == [("c1", 0, 7), ("c1", 1, 7)]
    assert rows(tmp_path, STATES) == [
        ("command_accepted",),
        ("command_committed",),
        ("command_applied",),
    ]


def test_whoever_looks_sees_what_was_kept(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    kept = replace(entry(), status=Status.COMMITTED, step=7, acks={0: Ack(7, 0.1, 0.03)})

    ledger.keep("job-1", [kept])

    assert [row.state for row in ledger.audit("job-1")] == ["committed"]
    assert rows(tmp_path, COMMANDS) == [("c1", "committed", 7)]
    assert ledger.entries("job-1") == [kept]
    assert ledger.job_of("c1") == "job-1"
    assert [(ack.rank, ack.step) for ack in ledger.acks(["c1", "none"])] == [(0, 7)]


def test_a_ledger_that_begins_reads_what_another_has_stored(tmp_path: Path) -> None:
    ledger_at(tmp_path).store("job-1", [entry("c1", 1), entry("c2", 2)])
    ledger_at(tmp_path).store("job-2", [entry("c3", 1)])

    ledger = ledger_at(tmp_path)

    assert ledger.entries("job-1") == [entry("c1", 1), entry("c2", 2)]
    assert ledger.job_of("c3") == "job-2"
    assert ledger.audit("job-3") == []


def test_a_step_that_no_database_holds_is_stored_as_the_last_there_is(tmp_path: Path) -> None:
    ledger = ledger_at(tmp_path)
    ledger.store("job-1", [entry("c1", 1)])

    ledger.store("job-1", [replace(entry("c1", 1), status=Status.COMMITTED, step=2**70)])
    ledger.store("job-1", [entry("c2", 2)])

    assert rows(tmp_path, COMMANDS) == [("c1", "committed", 2**63 - 1), ("c2", "accepted", None)]
    assert [row.state for row in ledger.audit("job-1")] == ["committed", "accepted"]


def test_what_ranks_did_is_stored_before_their_records_are(tmp_path: Path) -> None:
    """An agent forgets what is stored: from then on the database alone knows of it."""

    def is_outcome(message: Message) -> bool:
        return isinstance(message, Outcome)

    async def scenario() -> None:
        exchange = Exchange()
        store, bus = open_store(fresh(tmp_path)), MemoryBus(exchange)
        weaver = Weaver(store, bus)  # in which no time passes: nothing is stored by the way
        await weaver.start()
        agent, (first, second) = await crowd(exchange, 2)
        await agent.hello()
        second.is_deaf = is_outcome
        weaver.commands.order("job-1", entry().command)
        await until(lambda: weaver.commands.state("job-1").standing)
        await until(lambda: weaver.commands.state("job-1").standing[0].acks)

        before = rows(tmp_path, COMMANDS), rows(tmp_path, ACKS)
        (name, step, value) = first.applied[0]
        await agent.send(first.head, 1, Applied(first.head, name, step, 0.1, value))
        await agent.stored(first.head, 1)

        assert before == ([("c1", "preparing", None)], [])
        assert rows(tmp_path, COMMANDS) == [("c1", "committed", 2)]
        assert rows(tmp_path, ACKS) == [("c1", 0, 2)]
        await weaver.stop()
        await bus.close()
        store.close()

    asyncio.run(scenario())
