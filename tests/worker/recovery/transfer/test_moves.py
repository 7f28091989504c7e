"""A state comes whole from one member to others, or not at all; nothing is left in the folder."""

import os
from pathlib import Path

import pytest

from ..conftest import Ranks

pytestmark = [pytest.mark.needs("torch"), pytest.mark.process]

# Each rank has a state of its own; `same` compares one with that of a rank, bit by bit.
BEGIN = """
import ctypes, platform, struct
from torchloom.messages.membership import Given
from torchloom.worker.recovery.transfer import channels as carrying, moves as moving

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
    from torchloom.worker.recovery.transfer.channels import PackedState as Packed
    first, second = Packed(one), Packed(other)
    equal = all(torch.equal(a, b) for a, b in zip(first.tensors, second.tensors, strict=True))
    return equal and first.plain == second.plain

def move(given, nodes, generation=3, shared=None, own=()):
    return moving.give_and_take(
        [Given(*one) for one in given], rank, nodes, folder, generation,
        shared or (lambda: state_of(rank)), lambda step: private_of(rank, step), own,
    )

def forbid_reading():
    # The kernel refuses process_vm_readv from now on, as the filter of a container may.
    number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
    filters = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in filters))
    program = struct.pack("HxxxxxxQ", len(filters), ctypes.addressof(code))
    library = ctypes.CDLL(None)
    assert library.prctl(38, 1, 0, 0, 0) == 0
    assert library.prctl(22, 2, program) == 0

def left():
    return sorted(name for name in os.listdir(folder) if name.startswith("moving-"))

def meet(word):
    (folder / f"{word}-{rank}").touch()
    until(lambda: all((folder / f"{word}-{each}").exists() for each in range(world)))
"""
HERE, APART = '["a"] * world', '[f"n{r}" for r in range(world)]'
MIXED = '["a", "a", "b", "b"]'
SIZE = 3 * 6_000_000 + 900 * 900 * 4
FORBID = "forbid_reading()"
WAYS, NAMES = [(HERE, ""), (HERE, FORBID), (APART, "")], ["memory", "file", "group"]


@pytest.mark.parametrize(("nodes", "first"), WAYS, ids=NAMES)
def test_a_state_comes_whole_and_is_the_targets_own(ranks: Ranks, nodes: str, first: str) -> None:
    ranks.run(
        BEGIN
        + f"""
{first}
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


@pytest.mark.parametrize(("nodes", "first"), [WAYS[0], WAYS[2]], ids=["memory", "group"])
def test_a_newcomers_own_tensors_are_filled_as_far_as_they_fit(
    ranks: Ranks, nodes: str, first: str
) -> None:
    ranks.run(
        BEGIN
        + f"""
{first}
join()
own = [torch.zeros(1_500_000), torch.zeros(1_500_000, dtype=torch.float64), torch.zeros(1_500_000)]
own += [torch.zeros(7, 3).bfloat16(), torch.zeros(0, 2), torch.zeros(900, 900).t()]
taken = move([(2, "state", 7, 0)], {nodes}, own=own)
weights = taken.shared and list(taken.shared["models"]["model"].values())
tell(
    whole=rank == 2 and same(taken.shared, state_of(0)),
    filled=rank == 2 and [one is other for one, other in zip(own, weights)],
)
"""
    )

    assert ranks.told(2) == [{"whole": True, "filled": [True, False, True, False, False, False]}]


def test_what_changes_while_it_is_read_is_noticed(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
import xxhash
digest, recv, heard = xxhash.xxh3_64_intdigest, dist.recv, []

def changing(chunk):  # when the target has read it, before its hash is known
    if (folder / "offered").exists():
        until((folder / "read").exists)
        chunk[0] ^= 1
    return digest(chunk)

def hearing(*args, **more):
    heard.append(args)
    if len(heard) == 2:
        (folder / "read").touch()
    return recv(*args, **more)

join()
if rank == 0:
    xxhash.xxh3_64_intdigest = changing
    answered = dist.send
    dist.send = lambda *args, **more: ((folder / "offered").touch(), answered(*args, **more))
if rank == 2:
    dist.recv = hearing
try:
    move([(2, "state", 7, 0)], ["a"] * world)
    tell(is_taken=True)
except moving.NotTaken as error:
    tell(error=str(error))
value = torch.ones(1)
dist.all_reduce(value)  # the others go on
tell(sum=value.item(), left=left())
"""
    )

    damaged = {"error": "4 of 4 chunks that rank 0 gave are damaged"}
    assert [ranks.told(rank)[0] for rank in range(3)] == [{"is_taken": True}] * 2 + [damaged]
    assert [ranks.told(rank)[1] for rank in range(3)] == [{"sum": 3.0, "left": []}] * 3


