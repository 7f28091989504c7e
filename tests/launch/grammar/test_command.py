"""What a launch says, as a value."""

from dataclasses import replace

import pytest

from torchloom.errors import UserError
from torchloom.launch.grammar.command import AS_TORCHRUN, LaunchCommand, Rendezvous
from torchloom.launch.grammar.values import NodeCount, Streams

TORCHRUN = LaunchCommand(
    ("train.py",),
    per_node=1,
    nodes=NodeCount(1, 1),
    node_rank=0,
    role="default",
    rdzv=Rendezvous(backend="static", id="none"),
    master_addr="127.0.0.1",
    as_torchrun=True,
)


def parse(line: str, **env: str) -> LaunchCommand:
    return LaunchCommand.parse(line.split(), env)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a", LaunchCommand(("a",))),
        ("-n 4 -- python train.py", LaunchCommand(("python", "train.py"), total=4)),
        ("-n auto a", LaunchCommand(("a",), total="auto")),
        ("-n 2 a --nnodes 7 -n 3", LaunchCommand(("a", "--nnodes", "7", "-n", "3"), total=2)),
        ("-- -n", LaunchCommand(("-n",))),
        ("-- a -- b", LaunchCommand(("a", "--", "b"))),
        ("a -- b", LaunchCommand(("a", "--", "b"))),
        ("-m pkg.train --nnodes 2", LaunchCommand(("--nnodes", "2"), module="pkg.train")),
        ("-m --nnodes 2 pkg.train", LaunchCommand((), module="pkg.train", nodes=NodeCount(2, 2))),
        ("--no-python ./a.py", LaunchCommand(("./a.py",), no_python=True)),
        ("--nnodes 1:4 --ppn gpu a", LaunchCommand(("a",), per_node="gpu", nodes=NodeCount(1, 4))),
        ("-np 8 -ppn 4 -nh 2 a", LaunchCommand(("a",), total=8, per_node=4, nodes=NodeCount(2, 2))),
        ("--world_size=8 --nhosts=2 a", LaunchCommand(("a",), total=8, nodes=NodeCount(2, 2))),
        ("-n8 -t3 a", LaunchCommand(("a",), total=8, tee=Streams(3))),
        ("-n=8 a", LaunchCommand(("a",), total=8)),
        ("--timeout 600 --retries 2 a", LaunchCommand(("a",), idle_timeout=600.0, max_restarts=2)),
        ("--timeout 0 --spares auto a", LaunchCommand(("a",))),
        ("--spare-nodes 2 --grace 30 a", LaunchCommand(("a",), spares=2, grace=30)),
        (
            "--orphan-limit 5 --no-fallback a",
            LaunchCommand(("a",), orphan_limit=5.0, no_fallback=True),
        ),
        ("--hostfile h --dry-run a", LaunchCommand(("a",), hostfile="h", dryrun=True)),
        (
            "--launcher srun --per-rank --cpu-bind=depth a",
            LaunchCommand(("a",), launcher="srun", per_rank=True, cpu_bind="depth"),
        ),
        (
            "--tee 0:3,1:1 --redirects 2 --local-ranks-filter 0,1 a",
            LaunchCommand(
                ("a",),
                tee=Streams(each=((0, 3), (1, 1))),
                redirects=Streams(2),
                local_ranks_filter=(0, 1),
            ),
        ),
        (
            "--rdzv_backend c10d --rdzv_endpoint h:1 --rdzv_id x --rdzv_conf a=1,b=2 a",
            LaunchCommand(("a",), rdzv=Rendezvous("c10d", "h:1", "x", (("a", "1"), ("b", "2")))),
        ),
        (
            "--standalone --master-addr h --master-port 1 --node-rank 0 a",
            LaunchCommand(("a",), standalone=True, master_addr="h", master_port=1, node_rank=0),
        ),
        (
            "--monitor-interval 5 --start_method fork --auto-retry a",
            LaunchCommand(
                ("a",), needless=("--monitor-interval", "--start_method", "--auto-retry")
            ),
        ),
    ],
)
def test_what_is_said_is_the_value(line: str, expected: LaunchCommand) -> None:
    assert parse(line) == expected


