import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from torchloom.rules.devices import (
    DeviceHealth,
    DeviceState,
    DRMap,
    GroupId,
    MappedRank,
    RankId,
)


def pid(rank: int, job: str = "j") -> RankId:
    return RankId(job, "trainer", rank)


def process(rank: int, *devices: str, replica: str = "", job: str = "j") -> MappedRank:
    return MappedRank(pid(rank, job), frozenset(devices), replica)


SEED = DRMap().register(  # replica groups A and B of two ranks each, and another job on a device
    process(0, "gpu0", replica="A"),
    process(1, "gpu1", replica="A"),
    process(2, "gpu2", replica="B"),
    process(3, "gpu3", "gpu0", replica="B"),
    process(0, "gpu2", job="other"),
)


def test_both_directions_say_the_same() -> None:
    assert SEED.device_to_pid == {
        "gpu0": {pid(0), pid(3)},
        "gpu1": {pid(1)},
        "gpu2": {pid(2), pid(0, "other")},
        "gpu3": {pid(3)},
    }
    assert SEED.pid_to_devices[pid(3)] == {"gpu3", "gpu0"}


def test_a_failed_device_leads_to_its_processes_and_their_replica_groups() -> None:
    hit = SEED.processes_on("gpu2")

    assert hit == {pid(2), pid(0, "other")}
    assert SEED.groups_of(hit) == {GroupId("j", "B"), GroupId("other", "trainer/0")}
    assert SEED.members(GroupId("j", "B")) == {pid(2), pid(3)}
    assert SEED.processes_on("gpu0", "gpu1") == {pid(0), pid(1), pid(3)}


def test_an_unknown_device_concerns_nobody() -> None:
    assert SEED.processes_on("50") == frozenset()
    assert not SEED.knows("50")


def test_registering_twice_changes_nothing_and_is_the_same_value() -> None:
    assert SEED.register(process(0, "gpu0", replica="A")) is SEED
    assert SEED.unregister(pid(9)) is SEED
    assert SEED.mark("gpu0", DeviceState.HEALTHY, "seen") is SEED


def test_a_process_that_registers_more_devices_has_them_all() -> None:
    grown = SEED.register(process(0, "gpu7"))

    assert grown.processes[pid(0)] == process(0, "gpu0", "gpu7", replica="A")
    assert grown.version == SEED.version + 1


def test_a_process_that_moved_is_no_longer_where_it_was() -> None:
    moved = SEED.replace_process(process(2, "gpu9", replica="B"))

    assert moved.processes_on("gpu2") == {pid(0, "other")}
    assert moved.processes_on("gpu9") == {pid(2)}
    assert SEED.processes_on("gpu2") == {pid(2), pid(0, "other")}


def test_a_mark_stays_until_the_device_is_healthy_and_survives_its_processes() -> None:
    failed = SEED.mark("gpu1", DeviceState.FAILED, "xid 79").unregister(pid(1))

    assert failed.health_of("gpu1") == DeviceHealth(DeviceState.FAILED, "xid 79")
    assert failed.knows("gpu1")
    recovered = failed.mark("gpu1", DeviceState.HEALTHY)
    assert recovered.health_of("gpu1") == DeviceHealth()
    assert not recovered.knows("gpu1")


def test_a_process_is_named_by_job_role_and_rank() -> None:
    assert str(pid(3)) == "j/trainer/3"
    assert RankId.parse("a/b/trainer/3") == RankId("a/b", "trainer", 3)
    with pytest.raises(ValueError, match="unpack"):
        RankId.parse("trainer")


def test_processes_of_a_node_are_found() -> None:
    here = MappedRank(pid(0), frozenset({"cpu0"}), node="n0")
    drmap = DRMap().register(here, MappedRank(pid(1), frozenset({"cpu0"}), node="n1"))

    assert drmap.processes_at("n0") == {pid(0)}


devices = st.frozensets(st.sampled_from("abcde"), max_size=3)
processes = st.builds(
    MappedRank, st.builds(pid, st.integers(0, 5)), devices, st.sampled_from(["", "A", "B"])
)


@given(st.lists(processes, unique_by=lambda p: p.id), st.randoms(use_true_random=False))
@settings(max_examples=200, derandomize=True, database=None, deadline=None)
def test_reregistration_in_any_order_gives_the_map_again(known: list[MappedRank], chance) -> None:
    drmap = DRMap()
    for one in known:
        drmap = drmap.register(one)
    again = [*known, *known]
    chance.shuffle(again)

    rebuilt = DRMap()
    for one in again:
        rebuilt = rebuilt.register(one)

    assert rebuilt == drmap
    assert DRMap().register(*known).device_to_pid == drmap.device_to_pid


class World(RuleBasedStateMachine):
    """Pairs of process and device, kept the plain way beside the map."""

    def __init__(self) -> None:
        super().__init__()
        self.drmap = DRMap()
        self.pairs: set[tuple[RankId, str]] = set()
        self.health: dict[str, DeviceHealth] = {}

    @rule(new=processes)
    def registers(self, new: MappedRank) -> None:
        self.pairs |= {(new.id, device) for device in new.devices}
        self.becomes(self.drmap.register(new))

    @rule(new=processes)
    def moves(self, new: MappedRank) -> None:
        self.pairs = {pair for pair in self.pairs if pair[0] != new.id}
        self.pairs |= {(new.id, device) for device in new.devices}
        self.becomes(self.drmap.replace_process(new))

    @rule(rank=st.integers(0, 5))
    def leaves(self, rank: int) -> None:
        self.pairs = {pair for pair in self.pairs if pair[0] != pid(rank)}
        self.becomes(self.drmap.unregister(pid(rank)))

    @rule(device=st.sampled_from("abcde"), state=st.sampled_from(DeviceState))
    def is_marked(self, device: str, state: DeviceState) -> None:
        self.health.pop(device, None)
        if state is not DeviceState.HEALTHY:
            self.health[device] = DeviceHealth(state, "why")
        self.becomes(self.drmap.mark(device, state, "why"))

    def becomes(self, new: DRMap) -> None:
        old, self.drmap = self.drmap, new
        has_changed = (old.processes, old.health) != (new.processes, new.health)
        assert new.version == old.version + has_changed
        assert (new is old) == (not has_changed)
        assert {(p, d) for p, owned in new.pid_to_devices.items() for d in owned} == self.pairs
        assert {(p, d) for d, users in new.device_to_pid.items() for p in users} == self.pairs
        assert all(new.device_to_pid.values()), "a device nobody uses is still listed"
        assert new.health == self.health


TestWhateverRegisters = World.TestCase
TestWhateverRegisters.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
