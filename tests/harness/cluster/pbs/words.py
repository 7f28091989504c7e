"""What PBS says when it refuses, and the numbers it exits with."""

from collections.abc import Mapping

from ..batch.command import Refused

VERSION = "23.06.06"
UNKJOBID, NOATTR, IVALREQ, BADATVAL = 15001, 15002, 15004, 15014
UNKSIG, BADSTATE, UNKQUE, UNKRESC, NORERUN = 15013, 15016, 15018, 15035, 15038
BADDEPEND, UNKNODE, INVALSELECTRESC, INVALJOBRESC = 15054, 15062, 15108, 15109
INVALNODEPLACE, PLACENOSELECT, DUPRESC, HISTJOBID = 15110, 15111, 15116, 15139
TEXTS: Mapping[int, str] = {
    UNKJOBID: "Unknown Job Id",
    NOATTR: "Undefined attribute ",
    IVALREQ: "Invalid request",
    UNKSIG: "Unknown/illegal signal name",
    BADATVAL: "Illegal attribute or resource value",
    BADSTATE: "Request invalid for state of job",
    UNKQUE: "Unknown queue",
    UNKRESC: "Unknown resource",
    NORERUN: "job is not rerunnable",
    BADDEPEND: "Invalid Job Dependency",
    UNKNODE: "Unknown node ",
    INVALSELECTRESC: 'Resource invalid in "select" specification',
    INVALJOBRESC: '"-lresource=" cannot be used with "select" or "place", resource is',
    INVALNODEPLACE: "Cannot be used with select or place",
    PLACENOSELECT: 'Cannot have "place" without "select"',
    DUPRESC: "duplicated resource within a section of a select specification, resource is",
    HISTJOBID: "Job has finished",
}


class Rejected(Exception):
    """The server does not take it."""

    def __init__(self, code: int, about: str = "") -> None:
        super().__init__(TEXTS[code])
        self.code = code
        self.text = TEXTS[code] + about

    def by(self, program: str) -> Refused:
        """Return it as a command says it."""
        return Refused(f"{program}: {self.text}\n", self.code % 256)


def not_done(program: str, what: str) -> Refused:
    """Return a refusal in the fake's own words: PBS would have taken it."""
    return Refused(f"{program}: {what} is not done by this fake of PBS\n", 2)
