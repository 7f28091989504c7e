"""The assembled words, run by the real programs: Open MPI, MPICH and a POSIX shell.

The two hosts are names that lead back here through an agent which, like a remote login, passes on
nothing of the caller's environment, and gives each host a TMPDIR: Open MPI's daemons keep files
there by host name, and with one name and one folder they crash each other.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.launch.assembly import assemble
from torchloom.launch.assembly.launchers import AssemblyRequest, LauncherCommand, script
from torchloom.launch.assembly.topology import HostTopology
from torchloom.launch.environments import World, find_world

NASTY = {
    "LOOM_T_COMMAS": "a,b;c=d",
    "LOOM_T_LINES": "one\ntwo\n\nexport X=3\n",
    "LOOM_T_QUOTES": 'it\'s "so" \\ `id` $HOME ${A} $(id)',
    "LOOM_T_SPACES": "  both ends  ",
    "LOOM_T_EMPTY": "",
    "LOOM_T_LETTERS": "größe ☃",
}
TELL = """
import json, os, sys
found = {"argv": sys.argv[1:], "env": dict(os.environ)}
with open(f"{sys.argv[1]}/{os.getpid()}.json", "w") as file:
    json.dump(found, file)
"""
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
folder=$(dirname "$0")/$1; shift
mkdir -p "$folder"
exec env -i PATH="$PATH" HOME=/tmp TMPDIR="$folder" sh -c "$*"
"""
WORDS = ("a b", ":", "$HOME", "it's", "x,y;z", "*", "")


def run(command: LauncherCommand, folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    done = subprocess.run(
        command.argv,
        env=clean | dict(command.env),
        input=command.stdin,
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return [(each["argv"][1:], each["env"]) for each in found]


def asked(folder: Path, flags: str) -> AssemblyRequest:
    (folder / "tell.py").write_text(TELL)
    agent = folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    return AssemblyRequest(
        (sys.executable, str(folder / "tell.py"), str(folder), *WORDS),
        HostTopology(("other1", "other2"), (2, 1)),
        NASTY,
        hostfile=folder / "hosts",
        flags=tuple(word.format(agent=agent) for word in flags.split()),
        as_root=os.geteuid() == 0,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("launcher", "program", "flags"),
    [
        pytest.param(
            "mpirun",
            "mpirun.openmpi",
            "--mca plm_rsh_agent {agent} --mca plm rsh",
            marks=pytest.mark.needs("mpi"),
        ),
        pytest.param(
            "mpich",
            "mpiexec.hydra",
            "-launcher ssh -launcher-exec {agent}",
            marks=pytest.mark.needs("mpich"),
        ),
    ],
)
def test_ranks_on_other_hosts_get_their_words_variables_and_places(
    tmp_path: Path, launcher: str, program: str, flags: str
) -> None:
    request = asked(tmp_path, flags)
    assembled = assemble(launcher, World("plain"), request)
    for path, text in assembled.files:
        path.write_text(text)
    (command,) = assembled.commands

    ranks = run(replace(command, argv=(program, *command.argv[1:])), tmp_path)

    assert [argv for argv, _ in ranks] == [list(WORDS)] * 3
    sent = [{name: env.get(name) for name in NASTY} for _, env in ranks]
    assert sent == [NASTY] * 3
    worlds = [find_world(env, "nowhere") for _, env in ranks]
    places = sorted((world.rank, world.local_rank, world.local_size) for world in worlds)
    assert places == [(0, 0, 2), (1, 1, 2), (2, 0, 1)]


@pytest.mark.process
def test_a_shell_runs_the_script_that_ssh_would_send(tmp_path: Path) -> None:
    request = replace(asked(tmp_path, ""), topology=HostTopology(("localhost",), (1,)), cwd="/")
    (command,) = assemble("ssh", World("plain", ("localhost",)), request).commands

    ((argv, env),) = run(command, tmp_path)

    assert argv == list(WORDS)
    assert {name: env.get(name) for name in NASTY} == NASTY


texts = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)


@pytest.mark.process
@settings(max_examples=60, deadline=None)
@given(texts, texts)
def test_any_text_comes_through_a_real_shell(value: str, word: str) -> None:
    text = script(("sh", "-c", 'printf "%s\\n--\\n%s" "$V" "$1"', "sh", word), {"V": value})

    done = subprocess.run(["sh"], input=text.encode(), capture_output=True, check=True)

    assert done.stdout == f"{value}\n--\n{word}".encode()
