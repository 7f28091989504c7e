import os
from pathlib import Path

import pytest

from ..harness.cluster import Cluster

SCRIPT = Path(__file__).resolve().parents[2] / "make/apt.sh"
POLICY = "/usr/sbin/policy-rc.d"
APT_GET = """#!/bin/sh
[ "$1" = install ] || exit 0
echo "$*" >>said
"$POLICY" sshd start
echo "$?" >>said
exit "$CODE"
"""
INSTALLED = """#!/bin/sh
case $2 in mpich | munge) exit 0 ;; *) exit 1 ;; esac
"""


def install(cluster: Cluster, folder: Path, code: int, **more: str) -> tuple[int, list[str], bool]:
    """Run the script on a host with an empty /usr/sbin and an apt-get that only tells."""
    for name, script in {"apt-get": APT_GET, "dpkg": INSTALLED}.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    env = {"PATH": path, "CI": "", "LOOM_TEST_APT": "", "POLICY": POLICY, "CODE": str(code), **more}
    done = cluster.run("n1", ["sh", SCRIPT], env=env, cwd=folder)
    said = folder / "said"
    lines = said.read_text().splitlines() if said.exists() else []
    return done.returncode, lines, cluster.run("n1", ["test", "-e", POLICY]).returncode == 0


@pytest.mark.parametrize("code", [0, 100])
def test_what_is_missing_is_installed_without_starting_a_daemon(
    code: int, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.private("/usr/sbin", ["n1"])

    returned, said, policy_left = install(cluster, tmp_path, code, LOOM_TEST_APT="1")

    missing = "slurm-wlm openmpi-bin openssh-server openssh-client iproute2 zsh fish tmux chromium"
    missing += " faketime gcc libc6-dev"
    assert said == [f"install -y -qq --no-install-recommends {missing}", "101"]
    assert (returned, policy_left) == (code, False)


def test_a_policy_of_the_machine_itself_is_kept(cluster: Cluster, tmp_path: Path) -> None:
    cluster.private("/usr/sbin", ["n1"])
    own = f"printf '#!/bin/sh\\nexit 42\\n' >{POLICY}; chmod 755 {POLICY}"
    cluster.run("n1", ["sh", "-c", own])

    returned, said, policy_left = install(cluster, tmp_path, 0, CI="true")

    assert (returned, said[1], policy_left) == (0, "42", True)


def test_nothing_is_installed_unless_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    cluster.private("/usr/sbin", ["n1"])

    assert install(cluster, tmp_path, 0) == (0, [], False)
