"""When a run saves: by number, asked for, told to stop, at its end; never twice for a step."""

import json
from typing import Any

import pytest

from torchloom.messages.plane import Goodbye

from ...harness.home import until
from .conftest import Lives

pytestmark = [pytest.mark.process, pytest.mark.needs("torch")]


def told(lives: Lives) -> list[tuple[int, str]]:
    """Return what rank 0 has saved, and why."""
    return [(one["step"], one["trigger"]) for one in lives.events("checkpoint_shard", 0)]


def test_it_saves_every_so_many_steps_and_at_the_end(lives: Lives) -> None:
    lives.run(2, checkpointing={"every_n_steps": 10})

    assert told(lives) == [(10, "every_n_steps"), (20, "every_n_steps"), (24, "end")]
    assert lives.storage.committed() == [24, 20, 10]
    facts = lives.events("checkpoint_shard", 0)[0]
    assert facts["metrics"].keys() == {"loss"}
    assert (facts["strategy"], facts["backend"], facts["epoch"]) == ("data_parallel", "gloo", 0)
    assert facts["optimizer_state"] is facts["rng_state"] is True


def test_the_last_step_is_saved_once_when_its_number_is_due_too(lives: Lives) -> None:
    lives.run(1, checkpointing={"every_n_steps": 24})

    assert told(lives) == [(24, "every_n_steps"), (48, "every_n_steps")]


def test_a_program_that_leaves_its_loop_has_saved_the_last_step_it_took(lives: Lives) -> None:
    lives.run(1, checkpointing={}, leave=6)

    assert told(lives) == [(7, "end")]


def test_what_a_job_says_holds_unless_the_program_says_otherwise(lives: Lives) -> None:
    job = {"checkpointing": {"enabled": True, "every_n_steps": 20, "keep_last": 2, "best": "loss"}}
    env = {"LOOM_JOB_SPEC": json.dumps(job)}

    lives.run(1, env=env)
    of_the_job = told(lives), lives.events("checkpointing")
    lives.run(1, env=env, checkpointing={"every_n_steps": 40, "mode": "max"})
    of_the_program = told(lives), lives.events("checkpointing")

    common = {"every_n_seconds": None, "keep_every": None}
    assert of_the_job == (
        [(20, "every_n_steps"), (40, "every_n_steps"), (48, "end")],
        [{**common, "keep_last": 2, "best": "loss", "mode": "min"}],
    )
    assert of_the_program == (
        [(40, "every_n_steps"), (48, "end")],
        [{**common, "keep_last": 3, "best": None, "mode": "max"}],
    )


def test_nothing_is_saved_that_nobody_asked_for(lives: Lives) -> None:
    lives.run(1)

    assert told(lives) == []
    assert not lives.root.exists()


def test_the_program_may_ask_in_a_step(lives: Lives) -> None:
    lives.run(2, asks=[3, 9])

    assert told(lives) == [(4, "program"), (10, "program")]


def test_sigusr1_says_that_a_checkpoint_is_wanted_and_ends_nothing(lives: Lives) -> None:
    lives.run(1, signals=[3])

    assert lives.events("checkpoint_wanted") == [{"why": "SIGUSR1"}]


def test_a_command_saves_at_its_step_and_a_stop_before_the_loop_ends(lives: Lives) -> None:
    whole = lives.run(2, samples=960, epochs=1)
    running = lives.start(2, samples=960, epochs=200, checkpointing={"every_n_steps": None})
    lives.agent.wait_for_boundaries(2)

    _, at = lives.agent.insist(2, "checkpoint")
    until(lambda: len(lives.events("checkpoint_shard")) == 2)
    _, last = lives.agent.insist(2, "stop")
    ended = running.result(timeout=180)
    lives.agent.wait(Goodbye, 2)
    lives.commit()

    assert [code for code, _ in ended] == [0, 0], ended
    assert told(lives) == [(at, "command"), (last, "stop")]
    assert lives.storage.committed() == [last, at]
    assert [len(rows) for rows in lives.rows(2)] == [last, last]
    most = min(last, len(whole[0]))
    assert lives.rows(2)[0][:most] == whole[0][:most]


def test_a_stop_that_gives_devices_back_saves_in_any_case(lives: Lives) -> None:
    running = lives.start(1, samples=960, epochs=200)
    lives.agent.wait_for_boundaries(1)

    _, last = lives.agent.insist(1, "stop", {"release": True})
    running.result(timeout=180)
    lives.agent.wait(Goodbye)

    assert told(lives) == [(last, "stop")]


def test_without_an_agent_nothing_is_written_and_a_line_says_so(lives: Lives) -> None:
    lives.run(1, checkpointing={"every_n_steps": 4}, env={"LOOM_AGENT": ""})

    assert "loom: no checkpoints are saved: there is no agent to commit" in lives.printed[0]
    assert not lives.root.exists()


def test_digests_tell_two_lives_apart_or_the_same(lives: Lives) -> None:
    def digests(folder: str, **more: Any) -> list[dict[str, Any]]:
        path = lives.folder / folder
        lives.run(2, env={"LOOM_DIGESTS": str(path), **more.pop("env", {})}, **more)
        return [json.loads(line) for line in (path / "rank_1.jsonl").read_text().splitlines()]

    whole = digests("whole")
    first = digests("first", checkpointing={"every_n_steps": 8}, env={"LOOM_UNTIL": 10})
    again = digests("again", resume=8)

    def plain(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
        return [(row["step"], row["digest"]) for row in rows]

    assert plain(whole)[:11] == plain(first)
    assert plain(whole)[8:] == plain(again)
    assert [row["step"] for row in whole] == list(range(25))
    assert again[0]["generation"] == 2
    assert {"model.layer0.weight", "model.norm.running_mean"} < again[0]["tensors"].keys()
    assert "optimizer.0.momentum_buffer" in again[0]["tensors"]
