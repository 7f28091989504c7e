"""qstat: what is known of jobs, as a table, in full, or as JSON."""

import json
import re
import time
from collections import Counter
from typing import Any

from ..batch.command import Client, Refused
from ..batch.job import Job, State
from ..batch.options import BadOption, getopt
from .jobs import (
    IDENTIFIER,
    array_identifier,
    comment,
    exec_host,
    exec_vnode,
    exit_status,
    find,
    identifier,
    letter,
    output_path,
    substate,
)
from .resources import clock
from .words import HISTJOBID, TEXTS, UNKJOBID, UNKQUE, VERSION, not_done

USAGE = """\
usage: 
qstat [-f] [-J] [-p] [-t] [-x] [-E] [-F format | -w] [-D delim] [ job_identifier... | destination... ]
qstat [-a|-i|-r|-H|-T] [-J] [-t] [-u user] [-n] [-s] [-G|-M] [-1] [-w]
\t[ job_identifier... | destination... ]
qstat -Q [-f] [-F format] [-D delim] [ destination... ]
qstat -q [-G|-M] [ destination... ]
qstat -B [-f] [-F format] [-D delim] [ server_name... ]
qstat --version
"""  # noqa: E501, W291
DONE = "fxtFDEJu"
FORMATS = ("default", "dsv", "json")
HEAD = """\
Job id            Name             User              Time Use S Queue
----------------  ---------------- ----------------  -------- - -----
"""
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")

Attributes = dict[str, Any]


def main(client: Client, words: list[str]) -> int:
    """Show jobs."""
    options, operands = _options(words)
    try:
        jobs = client.jobs()
    except OSError as error:
        server = client.site["server"]
        text = f"{error.strerror}\nqstat: cannot connect to server {server} (errno={error.errno})\n"
        raise Refused(text, 255) from None
    if "u" in options:
        jobs = [job for job in jobs if job.owner in options["u"].split(",")]
    chosen, said, code = _select(client, jobs, operands, options)
    if options["F"] == "json" and client.site["settings"]["short_json"]:
        chosen = [job for job in chosen if job.number == chosen[0].number]
    shown = _merge(chosen, jobs, options, client.site["server"])
    if options.get("F", "default") == "json":
        _print_json(shown, client.site["server"])
    elif "f" in options:
        _print_full(shown, options)
    elif shown:
        print(HEAD + "\n".join(_line(name, each) for name, each in shown.items()))
    if said:
        raise Refused(said, code)
    return 0


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    try:
        parsed = getopt("qstat", words, "aD:EF:fGHiJMnpqQrsStTu:wxB1W:")
    except BadOption as bad:
        raise Refused(f"{bad}\n{USAGE}", 2) from None
    options = dict(parsed.options)
    for option in options:
        if option not in DONE:
            raise not_done("qstat", f"-{option}")
    if options.setdefault("F", "default").lower() not in FORMATS:
        raise Refused(USAGE, 2)
    options["F"] = options["F"].lower()
    if options["F"] != "default" and "f" not in options:
        raise Refused("qstat: conflicting options.\n" + USAGE, 2)
    if "D" in options and options["F"] != "dsv":
        raise Refused(USAGE, 2)
    return options, parsed.operands


def _select(
    client: Client, jobs: list[Job], operands: list[str], options: dict[str, str]
) -> tuple[list[Job], str, int]:
    """Return the jobs that were asked for, and what is to be said of those that are not there."""
    history = "x" in options
    living = {job.number for job in jobs if job.state is not State.FINISHED}
    if not operands:
        return [job for job in jobs if history or job.number in living], "", 0
    shown: list[Job] = []
    said, code, server = "", 0, client.site["server"]
    for operand in operands:
        match = IDENTIFIER.fullmatch(operand)
        if match:
            name = f"{match[1]}{match[2] or ''}.{server}"
            found = find(operand, jobs)
            if not found:
                said, code = f"{said}qstat: {TEXTS[UNKJOBID]} {name}\n", UNKJOBID % 256
            elif not history and found[0].number not in living:
                how = "use -x or -H to obtain historical job information"
                said, code = f"{said}qstat: {name} {TEXTS[HISTJOBID]}, {how}\n", HISTJOBID % 256
            else:
                shown += found
        elif operand.partition("@")[0] in client.site["queues"]:
            shown += [job for job in jobs if job.queue == operand and job.number in living]
        else:
            said, code = f"{said}qstat: {TEXTS[UNKQUE]} {operand}\n", UNKQUE % 256
    return shown, said, code


def _merge(
    chosen: list[Job], jobs: list[Job], options: dict[str, str], server: str
) -> dict[str, Attributes]:
    """Return jobs and arrays by name; subjobs where `-t` or their own name asks for them."""
    shown: dict[str, Attributes] = {}
    for job in chosen:
        if job.index is None:
            if "J" not in options:
                shown[identifier(job, server)] = attributes(job, server)
            continue
        array = [other for other in jobs if other.number == job.number]
        whole = sum(other.number == job.number for other in chosen) == job.vendor["subjobs"]
        if whole:
            shown.setdefault(array_identifier(job.number, server), _array(array, server))
        if "t" in options or not whole:
            shown[identifier(job, server)] = _subjob(job, array, server)
    return shown


