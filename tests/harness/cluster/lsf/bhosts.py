"""bhosts: the hosts and their slots."""

import json
from typing import Any

from ..batch.command import Client, Refused
from ..batch.job import State
from .jobs import slots
from .options import names, part
from .words import BAD_HOST, FAILED, not_done

USAGE = "Usage: bhosts [-w | -l | -o ...] [host_name ...]\n       bhosts [-h | -V]\n"
HEAD = ("HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV")
WIDTHS = (18, 15, 6, 6, 7, 6, 6, 6, 6)


def main(client: Client, words: list[str]) -> int:
    """Show all hosts, or those that are named."""
    flags = names("a aff alloc cname e gpu json l noheader rc rconly s w x X h V")
    found, operands = part("bhosts", words, flags, ["o", "R"], USAGE)
    options = dict(found)
    for option in options.keys() - {"w", "X", "noheader", "json", "o"}:
        raise not_done("bhosts", f"-{option}")
    rows = [_row(client, node, "w" in options) for node in client.ask("list")["nodes"]]
    for operand in operands:
        if operand not in client.site["nodes"]:
            raise Refused(f"{operand}: {BAD_HOST}\n", FAILED)
    rows = [row for row in rows if not operands or row["HOST_NAME"] in operands]
    columns = [
        name.upper().replace("JL_U", "JL/U") for name in options.get("o", "").split()
    ] or list(HEAD)
    for column in columns:
        if column not in HEAD:
            raise Refused(f"{column}: Illegal field name in the output format.\n", FAILED)
    rows = [{column: row[column] for column in columns} for row in rows]
    if "json" in options:
        whole = {"COMMAND": "bhosts", "HOSTS": len(rows), "RECORDS": rows}
        print(json.dumps(whole, indent=2))
        return 0
    lines = [dict(zip(columns, columns, strict=True))] * ("noheader" not in options) + rows
    for line in lines:
        widths = [WIDTHS[HEAD.index(column)] for column in columns]
        cells = (f"{line[c]:<{width}}" for c, width in zip(columns, widths, strict=True))
        print(" ".join(cells).rstrip())
    return 0


def _row(client: Client, node: dict[str, Any], wide: bool) -> dict[str, str]:
    counts = {"RUN": 0, "SSUSP": 0, "USUSP": 0}
    for job in client.jobs():
        if node["name"] in job.places and job.state in (State.RUNNING, State.ENDING):
            counts["RUN"] += slots(job)[node["name"]]
        elif node["name"] in job.places and job.state is State.SUSPENDED:
            counts["SSUSP" if job.by_system else "USUSP"] += slots(job)[node["name"]]
    full = sum(counts.values()) >= node["room"]["cpus"]
    status = ("closed_Full" if wide else "closed") if full else "ok"
    return {
        "HOST_NAME": node["name"],
        "STATUS": status if node["up"] else "unavail",
        "JL/U": "-",
        "MAX": str(node["room"]["cpus"]),
        "NJOBS": str(sum(counts.values())),
        **{name: str(count) for name, count in counts.items()},
        "RSV": "0",
    }
