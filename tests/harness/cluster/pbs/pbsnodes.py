"""pbsnodes: the execution hosts and what is left of them."""

import json
import time
from typing import Any

from ..batch.command import Client, Refused
from ..batch.job import State
from ..batch.options import BadOption, getopt
from .jobs import identifier
from .words import TEXTS, UNKNODE, VERSION, not_done

USAGE = "usage:\tpbsnodes [-a] [-F format] [-v] [-l] [host ...]\n\tpbsnodes --version\n"


def main(client: Client, words: list[str]) -> int:
    """Show all hosts, or those that are named."""
    try:
        parsed = getopt("pbsnodes", words, "aF:vlCorH:jSLD:s:d")
    except BadOption as bad:
        raise Refused(f"{bad}\n{USAGE}", 2) from None
    options = dict(parsed.options)
    for option in options.keys() - {"a", "F", "v"}:
        raise not_done("pbsnodes", f"-{option}")
    if options.get("F", "default") not in ("default", "json") or not (options or parsed.operands):
        raise Refused(USAGE, 2)
    nodes = {node["name"]: node for node in client.ask("list")["nodes"]}
    for name in parsed.operands:
        if name not in nodes:
            raise Refused(f"Node: {name},  Error: {TEXTS[UNKNODE]}\n", 1)
    shown = {name: _attributes(client, nodes[name]) for name in parsed.operands or nodes}
    if options.get("F") == "json":
        head: dict[str, Any] = {"timestamp": int(time.time()), "pbs_version": VERSION}
        print(json.dumps({**head, "pbs_server": client.site["server"], "nodes": shown}, indent=4))
        return 0
    for name, each in shown.items():
        print(name)
        for key, value in each.items():
            parts = {"": value} if not isinstance(value, dict) else value
            for part, text in parts.items():
                text = ", ".join(text) if isinstance(text, list) else text
                print(f"     {key}{'.' if part else ''}{part} = {text}")
        print()
    return 0


def _attributes(client: Client, node: dict[str, Any]) -> dict[str, Any]:
    name, room, left = node["name"], node["room"], node["left"]
    jobs = [
        identifier(job, client.site["server"])
        for job in client.jobs()
        if name in job.places and job.state not in (State.FINISHED, State.QUEUED, State.HELD)
    ]
    state = "free" if left["cpus"] else "job-busy"
    shown: dict[str, Any] = {"Mom": name, "ntype": "PBS"}
    shown |= {"state": state if node["up"] else "down", "pcpus": room["cpus"]}
    if jobs:
        shown["jobs"] = jobs
    shown["resources_available"] = {
        "arch": "linux",
        "host": name,
        "mem": f"{room['memory_mb'] * 1024}kb",
        "ncpus": room["cpus"],
        "ngpus": room["gpus"],
        "vnode": name,
    }
    shown["resources_assigned"] = {
        "mem": f"{(room['memory_mb'] - left['memory_mb']) * 1024}kb",
        "ncpus": room["cpus"] - left["cpus"],
        "ngpus": room["gpus"] - left["gpus"],
    }
    return shown | {"resv_enable": "True", "sharing": "default_shared"}
