"""LSF: the allocation of `bsub`, and the ranks of `jsrun` in it."""

from collections import Counter
from pathlib import Path

from torchloom.launch.environments.world import Certain, Env, World, rank_world
from torchloom.launch.hostfile import Read


class Jsrun(Certain):
    """`JSM_NAMESPACE_*`: a rank of IBM's job step manager."""

    name = "jsrun"

    def detect(self, env: Env) -> World | None:
        """Return the rank's world; the hosts are LSF's to say."""
        names = [f"JSM_NAMESPACE_{word}" for word in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")]
        return rank_world(self.name, env, *names)


class Lsf:
    """`LSB_*`: hosts from the rank file or the host file, else from the variables."""

    name = "lsf"

    def __init__(self, read: Read) -> None:
        self._read = read

    def detect(self, env: Env) -> World | None:
        """Return the allocation, without the launch node that runs the script alone."""
        job = env.get("LSB_JOBID")
        counts = self._counts(env)
        if not job or not counts:
            return None
        launch = _launch_node(counts)
        notes = (f"{launch} runs the batch script only: no ranks there",) if launch else ()
        kept = {host: slots for host, slots in counts.items() if host != launch}
        return World(self.name, tuple(kept), tuple(kept.values()), job, notes=notes)

    def doubt(self, env: Env) -> str:
        """Say when there is a job's number but no hosts."""
        job = env.get("LSB_JOBID")
        if not job or self._counts(env):
            return ""
        return f"LSB_JOBID={job} has no hosts beside it: not taken for a job"

    def _counts(self, env: Env) -> dict[str, int]:
        listed = self._listed(env, "LSB_DJOB_RANKFILE") or self._listed(env, "LSB_DJOB_HOSTFILE")
        words = env.get("LSB_MCPU_HOSTS", "").split()
        if not listed and len(words) >= 2 and all(word.isdigit() for word in words[1::2]):
            return {host: int(slots) for host, slots in zip(words[::2], words[1::2], strict=False)}
        return dict(Counter(listed or env.get("LSB_HOSTS", "").split()))

    def _listed(self, env: Env, name: str) -> list[str]:
        try:
            return self._read(Path(env[name])).split()
        except (KeyError, OSError):  # the other places say the same
            return []


def _launch_node(counts: dict[str, int]) -> str:
    """Return the first host where it has one slot and every other has the same, larger number."""
    first, *others = counts
    alike = {counts[host] for host in others}
    return first if counts[first] == 1 and len(alike) == 1 and alike != {1} else ""