@pytest.mark.parametrize(
    ("line", "flags", "words"),
    [
        ("-n 8 --cpu-bind=depth -x FOO -- CMD", ("-x", "FOO"), ("CMD",)),
        ("-mca btl tcp -n 8 -- a", ("-mca", "btl", "tcp"), ("a",)),
        ("--mem=0 --exclusive -n 8 -- a -- -b", ("--mem=0", "--exclusive"), ("a", "--", "-b")),
        ("-rf hosts -tune x -- a", ("-rf", "hosts", "-tune", "x"), ("a",)),
    ],
)
def test_what_is_not_ours_before_two_dashes_is_the_native_launchers(
    line: str, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    found = parse(line)

    assert (found.launcher_flags, found.words) == (flags, words)


def test_launcher_flags_are_refused_where_our_agent_starts_the_ranks() -> None:
    with pytest.raises(UserError, match=r"-x is not an option of loom launch.* with --launcher"):
        parse("--launcher agent -x FOO -- a")
    with pytest.raises(UserError, match="-x is not an option of loom launch"):
        parse("-x FOO -- a").check_launcher("agent")
    parse("--launcher srun -x FOO -- a").check_launcher("srun")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-n 0 a", "-n '0': write a number from 1, gpu, cpu or auto"),
        ("-n x a", "-n 'x': write a number from 1, gpu, cpu or auto"),
        ("-n -1 a", "-n '-1': write a number from 1, gpu, cpu or auto"),
        ("-n ٣ a", "-n '٣': write a number from 1, gpu, cpu or auto"),
        ("-n 1.5 a", "-n '1.5': write a number from 1, gpu, cpu or auto"),
        ("--ppn 0 a", "--ppn '0': write a number from 1, gpu, cpu or auto"),
        ("--nnodes 4:2 a", "--nnodes '4:2': the minimum comes first; write --nnodes 2:4"),
        ("--nh 0 a", "--nh '0': write a number of hosts from 1, or MIN:MAX as in --nh 2:4"),
        ("--nnodes 1:2:3 a", "--nnodes '1:2:3': write a number of hosts from 1, or MIN:MAX as in"),
        ("--nnodes : a", "--nnodes ':': write a number of hosts from 1, or MIN:MAX as in"),
        ("--timeout -1 a", "--timeout '-1': write seconds, as in 600; 0 is no limit"),
        ("--timeout nan a", "--timeout 'nan': write seconds, as in 600; 0 is no limit"),
        ("--max-restarts -1 a", "--max-restarts '-1': write a whole number from 0"),
        ("--master-port 65536 a", "--master-port '65536': write a whole number from 0 to 65535"),
        ("--launcher slurm a", "--launcher 'slurm': write auto, agent, mpiexec, mpirun, srun,"),
        ("--tee 4 a", "--tee '4': write 0 none, 1 stdout, 2 stderr or 3 both, or by local rank"),
        ("--rdzv-conf a a", "--rdzv-conf 'a': write K=V,K=V as in timeout=60,join_timeout=600"),
        ("--local-ranks-filter x a", "--local-ranks-filter 'x': write local ranks with commas"),
        ("--spares some a", "--spares 'some': write a number of hosts from 0, or auto"),
        ("-m --no-python a", "-m and --no-python contradict each other; leave one out"),
        ("--standalone --nnodes 2 a", "--standalone is one host and --nnodes 2 are more; leave"),
        ("--per-rank --launcher agent a", "--per-rank: the agent starts a host's ranks together"),
        ("-n 2 -n 3 a", "-n is given more than once; leave one out"),
        ("-n 2 --np 3 a", "-n is given more than once; leave one out"),
        ("--dryrun=1 a", "--dryrun takes no value; leave '1' out"),
        ("-n", "-n needs a value; write -n N"),
        ("-n -- a", "-n needs a value; write -n N"),
        ("--role --ppn 2 a", "--role needs a value; write --role NAME"),
        ("--role -x a", "--role needs a value; write --role NAME"),
        ("--hostfiel h a", "no option '--hostfiel'; did you mean '--hostfile'?; `loom launch"),
        ("-x a", "no option '-x'; `loom launch --help` explains"),
        ("-x a --", "no option '-x'; `loom launch --help` explains"),
        ("", "nothing to launch: write `loom launch -n 4 train.py`"),
        ("-n 4 --", "nothing to launch: write `loom launch -n 4 train.py`"),
        ("-m", "-m names no module; write `-m package.train`"),
        ("-h", "`loom launch --help` explains; it starts nothing"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_remedy(line: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse(line)

    assert str(raised.value).startswith(message)
    assert raised.value.exit_code == 2


def test_variables_count_when_no_flag_speaks() -> None:
    env = {
        "PET_NPROC_PER_NODE": "4",
        "PET_NNODES": "1:2",
        "PET_STANDALONE": "1",
        "PET_NO_PYTHON": "0",
        "PET_RDZV_ENDPOINT": "h:1",
        "PET_ROLE": "",
        "CPU_BIND": "list:0",
        "PYTHON_EXEC": "/usr/bin/python",
    }

    assert parse("--nnodes 1 a", **env) == LaunchCommand(
        ("a",),
        per_node=4,
        nodes=NodeCount(1, 1),
        standalone=True,
        rdzv=Rendezvous(endpoint="h:1"),
        cpu_bind="list:0",
        python="/usr/bin/python",
    )


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(UserError, match=r"^PET_NNODES 'two': write a number of hosts from 1"):
        parse("a", PET_NNODES="two")
    with pytest.raises(UserError, match=r"^PET_STANDALONE 'yes': write 1 or 0$"):
        parse("a", PET_STANDALONE="yes")


def test_ranks_in_all_on_the_line_beat_ranks_a_host_in_a_variable() -> None:
    assert parse("-n 4 a", PET_NPROC_PER_NODE="2") == LaunchCommand(("a",), total=4)


# torchrun's own words.


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py", TORCHRUN),
        ("--nproc 2 train.py", replace(TORCHRUN, per_node=2)),
        ("--nn 1 --nn 2 train.py", replace(TORCHRUN, nodes=NodeCount(2, 2))),
        ("-mr3 train.py", replace(TORCHRUN, words=(), module="train.py", redirects=Streams(3))),
        ("-- train.py", TORCHRUN),
    ],
)
def test_the_shim_has_torchruns_defaults_and_habits(line: str, expected: LaunchCommand) -> None:
    assert parse(f"{AS_TORCHRUN} {line}", CPU_BIND="depth") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-n 2 a", "no option '-n'; `torchrun --help` explains"),
        ("-np 2 a", "no option '-np'"),
        ("--ppn 2 a", "no option '--ppn'"),
        ("--dryrun a", "no option '--dryrun'"),
        ("-x FOO -- a", "no option '-x'"),
        ("--retries 2 a", "no option '--retries'"),
        ("--no a", "option '--no' is ambiguous: --no-python, --node-rank"),
        ("-mfoo", "no option '-mfoo'"),
    ],
)
def test_the_shim_knows_no_other_tools_words(line: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse(f"{AS_TORCHRUN} {line}")

    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train.py -x", ("py", "-u", "train.py", "-x")),
        ("-m pkg -x", ("py", "-u", "-m", "pkg", "-x")),
        ("echo -x", ("echo", "-x")),
        ("--no-python train.py", ("train.py",)),
        (f"{AS_TORCHRUN} train", ("py", "-u", "train")),
        (f"{AS_TORCHRUN} --no-python train", ("train",)),
    ],
)
def test_an_interpreter_stands_where_one_is_needed(line: str, expected: tuple[str, ...]) -> None:
    assert parse(line).argv("py") == expected
    assert "other" not in parse(line, PYTHON_EXEC="other").argv("py")[1:]


