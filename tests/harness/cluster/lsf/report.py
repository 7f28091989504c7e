"""The report that LSF writes before a job's output."""

import time

from ..batch.job import Job
from .jobs import name, slots
from .words import CLUSTER

LINE = "-" * 60


def report(job: Job, now: float, said: str) -> str:
    """Return the report of a job that has ended; what it wrote follows."""
    word = "Done" if job.exit == 0 else "Exited"
    hosts = [host if count == 1 else f"{count}*{host}" for host, count in slots(job).items()]
    executed = f"Job was executed on host(s) <{hosts[0]}>, in queue <{job.queue}>"
    more = "".join(f"                            <{host}>\n" for host in hosts[1:])
    start, end, reported = map(time.ctime, (job.started or now, job.ended or now, now))
    return f"""\
Sender: LSF System <lsfadmin@{job.places[0]}>
Subject: Job {job.key}: <{name(job)}> in cluster <{CLUSTER}> {word}

Job <{name(job)}> was submitted from host <{job.from_host}> by user <{job.owner}> in cluster \
<{CLUSTER}> at {time.ctime(job.queued)}
{executed}, as user <{job.owner}> in cluster <{CLUSTER}> at {start}
{more}<{job.vendor["home"]}> was used as the home directory.
<{job.cwd}> was used as the working directory.
Started at {start}
Terminated at {end}
Results reported at {reported}

Your job looked like:

{LINE}
# LSBATCH: User input
{job.script}{LINE}

{said}

Resource usage summary:

    Run time :                                   {int((job.ended or now) - (job.started or now))} \
sec.
    Turnaround time :                            {int(now - job.queued)} sec.

The output (if any) follows:

"""
