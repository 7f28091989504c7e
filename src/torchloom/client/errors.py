"""Errors of requests to a plane, with their remedies."""

from torchloom.errors import Failure, LoomError, UserError


class NoPlane(Failure):
    """No plane runs here."""

    code = "no_plane"

    def __init__(self, why: str = "no plane runs here") -> None:
        super().__init__(f"{why}; `loom up` starts one")


class PlaneLost(Failure):
    """The plane is there and does not answer, or ended before it did."""

    code = "plane_lost"

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; `loom up --status` shows its state")


class PlaneSilent(PlaneLost):
    """The plane received the request and did not answer in time."""

    code = "plane_silent"


class PlaneForeign(PlaneLost):
    """What answers at the plane's socket is another user's."""

    code = "plane_foreign"


class Unreachable(PlaneLost):
    """A plane elsewhere does not answer, or not as a plane does."""

    def __init__(self, why: str, is_unsent: bool = False) -> None:
        self.is_unsent = is_unsent  # nothing of a request came as far as the plane
        Failure.__init__(self, f"{why}; check that it is up and that this host can reach it")


class PlaneNotStarted(Failure):
    """A plane was started and did not come up."""

    code = "plane_not_started"


def from_answer(answer: dict[str, object]) -> LoomError:
    """Return a plane's error reply as an exception."""
    wrong_request = answer.get("exit_code") == UserError.exit_code
    error = (UserError if wrong_request else Failure)(str(answer.get("error")))
    error.code = str(answer.get("code") or error.code)  # machines match the plane's own code
    return error
