"""What LSF says when it refuses."""

from ..batch.command import Refused

CLUSTER = "loomtest"
FAILED = 255
NO_MATCH = "No matching job found"
NOT_STARTED = "Job has not started yet"
FINISHED = "Job has already finished"
BAD_TIME = "Bad time specification"
BAD_RESREQ = "Bad resource requirement syntax"
BAD_RESOURCE = "Bad resource name"
BAD_ACTION = "Bad or invalid action specification"
BAD_DEPEND = "Dependency condition syntax error"
BAD_HOST = "Bad host name, host group name or cluster name"
NO_QUEUE = "No such queue"
INDEX_TOO_LARGE = "Job array index too large"


def not_submitted(text: str) -> Refused:
    """Return a refusal of bsub."""
    return Refused(f"{text}. Job not submitted.\n", FAILED)


def bad_argument(option: str) -> Refused:
    """Return the refusal of a value."""
    return not_submitted(f"Bad argument for option -{option}")


def not_done(program: str, what: str) -> Refused:
    """Return a refusal in the fake's own words: LSF would have taken it."""
    return Refused(f"{program}: {what} is not done by this fake of LSF.\n", FAILED)
