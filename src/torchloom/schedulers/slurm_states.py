"""What Slurm's words for a job's state mean, and how its answers are read. Pure.

`squeue -O FIELD:SUFFIX` prints fields without width and without padding, alike in Slurm 22.05 to
25; its JSON is another one in each release, and accounting need not be set up.
"""

from collections.abc import Mapping

from torchloom.launch.hosts.host_lists import BadNodelist, expand
from torchloom.schedulers.batch.arrays import joined
from torchloom.schedulers.batch.query import EngineJob
from torchloom.specs.api import AppState

# What AppState it is, and the word that tells it from the others of that state.
STATES: Mapping[str, tuple[AppState, str]] = {
    "PENDING": (AppState.PENDING, ""),
    "CONFIGURING": (AppState.PENDING, "configuring"),
    "REQUEUED": (AppState.PENDING, "requeued"),
    "REQUEUE_FED": (AppState.PENDING, "requeued"),
    "REQUEUE_HOLD": (AppState.PENDING, "requeued_held"),
    "SPECIAL_EXIT": (AppState.PENDING, "requeued_held"),
    "RESV_DEL_HOLD": (AppState.PENDING, "reservation_deleted"),
    "SUSPENDED": (AppState.PENDING, "suspended"),
    "STOPPED": (AppState.PENDING, "stopped"),
    "RUNNING": (AppState.RUNNING, ""),
    "RESIZING": (AppState.RUNNING, "resizing"),
    "SIGNALING": (AppState.RUNNING, ""),
    "STAGE_OUT": (AppState.RUNNING, "staging_out"),
    "COMPLETING": (AppState.RUNNING, "completing"),  # it still holds its nodes
    "UPDATE_DB": (AppState.RUNNING, ""),
    "POWER_UP_NODE": (AppState.PENDING, "configuring"),
    "COMPLETED": (AppState.SUCCEEDED, ""),
    "CANCELLED": (AppState.CANCELLED, "cancelled"),
    "REVOKED": (AppState.CANCELLED, "revoked"),
    "FAILED": (AppState.FAILED, ""),
    "TIMEOUT": (AppState.FAILED, "time_limit"),
    "DEADLINE": (AppState.FAILED, "deadline"),
    "PREEMPTED": (AppState.FAILED, "preempted"),
    "NODE_FAIL": (AppState.FAILED, "node_failure"),
    "BOOT_FAIL": (AppState.FAILED, "boot_failure"),
    "OUT_OF_MEMORY": (AppState.FAILED, "out_of_memory"),
    "LAUNCH_FAILED": (AppState.FAILED, "launch_failed"),
    "RECONFIG_FAIL": (AppState.FAILED, "reconfiguration_failed"),
}
SHORT = {
    "PD": "PENDING",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "CG": "COMPLETING",
    "CD": "COMPLETED",
    "CA": "CANCELLED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "PR": "PREEMPTED",
    "NF": "NODE_FAIL",
    "BF": "BOOT_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "DL": "DEADLINE",
    "RQ": "REQUEUED",
    "RH": "REQUEUE_HOLD",
    "S": "SUSPENDED",
    "ST": "STOPPED",
    "SE": "SPECIAL_EXIT",
}
SEPARATOR = "\x1f"
FIELDS = (
    *("JobArrayID", "State", "Reason", "NodeList", "RestartCnt", "exit_code"),
    *("HetJobID", "HetJobOffset", "Name"),
)
_NOTHING = ("", "N/A", "n/a", "(null)", "None", "none")


def question(user: str) -> list[str]:
    """Return the words that ask for all jobs of a user, those that have just ended too."""
    fields = ",".join(f"{name}:{SEPARATOR}" for name in FIELDS)
    return ["squeue", "--noheader", "--states=all", f"--user={user}", f"--Format={fields}"]


def read(printed: str) -> dict[str, EngineJob]:
    """Return the jobs of an answer; an array or a heterogeneous job is one, of its parts."""
    parts: dict[str, list[EngineJob]] = {}
    for line in printed.split("\n"):
        values = [word.strip() for word in line.split(SEPARATOR)]
        if len(values) > len(FIELDS):
            fields = dict(zip(FIELDS, values, strict=False))
            parts.setdefault(_whole(fields), []).append(_job(fields))
    return {job: joined(job, found) for job, found in parts.items()}


def _whole(fields: Mapping[str, str]) -> str:
    het = fields["HetJobID"]
    own = fields["JobArrayID"].partition("_")[0].partition("+")[0]
    return own if het in (*_NOTHING, "0") else het


def _job(fields: Mapping[str, str]) -> EngineJob:
    word = fields["State"].partition(" ")[0].partition("+")[0].upper()  # CANCELLED by 1000
    native = SHORT.get(word, word)
    state, why = STATES.get(native, (AppState.UNKNOWN, native.lower()))
    restarts = _int(fields["RestartCnt"])
    if state is AppState.PENDING and restarts and not why:
        why = "requeued"
    reason = fields["Reason"]
    if state is AppState.PENDING and reason not in _NOTHING:
        why = f"{why}: {reason}" if why else reason
    return EngineJob(
        id=fields["JobArrayID"],
        state=state,
        native=native,
        why=why,
        hosts=_hosts(fields["NodeList"]),
        restarts=restarts,
        exit_code=_exit_code(_int(fields["exit_code"])),
        name=fields["Name"],
    )


def _hosts(nodes: str) -> tuple[str, ...]:
    if nodes in _NOTHING:
        return ()
    try:
        return expand(nodes)
    except BadNodelist:
        return ()


def _int(word: str) -> int:
    return int(word) if word.isascii() and word.isdecimal() else 0


def _exit_code(status: int) -> int:
    """Return what a shell would see; Slurm has the status as `wait` gives it."""
    return 128 + (status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF
