"""Ranks are where they should be and find what they should, whoever brings them there."""

import os
from pathlib import Path

import pytest

from ...harness.host_launches import LIMIT, Launches
from .ways import MPIRUN_PER_RANK, SRUN, SRUN_PER_RANK, WAYS, Way

ODD = {
    "WITH_COMMA": "a,b,,c",
    "WITH_EQUALS": "x=1=2",
    "WITH_NEWLINE": "one\ntwo\n",
    "WITH_QUOTES": 'it\'s "so" $HOME `id` \\ *',
    "WITH_UNICODE": "grüße 織機",
    "EMPTY": "",
}
TWO_EACH = {0: ("n1", 0), 1: ("n1", 1), 2: ("n2", 0), 3: ("n2", 1)}


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


def test_ranks_find_their_place_variables_folder_and_arguments(
    in_slurm: Launches, way: Way
) -> None:
    train = in_slurm.script("sys.stdout.write(f\"rank {told['RANK']} of {told['host']}\\n\")")

    done = way.run(in_slurm, train, "--lr", "a b", "", env=ODD)

    assert done.returncode == 0, done.stderr
    assert sorted(_without_prefix(done.stdout)) == [
        f"rank {rank} of {host}" for rank, (host, _) in TWO_EACH.items()
    ]
    assert in_slurm.places() == TWO_EACH
    ranks = list(in_slurm.told().values())
    assert [{name: one["env"].get(name) for name in ODD} for one in ranks] == [ODD] * 4
    assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"]) for one in ranks} == {("4", "2")}
    assert {one["env"]["GROUP_WORLD_SIZE"] for one in ranks} == {"2"}
    assert [(one["host"], one["GROUP_RANK"]) for one in ranks] == [
        *[("n1", "0")] * 2,
        *[("n2", "1")] * 2,
    ]
    assert {one["cwd"] for one in ranks} == {os.getcwd()}
    assert [one["argv"] for one in ranks] == [["--lr", "a b", ""]] * 4
    assert {one["LOOM_JOB"] for one in ranks} == {in_slurm.app_id}
    assert {one["env"].get("LOOM_LAUNCH_TOKEN") for one in ranks} == {None}
    (meeting,) = {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in ranks}
    assert meeting[0] in ("n1", in_slurm.cluster.addresses["n1"])
    assert int(meeting[1]) > 0


def test_uneven_slots_are_filled_in_order(launches: Launches) -> None:
    hosts = launches.hostfile(n3=1, n1=3, n2=2)

    done = launches.run("ctl", "--hostfile", hosts, launches.script(""))

    assert done.returncode == 0, done.stderr
    assert launches.places() == {
        0: ("n3", 0),
        **{1 + place: ("n1", place) for place in range(3)},
        **{4 + place: ("n2", place) for place in range(2)},
    }
    told = launches.told().values()
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"]) for one in told} == {
        ("6", launches.cluster.addresses["n3"])
    }
    assert [one["LOCAL_WORLD_SIZE"] for one in told] == ["1", "3", "3", "3", "2", "2"]


@pytest.mark.parametrize("flags", [(), ("--per-rank",)], ids=["supervised", "per_rank"])
def test_all_of_an_allocation_is_used(in_slurm: Launches, flags: tuple[str, ...]) -> None:
    train = in_slurm.script("")

    done = in_slurm.salloc(4, *flags, train, options=["--ntasks-per-node=1"])

    assert done.returncode == 0, done.stderr
    assert in_slurm.places() == {rank: (f"n{rank + 1}", 0) for rank in range(4)}


@pytest.mark.parametrize("way", [SRUN, SRUN_PER_RANK, MPIRUN_PER_RANK], ids=str)
def test_the_code_of_a_failed_rank_is_the_commands(in_slurm: Launches, way: Way) -> None:
    train = in_slurm.script("sys.exit(7 if told['RANK'] == '2' else 0)")

    done = way.run(in_slurm, train)

    assert done.returncode == 7, done.stderr


def test_no_secret_is_in_any_command_line(in_slurm: Launches, way: Way) -> None:
    secret = "hunter2-in-the-environment"
    train = in_slurm.script("import time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    launch = way.start(in_slurm, train, env={"API_KEY": secret})
    in_slurm.until_up(4)

    seen = [words for host in in_slurm.cluster.addresses for words in in_slurm.everything(host)]
    tokens = in_slurm.tokens()
    Path("go").touch()

    assert launch.wait(LIMIT) == 0
    assert len([words for words in seen if "train.py" in words]) >= 4
    assert [words for words in seen if secret in words] == []
    assert [words for words in seen for token in tokens if token in words] == []
    assert [path for path in in_slurm.written() if secret.encode() in path.read_bytes()] == []
    texts = [path.read_bytes() for path in in_slurm.written()]
    assert not [token for token in tokens for text in texts if token.encode() in text]


def _without_prefix(text: str) -> list[str]:
    return [line.partition("]: ")[2] or line for line in text.splitlines() if "rank " in line]
