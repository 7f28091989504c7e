"""What each launcher is told, word by word."""

from dataclasses import replace
from pathlib import Path

import pytest

from torchloom.errors import NotFound
from torchloom.launch.assembly import assemble, choose_launcher
from torchloom.launch.assembly.launchers import Assembled, AssemblyRequest, LauncherCommand
from torchloom.launch.assembly.topology import BadTopology, HostTopology
from torchloom.launch.environments.world import World

SLURM = World("slurm", ("a", "b"), (2, 2), "7")
EVEN = HostTopology(("a", "b"), (2, 2))
UNEVEN = HostTopology(("a", "b"), (2, 1))
HOSTS = Path("/run/hosts")
ENV = {"B": "x,y z", "A": "1\n2"}
ASKED = AssemblyRequest(("python", "t.py"), EVEN, ENV, hostfile=HOSTS, job_id="7")


def one(argv: str, hosts: str = "", env: dict[str, str] = ENV) -> Assembled:
    files = ((HOSTS, hosts),) if hosts else ()
    return Assembled((LauncherCommand(tuple(argv.split()), env),), files)


def test_srun() -> None:
    assert assemble("srun", SLURM, ASKED) == one(
        "srun --nodes=2 --ntasks=4 --ntasks-per-node=2 --distribution=block --nodelist=a,b "
        "--cpu-bind=none --export=ALL --unbuffered --kill-on-bad-exit=0 --wait=0 python t.py"
    )


def test_srun_keeps_uneven_counts_by_a_host_file() -> None:
    asked = replace(ASKED, topology=UNEVEN)

    assert assemble("srun", SLURM, asked) == one(
        "srun --nodes=2 --ntasks=3 --distribution=arbitrary --cpu-bind=none --export=ALL "
        "--unbuffered --kill-on-bad-exit=0 --wait=0 python t.py",
        "a\na\nb\n",
        ENV | {"SLURM_HOSTFILE": "/run/hosts"},
    )


def test_srun_keeps_the_users_order_of_hosts_by_a_host_file() -> None:
    asked = replace(ASKED, topology=HostTopology(("b", "a"), (1, 1)))

    assert assemble("srun", SLURM, asked).files == ((HOSTS, "b\na\n"),)


def test_srun_from_a_second_shell_joins_the_job() -> None:
    world = replace(SLURM, elsewhere=True, slots=())

    (command,) = assemble("srun", world, ASKED).commands

    assert command.argv[-4:] == ("--jobid=7", "--overlap", "python", "t.py")


def test_srun_from_a_shell_that_is_a_step_shares_its_cpus() -> None:
    (command,) = assemble("srun", replace(SLURM, inside_step=True), ASKED).commands

    assert command.argv[-3:] == ("--overlap", "python", "t.py")


def test_srun_is_told_of_ranks_beyond_the_slots() -> None:
    (command,) = assemble("srun", replace(SLURM, slots=(1, 1)), ASKED).commands

    assert command.argv[-3:] == ("--overcommit", "python", "t.py")


def test_pals() -> None:
    assert assemble("pals", World("pbs", ("a", "b"), (2, 2)), ASKED) == one(
        "mpiexec --envall --line-buffer --np=4 --ppn=2 --hostfile=/run/hosts --cpu-bind=none "
        "python t.py",
        "a\nb\n",
    )


def test_pals_takes_the_sites_binding_flags_and_folder() -> None:
    asked = replace(ASKED, cpu_bind="list:0-3:4-7", flags=("--depth=8",), cwd="/w")

    (command,) = assemble("pals", World("pbs"), asked).commands

    assert command.argv[6:] == (
        *("--cpu-bind=list:0-3:4-7", "--wdir=/w", "--depth=8"),
        *("python", "t.py"),
    )


def test_pals_refuses_uneven_counts() -> None:
    with pytest.raises(BadTopology, match="the same number of ranks on every host"):
        assemble("pals", SLURM, replace(ASKED, topology=UNEVEN))


