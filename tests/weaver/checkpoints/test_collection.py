"""Shards become a checkpoint once and only then, whoever dies; and what is not kept goes."""

import asyncio
import contextlib
import itertools
import json
import time
import zlib
from pathlib import Path
from typing import Any

from torchloom.bus import subjects
from torchloom.bus.api import Bus, BusLost, NoReply
from torchloom.bus.codec import encode
from torchloom.bus.memory import Exchange, MemoryBus
from torchloom.checkpoint import Manifest
from torchloom.messages.plane import Commit, Committed, Event, Metrics, Remove, Removed
from torchloom.weaver.api.router import Router
from torchloom.weaver.service import Weaver

from ...harness.fake_agents import FakeAgent, FakeRank, job_event, register, rows, until, weaver_at

ROOT = "/runs/job-1/checkpoints"
HASH = "blake3:" + "0" * 64
WISHES = {"keep_last": 2, "keep_every": None, "best": "loss", "mode": "min"}


class Node(FakeAgent):
    """An agent whose ranks write, and who commits or not as the test wants it."""

    def __init__(self, bus: Bus, name: str = "node-1", host: str = "node1") -> None:
        super().__init__(bus, name, host)
        self.codes: dict[int, str] = {}  # what becomes of a step, where it is not well
        self.is_deaf = False
        self.numbers: dict[str, itertools.count[int]] = {}
        self.living: asyncio.Task[None]

    async def start(self) -> None:
        await super().start()
        self.living = asyncio.create_task(self._live())

    async def _live(self) -> None:
        """Beat, or a slow machine's weaver takes this agent for lost."""
        while True:
            with contextlib.suppress(BusLost, NoReply):
                await self.beat()
            await asyncio.sleep(0.2)

    async def tell(self, rank: FakeRank, kind: str, /, **facts: Any) -> None:
        number = next(self.numbers.setdefault(rank.head.incarnation, itertools.count(1)))
        event = Event(rank.head, kind, facts.get("step", 0), time.time(), facts)
        await self.send(rank.head, number, event, follows=number - 1)
        await self.stored(rank.head, number)

    async def log(self, rank: FakeRank, name: str, step: int, value: float) -> None:
        number = next(self.numbers[rank.head.incarnation])
        said = Metrics(rank.head, (name,), ((step, time.time(), value),))
        await self.send(rank.head, number, said, follows=number - 1)
        await self.stored(rank.head, number)

    async def write(self, rank: FakeRank, step: int, **facts: Any) -> None:
        head, world = rank.head, rank.register.world_size
        word = {"name": f"worker_{head.rank}.pt", "size": 100 + head.rank, "hash": HASH}
        about = {"epoch": 1, "strategy": "ddp", "backend": "gloo", "optimizer_state": True}
        more = {"rng_state": True, "versions": {"torch": "2.13"}, "trigger": "every_n_steps"}
        whose = {"generation": head.generation, "attempt": 1, "rank": head.rank}
        said = {"step": step, "world_size": world, **word, **about, **more, **whose, **facts}
        await self.tell(rank, "checkpoint_shard", **said)

    async def _down(self, subject: str, data: bytes, reply: str) -> None:
        await super()._down(subject, data, reply)
        if isinstance(self.heard[-1], Commit | Remove) and not self.is_deaf:
            await self.answer(self.heard[-1])

    async def answer(self, asked: Commit | Remove) -> None:
        code = self.codes.get(asked.step, "")
        said: Committed | Removed
        key = (asked.step, asked.generation, asked.attempt)
        if isinstance(asked, Remove):
            said = Removed(asked.head, self.name, *key, code, code)
        else:
            place = "" if code else f"{asked.root}/ckpt_step_{asked.step:05d}"
            said = Committed(asked.head, self.name, *key, place, code, code)
        await self.bus.publish(subjects.checkpoints(self.name), encode(said))


async def launched(
    exchange: Exchange, world: int = 2, name: str = "node-1", **facts: Any
) -> tuple[Node, list[FakeRank]]:
    """Return an agent with the ranks of a job whose launch has said where checkpoints go."""
    node = Node(MemoryBus(exchange), name)
    await node.start()
    ranks = [node.rank(register(rank, world=world)) for rank in range(world)]
    shared: dict[str, int | None] = {}
    for rank in ranks:
        rank.store = shared
    await node.hello()
    told = job_event("job", launched=True, checkpoints=ROOT, **facts)
    await node.send(told.head, 1, told)
    await node.stored(told.head, 1)
    return node, ranks


