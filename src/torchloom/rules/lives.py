"""Tell whether lives that fail one after the other still get anywhere."""

from torchloom.specs.dataclass import dataclass

_CLEARLY = 1.5  # a life that lasted so many times as long is not the same crash a moment later


@dataclass(frozen=True, slots=True)
class Point:
    """How far a life came: the newest checkpoint there is, its last step, how long it lasted."""

    saved: int = -1
    step: int = -1
    lived: float = 0.0

    def is_beyond(self, other: "Point") -> bool:
        longer = self.lived > other.lived * _CLEARLY
        return self.saved > other.saved or self.step > other.step or longer

    def furthest(self, other: "Point") -> "Point":
        saved, step = max(self.saved, other.saved), max(self.step, other.step)
        return Point(saved, step, max(self.lived, other.lived))


@dataclass(frozen=True, slots=True)
class Lives:
    """The lives of a scope: how far any of them came, and how many in a row came no further."""

    furthest: Point | None = None
    stuck: int = 0

    def then(self, point: Point) -> "Lives":
        """Take in how far one more life has come."""
        if self.furthest is None:
            return Lives(point)
        stuck = 0 if point.is_beyond(self.furthest) else self.stuck + 1
        return Lives(point.furthest(self.furthest), stuck)
