from pathlib import Path

import pytest

from torchloom.launch.environments.world import World
from torchloom.launch.hosts.carriers import carry, portable
from torchloom.launch.records.request import (
    AgentCarrier,
    LaunchRequest,
    ReplicaRequest,
    RoleRequest,
)

SHELL = {
    "PATH": "/bin",
    "HOME": "/root",
    "HOSTNAME": "n1",
    "DISPLAY": ":0",
    "SSH_AUTH_SOCK": "/tmp/agent",
    "BASH_FUNC_module%%": "() { :; }",
    "SLURM_JOB_ID": "7",
    "SLURM_PROCID": "0",
    "SLURM_STEP_ID": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "PMIX_RANK": "0",
    "HOSTNAMES": "mine",
    "API_KEY": "a,b\nc",
}


def test_what_belongs_to_one_host_shell_or_process_does_not_travel() -> None:
    assert portable(SHELL) == {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "HOSTNAMES": "mine",
        "API_KEY": "a,b\nc",
    }


def request(launcher: str) -> LaunchRequest:
    role = RoleRequest("train", (ReplicaRequest(("python",), {}),) * 2, distributed=True)
    world = World("plain", ("n1", "n2"), (1, 1))
    fields = {name: getattr(world, name) for name in World.__slots__}
    carrier = AgentCarrier(launcher, fields, env={"SITE": "x"})
    return LaunchRequest(
        "app-1", "app", "torchx", "/work", "/logs", (role,), nodes=("n1", "n2"), carrier=carrier
    )


@pytest.mark.parametrize("launcher", ["ssh", "srun", "mpirun"])
def test_one_agent_a_node_is_started_and_no_value_is_in_a_command_line(launcher: str) -> None:
    own = {"LOOM_AGENT_OF": "app-1", "LOOM_LAUNCH_TOKEN": "t0ken", "SITE": "x"}

    plan = carry(request(launcher), Path("/run"), "10.0.0.1:5", {"API_KEY": "s3cret", **own})

    words = [" ".join(command.argv) for command in plan.commands]
    carried = [f"{command.stdin or ''}{dict(command.env)}" for command in plan.commands]
    assert len(words) == (2 if launcher == "ssh" else 1)
    assert not [text for text in words if "t0ken" in text or "s3cret" in text]
    assert all("t0ken" in text for text in carried)
    assert [("s3cret" in text) for text in carried] == [launcher != "srun"] * len(words)