async def reborn(node: Node, rank: FakeRank, generation: int) -> FakeRank:
    """Begin the life of the same rank in a later generation."""
    head = rank.head
    told = register(head.rank, world=rank.register.world_size, generation=generation)
    del node.ranks[head.incarnation]
    later = node.rank(told)
    later.store = {}
    await node.act(told)
    return later


def saved(folder: Path) -> list[tuple[Any, ...]]:
    """Return step, generation, state and reason of every row."""
    return rows(folder, "SELECT step, generation, state, reason FROM checkpoints ORDER BY 1, 2")


def states(folder: Path) -> dict[int, str]:
    return {step: state for step, _, state, _ in saved(folder)}


def noted(folder: Path, kind: str) -> list[dict[str, Any]]:
    query = "SELECT step, author, reason, facts FROM events WHERE kind = '{}' ORDER BY seq"
    found = rows(folder, query.format(kind))
    names = ("step", "author", "reason")
    return [{**dict(zip(names, row, strict=False)), **json.loads(row[3])} for row in found]


def soon(weaver: Weaver) -> None:
    """Let what was said be said again at the next look."""
    for request in weaver.checkpoint_requests._requests.values():
        request.due = 0.0


async def ask(weaver: Weaver, name: str, **facts: Any) -> Any:
    said = await Router(weaver).answer({"ask": name, "version": 1, "job": "job-1", **facts})
    return said.get("ok", said)


def test_all_shards_make_one_commit_with_a_manifest_and_an_event(tmp_path: Path) -> None:
    async def scenario() -> Commit:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            await node.write(ranks[1], 100)
            assert node.of(Commit) == []
            await node.write(ranks[0], 100, metrics={"loss": 0.5})
            await until(lambda: states(tmp_path) == {100: "committed"})
            (asked,) = node.of(Commit)
            return asked

    asked = asyncio.run(scenario())

    manifest = Manifest.from_json(zlib.decompress(asked.manifest))
    assert (asked.head.job, asked.epoch, asked.root) == ("job-1", 1, ROOT)
    assert (asked.step, asked.generation, asked.attempt) == (100, 0, 1)
    assert [(s.name, s.size, s.hash, s.rank) for s in manifest.shards] == [
        ("worker_0.pt", 100, HASH, 0),
        ("worker_1.pt", 101, HASH, 1),
    ]
    assert (manifest.job_id, manifest.run_id, manifest.metrics) == ("job-1", "job-1", {"loss": 0.5})
    assert (manifest.optimizer_state, manifest.rng_state, manifest.knobs) == (True, True, 0)
    ((told, seconds),) = [(e, e.pop("seconds")) for e in noted(tmp_path, "checkpoint_committed")]
    assert 0 <= seconds < 10
    assert told == {
        "step": 100,
        "author": "",
        "reason": "",
        "generation": 0,
        "attempt": 1,
        "bytes": 201,
        "place": f"{ROOT}/ckpt_step_00100",
        "world_size": 2,
        "trigger": "every_n_steps",
        "metrics": {"loss": 0.5},
    }


def test_what_a_trainer_saved_is_a_checkpoint_until_the_trainer_removes_it(tmp_path: Path) -> None:
    files = [["model.safetensors", 7, HASH], ["rng_state_0.pth", 1, HASH]]
    trainer = {"kind": "transformers", "path": "/out/checkpoint-100", "training": 1, "files": files}

    async def scenario() -> list[dict[str, Any]]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.write(ranks[1], 100)
            await node.write(ranks[0], 100, trainer={**trainer, "files": [["../x", 1, HASH]]})
            assert weaver.dropped["malformed_shard"] == 1
            await node.write(ranks[0], 100, trainer=trainer)
            await until(lambda: states(tmp_path) == {100: "committed"})
            (asked,) = node.of(Commit)
            written = json.loads(zlib.decompress(asked.manifest))
            assert written["trainer"] == trainer
            for _ in range(2):
                await node.tell(ranks[0], "checkpoint_gone", step=100)
            await until(lambda: states(tmp_path) == {100: "removed"})
            listed: list[dict[str, Any]] = await ask(weaver, "checkpoints")
            return listed

    (row,) = asyncio.run(scenario())

    assert (row["trainer"], row["path"]) == ("transformers", "/out/checkpoint-100")
    assert (row["bytes"], row["reason"]) == (209, "transformers removed /out/checkpoint-100")
    (told,) = noted(tmp_path, "checkpoint_committed")
    assert (told["trainer"], told["path"]) == ("transformers", "/out/checkpoint-100")
    assert [one["author"] for one in noted(tmp_path, "checkpoint_removed")] == ["transformers"]


