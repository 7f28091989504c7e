"""What of the ranks' outputs is printed where a launch was started, and what stands before it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from torchloom.launch.grammar.values import NO_STREAMS, Streams
from torchloom.launch.logs.files import STREAMS
from torchloom.specs.dataclass import dataclass

if TYPE_CHECKING:
    from torchloom.launch.grammar.command import LaunchCommand
    from torchloom.launch.hosts.sites import NoiseFilter, Site


@dataclass(frozen=True, slots=True)
class Display:
    """Outputs that are kept in files and not shown, shown behind a prefix, or shown as they come.

    A prefix may name {rank}, {local_rank} and {role_name}; an empty one leaves all as it comes.
    """

    plain: str = ""  # before the lines of outputs without an option
    teed: str = ""  # before those that are kept and shown
    tee: Streams = NO_STREAMS
    redirects: Streams = NO_STREAMS
    only: tuple[int, ...] = ()  # local ranks; none named: all
    noise: tuple[str, ...] = ()  # expressions of lines that are hidden, and counted
    site: str = ""  # whose noise that is

    @classmethod
    def of(cls, asked: "LaunchCommand", here: "Site | None" = None) -> "Display":
        """Return what a launch asks for: our prefix, or torchrun's where it has one.

        The value includes what is noise here, for processes that print elsewhere.
        """
        plain = teed = "[rank{rank}]: "
        if asked.as_torchrun:
            plain, teed = "", asked.prefix_template or "[{role_name}{rank}]:"
        noise, site = (here.noise, here.name) if here else ((), "")
        return cls(plain, teed, asked.tee, asked.redirects, asked.local_ranks_filter, noise, site)

    @property
    def filter(self) -> "NoiseFilter | None":
        """What hides the noise, and counts it; nothing when there is none."""
        from torchloom.launch.hosts.sites import NoiseFilter

        return NoiseFilter(self.noise, self.site) if self.noise else None

    @classmethod
    def from_text(cls, text: str) -> "Display":
        """Read what `to_text` wrote."""
        import json

        plain, teed, *streams, only, noise, site = json.loads(text).values()
        tee, redirects = (Streams(every, tuple(map(tuple, each))) for every, each in streams)
        return cls(plain, teed, tee, redirects, tuple(only), tuple(noise), site)

    def to_text(self) -> str:
        """Return it as one word of a command line."""
        import json

        return json.dumps(asdict(self))

    def before(self, stream: str, role: str, rank: object, local_rank: int) -> str | None:
        """Return what stands before the lines of one output; nothing when it is not shown."""
        bit = 1 << STREAMS.index(stream)
        is_teed = bool(self.tee.of(local_rank) & bit)
        if self.only and local_rank not in self.only:
            return None
        if self.redirects.of(local_rank) & bit and not is_teed:
            return None
        prefix = self.teed if is_teed else self.plain
        for name, value in (("rank", rank), ("local_rank", local_rank), ("role_name", role)):
            prefix = prefix.replace(f"{{{name}}}", str(value))
        return prefix
