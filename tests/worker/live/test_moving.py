"""A state comes whole from one member to others, or not at all; nothing is left in the folder."""

import os
from pathlib import Path

import pytest

from .conftest import Ranks

pytestmark = [pytest.mark.needs("torch"), pytest.mark.process]

# Each rank has a state of its own; `same` compares one with that of a rank, bit by bit.
BEGIN = """
from torchloom.bus.regrouping import Given
from torchloom.worker.live import carrying, moving

def state_of(rank, large=1_500_000):
    draw = torch.Generator().manual_seed(rank)
    weights = {f"w{at}": torch.randn(large, generator=draw) for at in range(3)}
    odd = {"half": torch.randn(7, 3, generator=draw).bfloat16(), "none": torch.zeros(0, 2)}
    part = torch.randn(900, 900, generator=draw).t()
    return {
        "models": {"model": {**weights, **odd, "part": part}},
        "tracked": {"opt": {"state": {0: {"step": torch.tensor(5.0 + rank)}}, "betas": (0.9, 1)}},
    }

def private_of(rank, step):
    return {"buffers": {"mean": torch.full((5,), float(rank))}, "position": {"at": step}}

def same(one, other):
    from torchloom.worker.live.packing import Packed
    first, second = Packed(one), Packed(other)
    equal = all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))
    return equal and first.plain == second.plain

def move(given, nodes, generation=3, shared=None):
    return moving.give_and_take(
        [Given(*one) for one in given], rank, nodes, folder, generation,
        shared or (lambda: state_of(rank)), lambda step: private_of(rank, step),
    )

def left():
    return sorted(name for name in os.listdir(folder) if name.startswith("moving-"))

def meet(word):
    (folder / f"{word}-{rank}").touch()
    until(lambda: all((folder / f"{word}-{each}").exists() for each in range(world)))
"""
HERE, APART = '["a"] * world', '[f"n{r}" for r in range(world)]'
MIXED = '["a", "a", "b", "b"]'
SIZE = 3 * 6_000_000 + 900 * 900 * 4


@pytest.mark.parametrize("nodes", [HERE, APART], ids=["one_node", "nodes"])
def test_a_state_comes_whole_and_is_the_targets_own(ranks: Ranks, nodes: str) -> None:
    ranks.run(
        BEGIN
        + f"""
join()
taken = move([(2, "state", 7, 0)], {nodes})
if rank == 2:
    whole = same(taken.shared, state_of(0))
    weight = taken.shared["models"]["model"]["w0"]
    weight.add_(1)
    storage = weight.untyped_storage().nbytes()
    tell(whole=whole, taken=taken.taken, private=taken.private, storage=storage)
else:
    tell(shared=taken.shared, private=taken.private, taken=taken.taken)
meet("done")
tell(left=left())
"""
    )

    assert ranks.told(0) == [{"shared": None, "private": None, "taken": 0}, {"left": []}]
    assert ranks.told(1) == ranks.told(0)
    told, after = ranks.told(2)
    assert after == {"left": []}
    assert told.pop("taken") in range(SIZE, SIZE + 5000)
    assert told == {"whole": True, "private": None, "storage": 6_000_000}


@pytest.mark.parametrize("nodes", [HERE, MIXED], ids=["one_node", "two_nodes"])
def test_several_take_from_several(ranks: Ranks, nodes: str) -> None:
    ranks.run(
        BEGIN
        + f"""
join()
given = [(1, "state", 7, 0), (2, "state", 7, 3), (0, "page", 6, 0), (2, "private", 6, 3),
         (3, "private", 6, 0), (1, "private", 6, 0), (0, "private", 6, 0)]
taken = move(given, {nodes})
taken.shared and taken.shared["models"]["model"]["w1"].zero_().add_(rank)  # it is nobody else's
meet("changed")
source = {{1: 0, 2: 3}}.get(rank)
weights = taken.shared and taken.shared["models"]["model"]
tell(
    shared=weights and bool((weights["w1"] == rank).all()),
    rest=weights and torch.equal(weights["w2"], state_of(source)["models"]["model"]["w2"]),
    private=taken.private and taken.private["buffers"]["mean"][0].item(),
    at=taken.private and taken.private["position"],
)
meet("done")
tell(left=left())
""",
        world=4,
    )

    at = {"at": 6}
    assert [ranks.told(rank) for rank in range(4)] == [
        [{"shared": None, "rest": None, "private": 0.0, "at": at}, {"left": []}],
        [{"shared": True, "rest": True, "private": 0.0, "at": at}, {"left": []}],
        [{"shared": True, "rest": True, "private": 3.0, "at": at}, {"left": []}],
        [{"shared": None, "rest": None, "private": 0.0, "at": at}, {"left": []}],
    ]


