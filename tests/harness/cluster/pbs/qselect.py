"""qselect: the identifiers of jobs that are so and so."""

import re

from ..batch.command import Client, Refused
from ..batch.job import State
from ..batch.options import BadOption, getopt
from .jobs import array_identifier, identifier, letter
from .words import not_done

KNOWN = "a:A:c:h:HJl:N:p:P:q:r:s:t:Tu:x"
USAGE = """\
usage: qselect [-a [op]date_time] [-A account_string] [-c [op]interval]
\t[-h hold_list] [-H] [-J] [-l resource_list] [-N name] [-p [op]priority]
\t[-q destination] [-r y|n] [-s states] [-t [.]time_type [op]time] [-T]
\t[-P project_name] [-u user_name] [-x]
       qselect --version
"""


def main(client: Client, words: list[str]) -> int:
    """Print one identifier a line, an array as one; those in the history only with `-x`."""
    try:
        parsed = getopt("qselect", words, KNOWN)
    except BadOption as bad:
        raise Refused(f"{bad}\n{USAGE}", 2) from None
    options = dict(parsed.options)
    for option in options.keys() - {"u", "s", "x"}:
        raise not_done("qselect", f"-{option}")
    if parsed.operands or not re.fullmatch(r"[A-Z]*", options.get("s", "")):
        raise Refused(USAGE, 2)
    try:
        jobs = client.jobs()
    except OSError as error:
        said = f"qselect: cannot connect to server {client.site['server']} (errno={error.errno})\n"
        raise Refused(f"{error.strerror}\n{said}", 255) from None
    server, shown = client.site["server"], {}
    for job in jobs:
        is_asked = "x" in options or job.state is not State.FINISHED
        is_asked = is_asked and job.owner in options.get("u", job.owner).split(",")
        if is_asked and ("s" not in options or letter(job) in options["s"]):
            is_one = job.index is None
            shown[identifier(job, server) if is_one else array_identifier(job.number, server)] = 1
    print("".join(f"{name}\n" for name in shown), end="")
    return 0
