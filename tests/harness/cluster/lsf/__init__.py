"""A strict fake of IBM Spectrum LSF 10.1: `with Lsf(folder) as lsf: lsf.run("bsub", ...)`.

Facts are those of the command reference (bsub, bjobs, bkill, bstop, bresume, brequeue, bhosts,
blaunch), of the pages on environment variables set for job execution and on termination reasons,
and, for words that these do not give, of the published sources of LSF's descendant Lava:

- Options are whole words (`-oo`, `-gpu`); a value follows as a word of its own. What is refused
  ends with `Job not submitted.` and exits 255. `#BSUB` lines count wherever they stand in a script
  that comes by stdin, and not at all in one that is named as the command; the command line wins.
- Words of a command are joined as LSF joins them, and a shell reads the result: blanks and quotes
  are kept, `;`, `|` and newlines are the shell's.
- A job gets the whole environment of the submitting shell unless `-env` says otherwise, with the
  LSB_* variables; host file and rank file are on a shared file system, a line for each slot.
- Output is kept aside and comes, behind a report, to the file of `-o` when the job has ended.
- States: PEND, PSUSP, RUN, USUSP (bstop), SSUSP (the system), UNKWN (its host is silent), DONE,
  EXIT; exit codes 128 + the signal; EXIT_REASON such as `TERM_RUNLIMIT: ...`.
- `bkill` sends SIGINT, SIGTERM and SIGKILL to every process of the job on every host,
  `terminate_interval` apart. At the run limit (`-W`) comes SIGUSR2, and `runlimit_grace` later the
  same three. `-wt` and `-wa` together have a signal come before. `minute` is how many seconds a
  minute of `-W` and `-wt` has.
- A shell is above the job's script and waits for it; it outlives SIGHUP, SIGINT, SIGUSR1, SIGUSR2
  and SIGTERM, as LSF's job file does (LSB_TRAPSIGS). When it has ended, what is left of the job's
  sessions is killed on every host; what made a session of its own lives on, as it does where
  LSF_PROCESS_TRACKING is off. TMPDIR is a folder of the job's own (LSF_TMPDIR is set), removed at
  its end under whatever uses it.
- `brequeue`, and `-Q` for exit codes, put a job back in the queue under its number; `-r` has it run
  again when its host dies (LSB_RESTART=Y). Without `-r` it is UNKWN until the host is back.
- blaunch runs tasks on hosts of the job alone, with its caller's environment, folder and files. Its
  words are joined by blanks and read by a shell, as rsh's are, unless `-no-shell` is given.

Not known, and so in the fake's own words: what bsub says of an option that does not exist, bjobs
of a field, blaunch of a host. Not done, and refused or absent: interactive jobs (`-I...`), job
groups, application profiles, packs, checkpoints, esub, reservations, multicluster, CSM (`-nnodes`,
jsrun), data, resizing, mail (it is thrown away), bmod, bpeek, bhist, bacct, bqueues; `-R` but for
span, rusage, order and `select[type==...]`; `||`, `!` and `(...)` in `-w`; long formats (`-l`). One
cluster, two queues, no users but the caller. No CUDA_VISIBLE_DEVICES is set.
"""

from typing import ClassVar

from ..batch.system import BatchSystem

COMMANDS = {
    "bsub": "lsf.bsub:main",
    "bjobs": "lsf.bjobs:main",
    "bkill": "lsf.control:bkill",
    "bstop": "lsf.control:bstop",
    "bresume": "lsf.control:bresume",
    "brequeue": "lsf.control:brequeue",
    "bhosts": "lsf.bhosts:main",
    "blaunch": "lsf.blaunch:main",
}


class Lsf(BatchSystem):
    """One LSF cluster; `minute`, `terminate_interval` and `runlimit_grace` are in seconds."""

    vendor = "lsf"
    daemons = ("mbatchd", "sbatchd")
    commands = COMMANDS
    defaults: ClassVar = {"minute": 60.0, "terminate_interval": 10.0, "runlimit_grace": 600.0}
    brisk: ClassVar = {"minute": 1.0, "terminate_interval": 1.0, "runlimit_grace": 2.0}
    queues = ("normal", "gpu")
    port = 6881
    home_is_own = False
