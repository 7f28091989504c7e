"""What would come of a word about devices, said before it is."""

from typing import Any

from torchloom.server.impact import device_command_line, device_outlook


def device(uuid: str, state: str = "healthy", kind: str = "gpu") -> dict[str, Any]:
    return {"uuid": uuid, "state": state, "kind": kind}


def job(then: str, ranks: list[int], ends: list[int] | None = None) -> dict[str, Any]:
    return {"job": "gpt", "ranks": ranks, "ends": ends or [], "then": then}


def said(state: str, *jobs: dict[str, Any]) -> list[str]:
    before = "draining" if state == "healthy" else "healthy"
    found: list[str] = device_outlook(state, [device("cpu/1", before, "cpu")], jobs)["summary"]
    return found


def test_each_end_of_a_rank_is_said_with_what_follows() -> None:
    assert said("failed", job("replaced", [1], [1])) == [
        "Rank 1 of gpt is ended at once, and replaced while the others wait."
    ]
    assert said("failed", job("restarted", [1], [0, 1])) == [
        "Ranks 0, 1 of gpt are ended at once, and the job restarts from its newest checkpoint."
    ]
    assert said("failed", job("shrunk", [1], [1]), job("failed", [1], [1])) == [
        "Rank 1 of gpt is ended at once, and the job continues without it.",
        "Rank 1 of gpt is ended at once, and the job fails.",
    ]


def test_whoever_stays_is_said_to_stay() -> None:
    assert said("draining", job("stays", [2, 3])) == [
        "Ranks 2, 3 of gpt keep running until they end."
    ]
    assert said("healthy", job("stays", [2])) == ["Rank 2 of gpt keeps running there."]


def test_a_device_without_ranks_and_one_that_is_so_already_are_said_to_be() -> None:
    two = [device("GPU-1"), device("GPU-2")]

    assert said("failed") == ["No rank uses it, so none is ended."]
    assert device_outlook("draining", two, ())["summary"] == [
        "No rank uses them, so nothing ends.",
        "The queue gives them to no further job.",
    ]
    assert device_outlook("healthy", two, [job("stays", [1])]) == {
        "state": "healthy",
        "devices": [],
        "summary": ["They are all healthy already."],
        "warnings": [],
    }


def test_slots_of_processors_are_not_kept_from_the_queue_and_that_is_said() -> None:
    slot = device("node1/cpu/0", kind="cpu")

    warned = [
        len(device_outlook(state, [slot], ())["warnings"]) for state in ("failed", "draining")
    ]
    assert warned == [1, 1]
    assert device_outlook("healthy", [{**slot, "state": "failed"}], ())["warnings"] == []


def test_the_commands_say_the_same() -> None:
    two = [device("GPU-1"), device("GPU-2")]

    assert device_command_line("failed", two[:1], "") == "loom devices fail GPU-1"
    assert device_command_line("healthy", [device("GPU-3", "failed"), *two], "") == (
        "loom devices recover GPU-3"
    )
    assert device_command_line("draining", two, "row remap") == (
        "loom devices drain GPU-1 --reason 'row remap' && "
        "loom devices drain GPU-2 --reason 'row remap'"
    )