def test_memory_of_another_process_than_was_meant_is_not_taken(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
join()
if rank == 0:
    os.getpid = lambda: int((folder / "pid-1").read_text())  # as in a namespace of its own
taken = move([(2, "state", 7, 0)], ["a"] * world)
tell(whole=rank == 2 and same(taken.shared, state_of(0)))
"""
    )

    assert ranks.told(2) == [{"whole": True}]


def test_one_target_reads_and_the_other_may_not(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
join()
rank == 1 and forbid_reading()
taken = move([(1, "state", 7, 0), (2, "state", 7, 0)], ["a"] * world)
tell(whole=rank > 0 and same(taken.shared, state_of(0)))
meet("done")
tell(left=left())
"""
    )

    assert [ranks.told(rank) for rank in (1, 2)] == [[{"whole": True}, {"left": []}]] * 2


# A byte of the real file is changed as soon as the target opens it: in the head, in a tensor.
FLIP = """
forbid_reading()
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


@pytest.mark.parametrize(("nodes", "first"), WAYS, ids=NAMES)
def test_a_source_that_dies_while_it_gives_is_an_error_of_the_group(
    ranks: Ranks, nodes: str, first: str
) -> None:
    ranks.run(
        BEGIN
        + f"""
import xxhash
{first}
join()
mine = state_of(rank, 12_000_000)
put, send, digest = os.pwrite, dist.isend, xxhash.xxh3_64_intdigest
count = 0

def dying(*args, **kwargs):
    global count
    count += 1
    if count >= 7:
        os.kill(os.getpid(), signal.SIGKILL)
    kind = type(args[0])
    return (put if kind is int else digest if kind is memoryview else send)(*args, **kwargs)

if rank == 0:
    os.pwrite = dist.isend = xxhash.xxh3_64_intdigest = dying
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


@pytest.mark.parametrize(
    ("first", "where"), [("", "dist.send"), (FORBID, "os.open")], ids=["memory", "file"]
)
def test_a_target_that_dies_leaves_nothing_behind_the_next_generation(
    ranks: Ranks, first: str, where: str
) -> None:
    ranks.run(
        BEGIN
        + """
FIRST
join()
if rank == 2:
    opened = os.open

    def dying(what, *more, **told):
        if isinstance(what, torch.Tensor) or "moving-" in str(what):
            os.kill(os.getpid(), signal.SIGKILL)
        return opened(what, *more)

    WHERE = dying
raised(lambda: move([(2, "state", 7, 0)], ["a"] * world))
until(lambda: has_died((folder / "pid-2").read_text()))
leaving.current().leave()
world = 2
join(1)
taken = move([(1, "state", 7, 0)], ["a"] * world, generation=4)
meet("done")
tell(left=left(), is_taken=taken.shared is not None)
os._exit(0)
""".replace("FIRST", first).replace("WHERE", where),
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
                "cannot save tracked.mine: object is not a tensor, plain value or container"
            }
        ],
        [{"is_taken": True}],
        [{"error": "rank 0 had no state to give"}],
    ]


def test_without_room_in_the_folder_the_group_carries_it(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(
        BEGIN
        + """
forbid_reading()
join()
room = os.statvfs
os.statvfs = lambda path: os.statvfs_result((4096, 4096, 10, 10, 10, 0, 0, 0, 0, 255))
taken = move([(2, "state", 7, 0)], ["a"] * world)
tell(whole=rank == 2 and same(taken.shared, state_of(0)), left=left())
meet("done")
"""
    )

    assert ranks.told(2) == [{"whole": True, "left": []}]


def test_a_folder_that_fills_up_is_no_ones_end(ranks: Ranks) -> None:
    ranks.run(
        BEGIN
        + """
forbid_reading()
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