# Roles.


@pytest.mark.parametrize(
    ("line", "ranks", "argv"),
    [
        ("loom launch -n 4 -- python train.py", 4, ("python", "train.py")),
        ("loom launch -n auto -- python train.py", None, ("python", "train.py")),
        ("loom launch ./train.py", None, ("./train.py",)),
        ("loom launch --ppn 2 --nnodes 1:4 -- a -n 3", 2, ("a", "-n", "3")),
        ("loom launch -n 8 --ppn 2 -m pkg x", 2, ("python", "-u", "-m", "pkg", "x")),
    ],
)
def test_a_role_that_is_a_launch_is_read(
    line: str, ranks: int | None, argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "7")

    found = LaunchCommand.of_role(line.split())

    assert found is not None
    assert (found.ranks, found.argv("python")) == (ranks, argv)


@pytest.mark.parametrize("line", ["loom run a", "bash -c loom", "loom", "launch a", "a"])
def test_another_roles_command_is_not_read(line: str) -> None:
    assert LaunchCommand.of_role(line.split()) is None


def test_a_role_that_depends_on_the_host_that_reads_it_is_refused() -> None:
    with pytest.raises(UserError, match="a role has a number of ranks, or auto; not cpu"):
        LaunchCommand.of_role(["loom", "launch", "-n", "cpu", "a"])