def _array(subjobs: list[Job], server: str) -> Attributes:
    """Return what is known of an array as a whole."""
    shown = attributes(subjobs[0], server)
    for name in ("array_index", "array_id", "exec_host", "exec_vnode", "Exit_status", "stime"):
        shown.pop(name, None)
    begun = any(job.runs for job in subjobs)
    over = all(job.state is State.FINISHED for job in subjobs)
    counts = Counter(letter(job) for job in subjobs)
    waiting = [job for job in subjobs if job.state in (State.QUEUED, State.HELD)]
    state = "F" if over else "B" if begun else letter(subjobs[0])
    shown |= {"job_state": state, "array": "True", "substate": 92 if over else 42 if begun else 10}
    shown["array_state_count"] = (
        f"Queued:{counts['Q'] + counts['H']} Running:{counts['R'] + counts['S']} "
        f"Exiting:{counts['E']} Expired:{counts['F']} "
    )
    shown["array_indices_submitted"] = subjobs[0].vendor["array"].partition("%")[0]
    shown["array_indices_remaining"] = ",".join(str(job.index) for job in waiting) or "-"
    if over:
        shown["Exit_status"] = int(any(exit_status(job) != 0 for job in subjobs))
    return shown


def _subjob(job: Job, array: list[Job], server: str) -> Attributes:
    shown = attributes(job, server)
    if job.state is State.FINISHED and any(each.state is not State.FINISHED for each in array):
        shown["job_state"] = "X"
    return shown


def attributes(job: Job, server: str) -> Attributes:
    """Return the attributes of a job, in the order in which qstat shows them."""
    own, here = job.vendor, f"{job.from_host}:"
    shown: Attributes = {"Job_Name": job.name, "Job_Owner": f"{job.owner}@{job.from_host}"}
    if job.started is not None:
        used = clock((job.ended or time.time()) - job.started - job.stopped)
        shown["resources_used"] = {"ncpus": own["resources"]["ncpus"], "walltime": used}
    shown |= {"job_state": letter(job), "queue": job.queue, "server": server, "Checkpoint": "u"}
    shown |= {"ctime": time.ctime(job.queued)}
    shown["Error_Path"] = here + output_path(job, "e", server)
    if job.hosts:
        shown |= {"exec_host": exec_host(job), "exec_vnode": exec_vnode(job)}
    shown["Hold_Types"] = "".join(sorted(job.holds)) or "n"
    shown |= {"Join_Path": own["join"], "Keep_Files": own["keep"], "Mail_Points": own["mail"]}
    shown |= {"mtime": time.ctime(job.changed)}
    shown["Output_Path"] = here + output_path(job, "o", server)
    shown |= {"Priority": own["priority"], "qtime": time.ctime(job.queued)}
    shown |= {"Rerunable": str(job.rerunnable), "Resource_List": own["resources"]}
    if job.started is not None:
        shown |= {"stime": time.ctime(job.started), "jobdir": job.cwd}
    shown |= {"substate": substate(job), "Variable_List": dict(job.env)}
    shown |= {"comment": comment(job), "etime": time.ctime(job.queued)}
    if job.runs:
        shown["run_count"] = job.runs
    if (status := exit_status(job)) is not None:
        shown["Exit_status"] = status
    if job.index is not None:
        shown |= {"array_id": array_identifier(job.number, server), "array_index": job.index}
    if job.depend:
        shown["depend"] = ",".join(":".join([kind, *keys]) for kind, keys in job.depend)
    if own["account"]:
        shown["Account_Name"] = own["account"]
    shown |= {"Submit_arguments": " ".join(own["arguments"]), "project": own["project"]}
    if job.state is State.FINISHED:
        shown["history_timestamp"] = int(job.changed)
    return shown


def _print_json(shown: dict[str, Attributes], server: str) -> None:
    """Print JSON as qstat does: what looks like a number is one, whatever it means."""
    head: Attributes = {"timestamp": int(time.time()), "pbs_version": VERSION, "pbs_server": server}
    if shown:
        head["Jobs"] = {name: _numbers(each) for name, each in shown.items()}
    print(json.dumps(head, indent=4, ensure_ascii=False))


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    return json.loads(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def _print_full(shown: dict[str, Attributes], options: dict[str, str]) -> None:
    for name, each in shown.items():
        rows = []
        for key, value in each.items():
            if key == "Variable_List":
                rows.append(
                    (key, ",".join(f"{n}={v}".replace(",", "\\,") for n, v in value.items()))
                )
            elif isinstance(value, dict):
                rows += [(f"{key}.{part}", text) for part, text in value.items()]
            else:
                rows.append((key, value))
        if options["F"] == "dsv":
            print(options.get("D", "|").join([f"Job Id: {name}", *(f"{k}={v}" for k, v in rows)]))
        else:
            print(f"Job Id: {name}")
            print("".join(f"    {key} = {value}\n" for key, value in rows))


def _line(name: str, each: Attributes) -> str:
    owner = each["Job_Owner"].partition("@")[0]
    used = each.get("resources_used", {}).get("walltime", "0")
    cells = f"{name:<17.17} {each['Job_Name']:<16.16} {owner:<16.16}  {used:>8}"
    return f"{cells} {each['job_state']} {each['queue']:<16}"