def test_pals_from_a_second_shell_is_pointed_at_the_job() -> None:
    world = World("pbs", ("a", "b"), job_id="7", elsewhere=True)

    (command,) = assemble("pals", world, ASKED).commands

    assert command.env == ENV | {"PBS_JOBID": "7", "PBS_NODEFILE": "/run/hosts"}


def test_mpich() -> None:
    assert assemble("mpich", SLURM, replace(ASKED, topology=UNEVEN)) == one(
        "mpiexec -f /run/hosts -n 3 -genvall -bind-to none python t.py", "a:2\nb:1\n"
    )


def test_mpirun() -> None:
    assert assemble("mpirun", SLURM, replace(ASKED, topology=UNEVEN, as_root=True)) == one(
        "mpirun --hostfile /run/hosts -np 3 --map-by slot --bind-to none --allow-run-as-root "
        "-x A -x B python t.py",
        "a slots=2\nb slots=1\n",
    )


def test_torchrun_on_one_host_stands_alone() -> None:
    asked = replace(ASKED, topology=HostTopology(("a",), (4,)))

    assert assemble("torchrun", World("plain", ("a",)), asked) == one(
        "torchrun --nnodes=1 --nproc-per-node=4 --standalone --no-python python t.py"
    )


def test_torchrun_is_carried_to_several_hosts_by_srun() -> None:
    (command,) = assemble("torchrun", SLURM, ASKED).commands

    assert command.argv[:3] == ("srun", "--nodes=2", "--ntasks=2")
    assert " ".join(command.argv[-9:]) == (
        "torchrun --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=a:29500 "
        "--rdzv-id=7 --no-python python t.py"
    )


def test_torchrun_is_carried_to_other_hosts_by_ssh() -> None:
    commands = assemble("torchrun", World("plain", ("a", "b")), ASKED).commands

    assert [command.host for command in commands] == ["a", "b"]
    assert commands[0].stdin == commands[1].stdin
    assert commands[0].stdin is not None
    assert "RANK" not in commands[0].stdin


def test_torchrun_on_a_platform_that_started_every_host_runs_here_only() -> None:
    world = World("kubernetes", ("a", "b"), node_rank=1, on_every_host=True)

    (command,) = assemble("torchrun", world, ASKED).commands

    assert command.argv[0] == "torchrun"
    assert "--rdzv-endpoint=a:29500" in command.argv


def test_ssh_runs_one_command_a_host_and_hides_values_from_the_process_list() -> None:
    asked = replace(ASKED, topology=EVEN.once(), cwd="/my work")

    options = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15"
    text = "cd '/my work' || exit 1\nexport A='1\n2'\nexport B='x,y z'\nexec python t.py\n"
    assert assemble("ssh", SLURM, asked).commands == tuple(
        LauncherCommand(tuple(f"ssh {options} -- {host} sh".split()), {}, text, host)
        for host in "ab"
    )


def test_ssh_is_not_needed_to_reach_the_own_host() -> None:
    asked = replace(ASKED, topology=EVEN.once(), own_host="b.example.org")

    commands = assemble("ssh", SLURM, asked).commands

    assert [command.argv[0] for command in commands] == ["ssh", "sh"]


def test_ssh_tells_each_rank_its_place() -> None:
    asked = replace(ASKED, topology=UNEVEN, per_rank=True, env={})

    scripts = [command.stdin or "" for command in assemble("ssh", SLURM, asked).commands]

    assert [line for line in scripts[2].splitlines() if "export" in line] == [
        "export GROUP_RANK=1",
        "export GROUP_WORLD_SIZE=2",
        "export LOCAL_RANK=0",
        "export LOCAL_WORLD_SIZE=1",
        "export RANK=2",
        "export WORLD_SIZE=3",
    ]


def test_ssh_says_which_variables_no_shell_can_set() -> None:
    asked = replace(ASKED, env={"BASH_FUNC_x%%": "() { :; }", "A": "1"})

    found = assemble("ssh", SLURM, asked)

    assert found.notes == ("not sent, no shell can set them: BASH_FUNC_x%%",)
    assert "BASH_FUNC" not in (found.commands[0].stdin or "")


