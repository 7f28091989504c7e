"""No scheduler and no launcher: this host alone."""

from torchloom.launch.environments.world import Certain, Env, World

NOTE = (
    "no scheduler and no launcher found: the ranks run on this host; "
    "-n N or --ppn P sets how many, --hostfile FILE names other hosts"
)


class Plain(Certain):
    """The null object: always there."""

    name = "plain"

    def __init__(self, own_host: str) -> None:
        self._own_host = own_host

    def detect(self, env: Env) -> World:
        """Return this host, with the flags that change it."""
        return World(self.name, (self._own_host,), notes=(NOTE,))