def test_a_weaver_that_dies_between_shards_or_before_the_answer_goes_on(tmp_path: Path) -> None:
    async def scenario() -> list[Commit]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            node.is_deaf = True
            await node.write(ranks[0], 100)
        async with weaver_at(tmp_path, exchange):
            await node.hello()
            await node.write(ranks[1], 100)
            await until(lambda: node.of(Commit))
        async with weaver_at(tmp_path, exchange) as weaver:
            node.is_deaf = False
            await node.hello()
            weaver.checkpoints.tick()
            await until(lambda: states(tmp_path) == {100: "committed"})
        return node.of(Commit)

    first, *others = asyncio.run(scenario())

    assert {asked.manifest for asked in others} == {first.manifest}  # the store knows it again
    assert others[-1].epoch > first.epoch
    assert len(noted(tmp_path, "checkpoint_committed")) == 1


def test_shards_of_an_older_generation_are_refused_and_its_rest_is_given_up(tmp_path: Path) -> None:
    async def scenario() -> tuple[list[Commit], int]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.write(ranks[0], 100)
            later = [await reborn(node, rank, 1) for rank in ranks]
            await until(lambda: weaver.jobs.all()[0].generation == 1)
            await node.write(ranks[1], 100)
            weaver.checkpoints.tick()
            assert node.of(Commit) == []
            for rank in later:
                await node.write(rank, 60)
            await until(lambda: states(tmp_path)[60] == "committed")
            return node.of(Commit), weaver.dropped["old_generation"]

    commits, dropped = asyncio.run(scenario())

    assert [(asked.step, asked.generation) for asked in commits] == [(60, 1)]
    assert dropped >= 1
    why = "generation 1 began before all ranks had written"
    assert saved(tmp_path) == [(60, 1, "committed", ""), (100, 0, "failed", why)]
    assert [(e["step"], e["reason"]) for e in noted(tmp_path, "checkpoint_refused")] == [
        (100, "written by generation 0; the job is in 1")
    ]
    told = rows(tmp_path, "SELECT count(*) FROM events WHERE kind = 'checkpoint_shard'", "records")
    assert told == [(4,)]  # what was told is kept all the same


def test_what_is_complete_is_committed_though_its_job_has_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            await node.write(ranks[0], 100)
            over = job_event("job_ended", state="FAILED", reason="exit_code_1_rank_1")
            await node.send(over.head, 2, over)
            await node.stored(over.head, 2)
        async with weaver_at(tmp_path, exchange):  # one that knows of no rank of it
            await node.hello()
            await node.write(ranks[1], 100)
            await until(lambda: states(tmp_path) == {100: "committed"})

    asyncio.run(scenario())

    assert rows(tmp_path, "SELECT state FROM jobs") == [("FAILED",)]


def test_where_the_agent_of_the_lowest_rank_is_gone_another_of_the_job_does_it(
    tmp_path: Path,
) -> None:
    async def scenario() -> Commit:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            other = Node(MemoryBus(exchange), "node-2", "node2")
            await other.start()
            moved = other.rank(register(1, world=2, incarnation="elsewhere"))
            await other.hello()
            node.is_deaf = True
            await node.write(ranks[0], 100)
            await other.write(moved, 100)
            await until(lambda: node.of(Commit))
            assert other.of(Commit) == []
            node.living.cancel()
            weaver.roster.agent_lost("node-1", "silent")
            soon(weaver)
            weaver.checkpoints.tick()
            await until(lambda: states(tmp_path) == {100: "committed"})
            (asked,) = other.of(Commit)
            return asked

    assert asyncio.run(scenario()).step == 100


def test_a_store_that_is_away_is_tried_again_and_said_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            node.codes[100] = "store_unavailable"
            for rank in ranks:
                await node.write(rank, 100)
            await until(lambda: noted(tmp_path, "checkpoint_failed"))
            for tries in range(2, 5):
                soon(weaver)
                weaver.checkpoints.tick()
                await until(lambda tries=tries: len(node.of(Commit)) >= tries)  # type: ignore[misc]
            node.codes.clear()
            soon(weaver)
            weaver.checkpoints.tick()
            await until(lambda: states(tmp_path) == {100: "committed"})

    asyncio.run(scenario())

    assert noted(tmp_path, "checkpoint_failed") == [
        {
            "step": 100,
            "author": "",
            "reason": "store_unavailable",
            "generation": 0,
            "attempt": 1,
            "retrying": True,
        }
    ]