@pytest.mark.parametrize("launcher", ["srun", "pals", "mpich", "mpirun", "torchrun", "ssh"])
def test_no_launcher_shows_a_value_in_its_words(launcher: str) -> None:
    asked = replace(ASKED, env={"WANDB_API_KEY": "hush"}, per_rank=True)

    found = assemble(launcher, SLURM, asked)

    assert [word for command in found.commands for word in command.argv if "hush" in word] == []


@pytest.mark.parametrize("launcher", ["srun", "pals", "mpich", "mpirun"])
def test_a_bare_colon_of_the_users_reaches_no_launcher(launcher: str) -> None:
    asked = replace(ASKED, command=("echo", "a", ":", "b"))

    assert ":" not in assemble(launcher, SLURM, asked).commands[0].argv


def test_an_unknown_launcher_is_refused() -> None:
    with pytest.raises(NotFound, match="no launcher 'mpirum'; did you mean 'mpirun'"):
        assemble("mpirum", SLURM, ASKED)


@pytest.mark.parametrize(
    ("world", "hosts", "programs", "mpiexec", "launcher"),
    [
        (World("plain", ("a",)), 1, "", "", "agent"),
        (SLURM, 1, "srun", "", "agent"),
        (SLURM, 2, "srun", "", "srun"),
        (SLURM, 2, "", "", "ssh"),
        (World("pbs"), 2, "mpiexec", "PALS 1.2.12", "pals"),
        (World("pbs"), 2, "mpiexec", "mpiexec (OpenRTE) 4.1.4", "mpirun"),
        (World("lsf"), 2, "mpiexec", "HYDRA build details:", "mpich"),
        (World("lsf"), 2, "mpiexec blaunch", "HYDRA build details:", "blaunch"),
        (World("lsf", elsewhere=True), 2, "blaunch", "", "ssh"),
        (World("pbs"), 2, "", "", "ssh"),
        (World("pbs"), 2, "pbs_tmrsh", "", "pbs_tmrsh"),
        (World("pbs"), 2, "mpiexec pbs_tmrsh", "mpiexec (OpenRTE) 4.1.4", "pbs_tmrsh"),
        (World("pbs"), 2, "mpiexec pbs_tmrsh", "PALS 1.2.12", "pals"),
        (World("lsf"), 2, "pbs_tmrsh", "", "ssh"),
        (World("pbs", elsewhere=True), 2, "pbs_tmrsh", "", "ssh"),
        (World("plain", ("a", "b")), 2, "mpiexec srun", "PALS", "ssh"),
        (World("sagemaker", on_every_host=True), 2, "", "", "agent"),
    ],
)
def test_auto_takes_the_sites_own_way(
    world: World, hosts: int, programs: str, mpiexec: str, launcher: str
) -> None:
    chosen = choose_launcher(world, hosts, lambda name: name in programs.split(), mpiexec)

    assert chosen == launcher


def test_pbs_tmrsh_finds_its_words_and_variables_in_a_file() -> None:
    own = {"CUDA_VISIBLE_DEVICES": "0", "PBS_TASKNUM": "1", "a b": "x"}
    asked = replace(
        ASKED, topology=HostTopology(("a", "b"), (1, 1)), env=ENV | own, cwd="/it's", own_host="a"
    )

    made = assemble("pbs_tmrsh", World("pbs", ("a", "b"), (1, 1), "7"), asked)

    assert made == Assembled(
        (
            LauncherCommand(("/bin/sh", "/run/agent.sh"), host="a"),
            LauncherCommand(("pbs_tmrsh", "b", "/bin/sh", "/run/agent.sh"), host="b"),
        ),
        (
            (
                Path("/run/agent.sh"),
                "cd '/it'\"'\"'s' || exit 1\nexport A='1\n2'\nexport B='x,y z'\nexec python t.py\n",
            ),
        ),
        ("not sent, no shell can set them: a b",),
    )
