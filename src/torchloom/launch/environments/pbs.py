"""PBS Pro and OpenPBS: the hosts of the job are in a file.

The file has a line for each of a chunk's `mpiprocs`, which is one unless it was asked for: how many
ranks a host has room for is in `NCPUS`.
"""

from pathlib import Path

from torchloom.launch.environments.world import Env, World, number
from torchloom.launch.hostfile import HostSlots, Read, index_of, parse_hosts

AUX = Path("/var/spool/pbs/aux")  # where PBS keeps nodefiles; some sites do not export the variable


class Pbs:
    """`PBS_JOBID` is believed only with a nodefile that names this host: it outlives its job."""

    name = "pbs"

    def __init__(self, read: Read, own_host: str) -> None:
        self._read = read
        self._own_host = own_host

    def detect(self, env: Env) -> World | None:
        """Return the allocation, or nothing for a variable left over from another one."""
        job = env.get("PBS_JOBID")
        hosts = self._hosts(env)
        if not job or not hosts or not self._is_here(hosts):
            return None
        return World(
            self.name,
            tuple(each.host for each in hosts),
            tuple(each.slots or 1 for each in hosts),
            job.partition(".")[0],
            cores=number(env, "NCPUS") or 0,
        )

    def doubt(self, env: Env) -> str:
        """Say why a PBS_JOBID was not believed."""
        job = env.get("PBS_JOBID")
        if not job:
            return ""
        hosts = self._hosts(env)
        if not hosts:
            path = env.get("PBS_NODEFILE") or AUX / job
            return f"PBS_JOBID={job} is stale: its nodefile {path} is not there"
        if not self._is_here(hosts):
            return f"PBS_JOBID={job} is stale: {self._own_host} is not in its nodefile"
        return ""

    def _hosts(self, env: Env) -> tuple[HostSlots, ...]:
        path = env.get("PBS_NODEFILE") or AUX / env.get("PBS_JOBID", "")
        try:
            return parse_hosts(self._read(Path(path)))
        except OSError:  # no file, no job: `doubt` says so
            return ()

    def _is_here(self, hosts: tuple[HostSlots, ...]) -> bool:
        return index_of(self._own_host, [each.host for each in hosts]) is not None