def test_targets_of_one_source_do_not_share_what_they_took(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
join()
taken = move([(1, "state", 7, 0), (2, "state", 7, 0)], ["a"] * world)
if rank == 1:
    taken.shared["models"]["model"]["w1"].zero_()
meet("changed")
tell(whole=rank == 2 and same(taken.shared, state_of(0)), left=left())
"""
    )

    assert ranks.told(2) == [{"whole": True, "left": []}]


# A byte of the real file is changed as soon as the target opens it: in the head, in a tensor.
FLIP = """
opened = os.open

def flipping(path, flags, *more):
    if "-state-" in str(path) and rank == 2:
        with open(path, "r+b") as file:
            file.seek(PLACE)
            byte = file.read(1)
            file.seek(PLACE)
            file.write(bytes([byte[0] ^ 1]))
    return opened(path, flags, *more)

os.open = flipping
"""


@pytest.mark.parametrize("place", [0, 300, 2_000_000, SIZE - 5000])
def test_damage_on_the_way_is_noticed_and_nothing_is_handed_back(ranks: Ranks, place: int) -> None:
    ranks.run(
        BEGIN
        + FLIP.replace("PLACE", str(place))
        + """
join()
mine = state_of(rank)
try:
    move([(2, "state", 7, 0), (2, "private", 6, 1)], ["a"] * world, shared=lambda: mine)
    tell(is_taken=True)
except moving.NotTaken as error:
    tell(error=str(error))
tell(untouched=same(mine, state_of(rank)))
value = torch.ones(1)
dist.all_reduce(value)  # the others go on
meet("done")
tell(left=left(), sum=value.item())
"""
    )

    assert ranks.told(0)[0] == {"is_taken": True}
    damaged, untouched, after = ranks.told(2)
    assert "rank 0 gave" in damaged["error"]
    assert (untouched, after) == ({"untouched": True}, {"left": [], "sum": 3.0})


@pytest.mark.parametrize("nodes", [HERE, APART], ids=["one_node", "nodes"])
def test_a_source_that_dies_while_it_gives_is_an_error_of_the_group(
    ranks: Ranks, nodes: str
) -> None:
    ranks.run(
        BEGIN
        + f"""
join()
mine = state_of(rank, 12_000_000)
put, send = os.pwrite, dist.isend
count = 0

def dying(*args, **kwargs):
    global count
    count += 1
    if count == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return (put if isinstance(args[0], int) else send)(*args, **kwargs)

if rank == 0:
    os.pwrite = dist.isend = dying
raised(lambda: move([(2, "state", 7, 0)], {nodes}, shared=lambda: mine))
if rank == 2:
    tell(untouched=same(mine, state_of(rank, 12_000_000)), left=left())
os._exit(0)
""",
        codes=(-9, 0, 0),
    )

    error, after = ranks.told(2)
    assert error["is_collective"], error
    assert after == {"untouched": True, "left": []}


def test_a_target_that_dies_leaves_nothing_behind_the_next_generation(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
join()
if rank == 2:
    opened = os.open

    def dying(path, *more):
        if "moving-" in str(path):
            os.kill(os.getpid(), signal.SIGKILL)
        return opened(path, *more)

    os.open = dying
raised(lambda: move([(2, "state", 7, 0)], ["a"] * world))
until(lambda: has_died((folder / "pid-2").read_text()))
leaving.current().leave()
world = 2
join(1)
taken = move([(1, "state", 7, 0)], ["a"] * world, generation=4)
meet("done")
tell(left=left(), is_taken=taken.shared is not None)
os._exit(0)
""",
        codes=(0, 0, -9),
    )

    assert ranks.told(1)[-1] == {"left": [], "is_taken": True}


def test_a_state_that_cannot_be_given_is_told_to_the_target_which_does_not_wait(
    ranks: Ranks,
) -> None:
    ranks.run(
        BEGIN
        + """
join()
try:
    move([(2, "state", 7, 0), (1, "private", 6, 2)], ["a"] * world,
         shared=lambda: {"tracked": {"mine": object()}})
    tell(is_taken=True)
except moving.NotTaken as error:
    tell(error=str(error))
"""
    )

    assert [ranks.told(rank) for rank in range(3)] == [
        [
            {
                "error": "rank 0 has no state to give: "
                "cannot save tracked.mine: object is no tensor, plain value or container"
            }
        ],
        [{"is_taken": True}],
        [{"error": "rank 0 had no state to give"}],
    ]


def test_without_room_in_the_folder_the_group_carries_it(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(
        BEGIN
        + """
join()
room = os.statvfs
os.statvfs = lambda path: os.statvfs_result((4096, 4096, 10, 10, 10, 0, 0, 0, 0, 255))
taken = move([(2, "state", 7, 0)], ["a"] * world)
tell(whole=rank == 2 and same(taken.shared, state_of(0)), left=left())
"""
    )

    assert ranks.told(2) == [{"whole": True, "left": []}]


def test_a_folder_that_fills_up_is_no_ones_end(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
join()
mine = state_of(rank, 12_000_000)
put = os.pwrite

def full(fd, content, place):
    if place > 100_000_000:
        raise OSError(28, "No space left on device")
    return put(fd, content, place)

os.pwrite = full
try:
    move([(2, "state", 7, 0)], ["a"] * world, shared=lambda: mine)
    tell(is_taken=True)
except moving.NotTaken as error:
    tell(error=str(error))
value = torch.ones(1)
dist.all_reduce(value)
tell(sum=value.item(), left=left())
"""
    )

    assert "has no room for a state" in ranks.told(0)[0]["error"]
    assert ranks.told(2)[0] == {"error": "rank 0 could not give all of its state"}
    assert [ranks.told(rank)[1] for rank in range(3)] == [{"sum": 3.0, "left": []}] * 3


def test_ranks_share_memory_in_these_tests(ranks: Ranks) -> None:
    assert os.statvfs(ranks.folder).f_bavail * os.statvfs(ranks.folder).f_frsize > 2 << 30
