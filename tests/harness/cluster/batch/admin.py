"""What a test does to a batch system beside what its users do."""

import time

from .command import Client
from .job import State

PAUSE = 0.02  # seconds between two looks
PATIENCE = 60.0


def main(client: Client, words: list[str]) -> int:
    """Do one thing: nodes, left, cancel, forget; or preempt, resume or wait for jobs."""
    what, *keys = words
    if what == "nodes":
        print(*(node["name"] for node in client.ask("list")["nodes"] if node["up"]))
        return 0
    if what == "wait":
        return _wait(client, keys)
    jobs = client.jobs()
    unfinished = [job.key for job in jobs if job.state is not State.FINISHED]
    if what == "left":
        print(len(unfinished))
    elif what == "cancel":
        client.ask("kill", keys=unfinished, force=True)
    elif what == "forget":
        client.ask("forget", keys=[job.key for job in jobs])
    elif what == "preempt":
        client.ask("suspend", keys=keys, system=True)
    else:
        client.ask("resume", keys=keys)
    return 0


def _wait(client: Client, keys: list[str]) -> int:
    """Stay until these jobs have ended; `12[]` is all of an array."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ours = [job for job in client.jobs() if {job.key, f"{job.number}[]"} & set(keys)]
        if ours and all(job.state is State.FINISHED for job in ours):
            return 0
        time.sleep(PAUSE)
    return 1
