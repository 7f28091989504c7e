import pytest

from torchloom.bus import subjects
from torchloom.bus.memory import matches


def test_subjects_are_spelled_as_agreed() -> None:
    assert subjects.hello("n1") == "torchLoom.v1.agent.n1.hello"
    assert subjects.heartbeat("n1") == "torchLoom.v1.agent.n1.beat"
    assert subjects.records("n1") == "torchLoom.v1.agent.n1.records"
    assert subjects.acts("n1") == "torchLoom.v1.agent.n1.acts"
    assert subjects.down("n1") == "torchLoom.v1.agent.n1.down"
    assert subjects.door("set") == "torchLoom.v1.door.set"
    assert subjects.DEVICE_EVENTS == "torchLoom.v1.devices.events"
    assert subjects.DEVICE_ALERTS == "torchLoom.v1.devices.alerts"


def test_the_weaver_hears_every_agent_by_its_patterns() -> None:
    said = (subjects.hello, subjects.heartbeat, subjects.records, subjects.acts)
    patterns = (subjects.HELLOS, subjects.HEARTBEATS, subjects.RECORDS, subjects.ACTS)

    heard = [[matches(pattern, subject("n-1")) for pattern in patterns] for subject in said]

    assert heard == [[row == column for column in range(4)] for row in range(4)]


def test_the_agent_of_a_subject_is_found_again() -> None:
    assert subjects.agent_of(subjects.heartbeat("node_7")) == "node_7"
    assert subjects.agent_of(subjects.DEVICE_EVENTS) is None
    assert subjects.agent_of("torchLoom.v1.agent.a.b.beat") is None
    assert subjects.agent_of("other.agent.a.beat") is None


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "a\r\nPUB x 0", "ü", "x" * 65])
def test_a_name_that_would_mean_another_subject_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be part of a subject"):
        subjects.down(name)


def test_an_agents_rights_are_its_own_subjects() -> None:
    assert subjects.may_publish("n1") == ("torchLoom.v1.agent.n1.>",)
    assert subjects.may_subscribe("n1") == (
        "torchLoom.v1.agent.n1.down",
        "torchLoom.v1.inbox.n1.>",
    )