def test_what_the_store_refuses_has_failed_and_the_next_one_proceeds(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            node.codes |= {100: "fenced", 200: "incomplete_checkpoint"}
            for step in (100, 200, 300):
                for rank in ranks:
                    await node.write(rank, step)
            await until(lambda: states(tmp_path).get(300) == "committed")

    asyncio.run(scenario())

    assert states(tmp_path) == {100: "failed", 200: "failed", 300: "committed"}
    assert [each["step"] for each in noted(tmp_path, "checkpoint_refused")] == [100]
    assert [each["step"] for each in noted(tmp_path, "checkpoint_failed")] == [200]


def test_a_rank_that_gives_up_fails_its_checkpoint_and_an_older_half_one_is_given_up(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            await node.write(ranks[0], 100)
            await node.tell(ranks[1], "checkpoint_failed", step=100, why="no space", retrying=True)
            assert states(tmp_path) == {100: "writing"}
            await node.tell(ranks[1], "checkpoint_failed", step=100, why="no space", retrying=False)
            await node.write(ranks[0], 200)
            for rank in ranks:
                await node.write(rank, 300)
            await until(lambda: states(tmp_path).get(300) == "committed")

    asyncio.run(scenario())

    assert [row[:3] for row in saved(tmp_path)] == [
        (100, 0, "failed"),
        (200, 0, "failed"),
        (300, 0, "committed"),
    ]
    assert [
        (e["step"], e["reason"], e["retrying"]) for e in noted(tmp_path, "checkpoint_failed")
    ] == [
        (100, "rank 1: no space", False),
        (200, "given up: step 300 was written after it", False),
    ]


def test_a_failure_is_said_once_whoever_writes_or_fails_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange, world=4)
            await node.write(ranks[0], 100)
            for rank in ranks[1:3]:
                failure = {"step": 100, "why": "no space", "retrying": False}
                await node.tell(rank, "checkpoint_failed", **failure)
            await node.write(ranks[3], 100)
            await node.write(ranks[1], 100)
            assert states(tmp_path) == {100: "failed"}
            await node.write(ranks[2], 100)  # after all
            await until(lambda: states(tmp_path) == {100: "committed"})

    asyncio.run(scenario())

    assert [each["reason"] for each in noted(tmp_path, "checkpoint_failed")] == ["rank 1: no space"]


def test_a_removal_that_fails_is_tried_again_and_one_whose_store_is_gone_is_done(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange, world=1)
            for step in (10, 20, 30):
                await node.write(ranks[0], step)
            await until(lambda: set(states(tmp_path).values()) == {"committed"})
            node.codes = {10: "internal", 20: "not_seen"}
            failed = await ask(weaver, "checkpoint_remove", step=10, wait=0.2)
            gone = await ask(weaver, "checkpoint_remove", step=20)
            assert (failed["state"], gone["state"]) == ("removing", "removed")
            node.codes.clear()
            soon(weaver)
            weaver.checkpoints.tick()
            await until(lambda: states(tmp_path)[10] == "removed")

    asyncio.run(scenario())


def test_what_was_saved_before_a_loss_was_nan_stays_until_it_is_finite_again(
    tmp_path: Path,
) -> None:
    async def scenario() -> list[str]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.tell(ranks[0], "checkpointing", **{**WISHES, "keep_last": 1, "best": None})

            async def save(step: int, gone: int, **facts: Any) -> None:
                for rank in ranks:
                    await node.write(rank, step, **facts)
                await until(lambda: states(tmp_path).get(step) == "committed")
                await until(lambda: states(tmp_path)[gone] == "removed")

            await node.write(ranks[0], 10)
            await node.write(ranks[1], 10)
            await save(20, gone=10)
            for rank, step in ((ranks[0], 26), (ranks[1], 25)):
                if rank is ranks[0]:  # saved with it, before anybody told
                    for one in ranks:
                        await node.write(one, 30, not_finite=one is ranks[1])
                    await until(lambda: states(tmp_path).get(30) == "committed")
                await node.tell(rank, "nan", name="loss", value="nan", step=step)
            await save(40, gone=30, not_finite=True)
            during = await ask(weaver, "jobs")
            assert states(tmp_path)[20] == "committed"
            for rank in ranks:
                await node.log(rank, "loss", 45, 0.5)
            await save(50, gone=40)
            await until(lambda: states(tmp_path)[20] == "removed")
            return [job["warning"] for job in (*during, *await ask(weaver, "jobs"))]

    assert asyncio.run(scenario()) == ["loss is NaN since step 25 (rank 1 first)", ""]
    assert [one["reason"] for one in noted(tmp_path, "loss_finite")] == ["loss is finite again"]


def test_after_each_commit_go_those_that_the_job_does_not_keep(tmp_path: Path) -> None:
    losses = {10: 0.9, 20: 0.1, 30: 0.5, 40: 0.6, 50: 0.7}

    async def scenario() -> tuple[list[Remove], Any, Any]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            await node.tell(ranks[0], "restored", step=10, checkpoint="", seconds=1.0, exact=True)
            await node.tell(ranks[1], "checkpointing", keep_last=1)  # only rank 0 says it
            await node.tell(ranks[0], "checkpointing", **WISHES)
            for step, loss in losses.items():
                for rank in ranks:
                    await node.write(rank, step, metrics={"loss": loss})
                await until(lambda step=step: states(tmp_path).get(step) == "committed")  # type: ignore[misc]
            await until(lambda: states(tmp_path)[30] == "removed")
            listed = await ask(weaver, "checkpoints", limit=2)
            return node.of(Remove), listed, await ask(weaver, "checkpoints")

    removals, listed, whole = asyncio.run(scenario())

    assert [(asked.step, asked.root) for asked in removals] == [(30, ROOT)]
    kept = {10: "committed", 20: "committed", 30: "removed", 40: "committed", 50: "committed"}
    assert states(tmp_path) == kept
    (told,) = noted(tmp_path, "checkpoint_removed")
    assert (told["step"], told["author"]) == (30, "loom")
    assert [row["step"] for row in listed] == [50, 40]
    assert whole[2] | {"created_at": "", "committed_at": "", "seconds": 0} == {
        "job": "job-1",
        "step": 30,
        "generation": 0,
        "attempt": 1,
        "state": "removed",
        "world_size": 2,
        "bytes": 201,
        "place": f"{ROOT}/ckpt_step_00030",
        "trainer": "",
        "path": "",
        "metrics": {"loss": 0.5},
        "trigger": "every_n_steps",
        "reason": "not among those that the job keeps",
        "created_at": "",
        "committed_at": "",
        "seconds": 0,
    }


def test_an_operator_removes_one_but_the_newest_only_by_force(tmp_path: Path) -> None:
    async def scenario() -> tuple[Any, ...]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            for step in (10, 20):
                for rank in ranks:
                    await node.write(rank, step)
                await until(lambda step=step: states(tmp_path).get(step) == "committed")  # type: ignore[misc]
            said = {"author": "ann", "reason": "too large"}
            older = await ask(weaver, "checkpoint_remove", step=10, **said)
            newest = await ask(weaver, "checkpoint_remove", step=20, **said)
            unknown = await ask(weaver, "checkpoint_remove", step=30, **said)
            node.is_deaf = True
            forced = await ask(weaver, "checkpoint_remove", step=20, force=True, wait=0, **said)
        async with weaver_at(tmp_path, exchange) as weaver:  # which has it done
            node.is_deaf = False
            await node.hello()
            weaver.checkpoints.tick()
            await until(lambda: states(tmp_path)[20] == "removed")
        return older["state"], newest["code"], unknown["code"], forced["state"]

    found = asyncio.run(scenario())

    assert found == ("removed", "checkpoint_needed", "not_found", "removing")
    assert [
        (e["step"], e["author"], e["reason"]) for e in noted(tmp_path, "checkpoint_removed")
    ] == [
        (10, "ann", "too large"),
        (20, "ann", "too large"),
    ]


def test_a_damaged_one_is_said_once_and_is_none_to_go_on_from(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            for rank in ranks:
                await node.write(rank, 100)
            await until(lambda: states(tmp_path) == {100: "committed"})
            later = [await reborn(node, rank, 1) for rank in ranks]
            for rank in later:
                damage = {"step": 100, "name": "worker_1.pt", "why": "another hash"}
                await node.tell(rank, "checkpoint_damaged", **damage)
            for rank in later:
                await node.write(rank, 100)
            await until(lambda: (100, 1, "committed", "") in saved(tmp_path))

    asyncio.run(scenario())

    assert [row[:3] for row in saved(tmp_path)] == [(100, 0, "damaged"), (100, 1, "committed")]
    (told,) = noted(tmp_path, "checkpoint_damaged")
    assert (told["reason"], told["name"]) == ("another hash", "worker_1.pt")


def test_only_whom_the_weaver_asked_may_answer(tmp_path: Path) -> None:
    async def scenario() -> Weaver:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            stranger = Node(MemoryBus(exchange), "node-2", "node2")
            await stranger.start()
            await stranger.hello()
            node.is_deaf = True
            for rank in ranks:
                await node.write(rank, 100)
            await until(lambda: node.of(Commit))
            (asked,) = node.of(Commit)
            await stranger.answer(asked)
            await until(lambda: weaver.dropped["foreign_agent"] == 1)
            assert states(tmp_path) == {100: "committing"}
            await node.answer(asked)
            await until(lambda: states(tmp_path) == {100: "committed"})
            await node.answer(asked)
            await until(lambda: weaver.dropped["unasked"] == 1)
            return weaver

    asyncio.run(scenario())


def test_a_shard_through_a_foreign_agent_is_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange, world=1)
            stranger = Node(MemoryBus(exchange), "node-2", "node2")
            await stranger.start()
            await stranger.hello()
            await stranger.write(ranks[0], 100)
            assert weaver.dropped["unknown_rank"] == 1
            assert node.of(Commit) == []

    asyncio.run(scenario())

    assert saved(tmp_path) == []


def test_a_job_whose_launch_says_later_where_they_go_is_committed_then(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node = Node(MemoryBus(exchange))
            await node.start()
            rank = node.rank(register(0))
            await node.hello()
            await node.write(rank, 100)
            weaver.checkpoints.tick()
            assert node.of(Commit) == []
            told = job_event("job", launched=True, checkpoints=ROOT)
            await node.send(told.head, 1, told)
            await node.stored(told.head, 1)
            weaver.checkpoints.tick()
            await until(lambda: states(tmp_path) == {100: "committed"})

    asyncio.run(scenario())


def test_a_shard_that_overtakes_its_rank_counts_once_the_rank_is_known(tmp_path: Path) -> None:
    async def scenario() -> None:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange):
            node, ranks = await launched(exchange)
            later = [register(rank.head.rank, world=2, generation=1) for rank in ranks]
            newcomers = [FakeRank(node, told) for told in later]
            await node.write(newcomers[1], 100)  # neither it nor its generation is known
            await node.act(later[0])
            await node.write(newcomers[0], 100)
            assert node.of(Commit) == []
            await node.act(later[1])
            await until(lambda: states(tmp_path) == {100: "committed"})

    asyncio.run(scenario())

    assert saved(tmp_path) == [(100, 1, "committed", "")]


def test_a_commit_tells_whether_anything_of_older_generations_may_still_be_committed(
    tmp_path: Path,
) -> None:
    async def scenario() -> list[tuple[int, bool]]:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange)
            node.is_deaf = True
            for rank in ranks:
                await node.write(rank, 100)
            await until(lambda: node.of(Commit))
            later = [await reborn(node, rank, 1) for rank in ranks]
            await until(lambda: weaver.jobs.all()[0].generation == 1)
            for rank in later:
                await node.write(rank, 110)
            await until(lambda: 110 in [asked.step for asked in node.of(Commit)])
            node.is_deaf = False
            for asked in node.of(Commit):
                await node.answer(asked)
            await until(lambda: set(states(tmp_path).values()) == {"committed"})
            for rank in later:
                await node.write(rank, 120)
            await until(lambda: states(tmp_path).get(120) == "committed")
            return [(asked.step, asked.clears) for asked in node.of(Commit)]

    asked = asyncio.run(scenario())

    first = dict(reversed(asked))  # they may be said again
    assert first == {100: True, 110: False, 120: True}


def test_a_rank_cannot_say_where_its_job_has_its_checkpoints(tmp_path: Path) -> None:
    async def scenario() -> Any:
        exchange = Exchange()
        async with weaver_at(tmp_path, exchange) as weaver:
            node, ranks = await launched(exchange, world=1)
            await node.tell(ranks[0], "job", checkpoints="/etc/checkpoints")
            await node.write(ranks[0], 100)
            await until(lambda: states(tmp_path) == {100: "committed"})
            return [asked.root for asked in node.of(Commit)], weaver.jobs.all()[0].facts

    roots, facts = asyncio.run(scenario())

    assert roots == [ROOT]
    assert facts["checkpoints"] == ROOT
