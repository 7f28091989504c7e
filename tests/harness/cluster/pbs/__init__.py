"""A strict fake of PBS Professional 2022 and OpenPBS 23: `with Pbs(folder) as pbs: pbs.run(...)`.

Facts are those of the manual pages qsub(1B), qstat(1B), qdel(1B), qrerun(1B), qhold(1B), qrls(1B),
qsig(1B), pbsnodes(8B), pbs_tmrsh(8B), pbsdsh(1B), pbs_resources(7B), pbs_job_attributes(7B), and of
what the published commands say and return:

- Options are getopt's; a bad option shows the usage and exits 2, a bad directive says `qsub:
  directive error:` and exits 1, what the server refuses exits with PBSE_* modulo 256 (unknown job
  153, unknown queue 170, finished job 35). Directives count until the first line that is executed;
  the command line wins over them, and of two directives for one resource the first.
- A job gets PBS_O_*, what `-v` and `-V` say, and what the execution daemon sets; nothing else of
  the submitting shell. It starts in the owner's home. Its stdout and stderr are files on its host
  and arrive when it has ended, unless `-k d` writes them in place.
- The node file is on the first host alone and names a host once for each of its mpiprocs.
- Tasks of pbs_tmrsh and pbsdsh get the job's environment, not the caller's, and write to the job's
  output, not to the caller's.
- States: Q, H (held, or waits for another job), R, S, E, F (`qstat -x`), W; arrays Q, B, F,
  subjobs also X. An ended job is in the history until `qdel -x`.
- The top process of a job is a shell, the login shell or that of `-S`; it reads the path of the
  script from a pipe and waits for it. `-S` takes any program: with the script's own path the script
  is the top process.
- `qsig`: to every process of the job's sessions on its first host, the shell above the script among
  them. `qdel`, `qrerun` and a walltime that is over: SIGTERM there, SIGKILL after kill_delay; the
  other hosts are told nothing. Exit_status: the code, 256 + the signal, or -29 for the walltime.
- When the top process has ended, what is left of the sessions of its tasks is killed at once, on
  every host: a script that wants its tasks to save something must trap SIGTERM and stay, and so
  must what is above it. Only after SIGTERM of `qdel` has the rest of its session the time that it
  had. What made a session of its own lives on: there are no cgroups.
- TMPDIR is a folder of the job's own on each host, removed at its end under whatever uses it.
- `qstat -f -F json A B C` prints A alone and exits 0, as OpenPBS's main line does (`short_json`).
- A host that is silent is `down`; after node_fail_requeue its jobs are requeued, or ended where
  `-r n` says so; those with `-W tolerate_node_failures=all` run on.

Not done, and refused or absent: interactive jobs, staging, sandboxes, reservations, hooks, routing
and other servers, checkpoints, provisioning, qalter, qmove, qmsg, qorder, qmgr; old-style
`-l nodes=` but for `N[:ppn=M]`. One server, no users but the caller; root is a manager. The login
shell's own files are not read. resources_used has walltime and ncpus alone.
"""

from typing import ClassVar

from ..batch.system import BatchSystem

COMMANDS = {
    "qsub": "pbs.qsub:main",
    "qstat": "pbs.qstat:main",
    "qselect": "pbs.qselect:main",
    "qdel": "pbs.control:qdel",
    "qhold": "pbs.control:qhold",
    "qrls": "pbs.control:qrls",
    "qsig": "pbs.control:qsig",
    "qrerun": "pbs.control:qrerun",
    "pbsnodes": "pbs.pbsnodes:main",
    "pbs_tmrsh": "pbs.remote:pbs_tmrsh",
    "pbsdsh": "pbs.remote:pbsdsh",
}


class Pbs(BatchSystem):
    """One PBS server and its execution hosts; `kill_delay` and `host_patience` are in seconds.

    With `short_json` `qstat -F json` prints the first job alone, as OpenPBS's main line does.
    """

    vendor = "pbs"
    daemons = ("pbs_server", "pbs_mom")
    commands = COMMANDS
    defaults: ClassVar = {"kill_delay": 10.0, "host_patience": 310.0, "short_json": 1.0}
    brisk: ClassVar = {"kill_delay": 2.0}
    queues = ("workq", "gpu")
    port = 15001
