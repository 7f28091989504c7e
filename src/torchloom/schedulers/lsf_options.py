"""What LSF takes: TorchX's options, more of `bsub`'s by names, and which of them are ours."""

from collections.abc import Mapping

from torchloom.errors import UserError
from torchloom.schedulers.batch.options import text
from torchloom.specs.api import CfgVal, runopts

FAMILY = "bsub"
SHM_SIZE = "64m"  # TorchX's default, that of a container
ARRAY = r"\d*[1-9]\d*(-\d+(:\d+)?)?(,\d*[1-9]\d*(-\d+(:\d+)?)?)*(%\d*[1-9]\d*)?"
# Options by name: bsub's own letters, where the value is theirs as it is, and what they are for.
NAMED: Mapping[str, tuple[str, str]] = {
    "lsf_queue": ("q", "where it runs"),
    "project": ("P", "who is charged"),
    "walltime": ("", "how long it may run: minutes, H:MM or H:MM:SS"),
    "resources": ("R", "which hosts, beside what is asked for anyway: select[type==any]"),
    "gpu": ("", "GPUs of a host, instead of the role's: 4, num=4:gmodel=A100"),
    "hosts": ("m", "hosts or groups that it may have, parted by blanks"),
    "user_group": ("G", "for which group of users"),
    "app_profile": ("app", "by which application profile"),
    "sla": ("sla", "in which service class"),
    "job_group": ("g", "in which job group"),
    "reservation": ("U", "in which reservation"),
    "dependency": ("w", "after which jobs: done(123) && ended(124)"),
    "begin": ("b", "not before: 16:00"),
    "deadline": ("t", "not after: 20:00"),
    "priority": ("sp", "its place among your jobs, from 1"),
    "description": ("Jd", "words that are kept with the job"),
    "mail-user": ("u", "who is told"),
    "array": ("", "so many of it, told apart by LSB_JOBINDEX: 1-10%2"),
}
_HOSTS = "each replica has a host; say -j, -n and --ppn"
_FOLDER = "the job's folder has its output; choose that by job_dir"
_SCRIPT = "the script is ours"
OURS: Mapping[str, str] = {
    **dict.fromkeys(("o", "oo", "e", "eo", "outdir"), _FOLDER),
    **dict.fromkeys(("i", "is"), "ranks of a job have no input"),
    **dict.fromkeys(("I", "Ip", "Is", "IS", "ISp", "ISs", "IX", "K", "tty"), "use loom logs -f"),
    **dict.fromkeys(("n", "nnodes", "hostfile"), _HOSTS),
    **dict.fromkeys(("pack", "json", "yaml", "jsdl", "Zs"), _SCRIPT),
    **dict.fromkeys(("wa", "wt"), "say warn=SECONDS"),
    **dict.fromkeys(("r", "rn", "Q"), "warn, and retries of a role, decide what runs again"),
    "env": "variables travel in a private file; -e NAME=VALUE adds one",
    "cwd": "say cwd=FOLDER",
    "J": "say --name NAME, and array=1-10",
    "W": "say walltime=H:MM",
    "gpu": "say gpu=..",
}


def add_options(opts: runopts) -> None:
    """Declare what bsub takes."""
    for name, (_, words) in NAMED.items():
        opts.add(name, type_=str, help=words)
    opts.add("jobdir", type_=str, help="TorchX's name of job_dir")
    opts.add("container_workdir", type_=str, help="TorchX's; refused: there are no containers")
    opts.add("host_network", type_=bool, default=False, help="TorchX's; it always is so")
    opts.add("shm_size", type_=str, default=SHM_SIZE, help="TorchX's; that of the host counts")
    opts.add("exclusive", type_=bool, default=False, help="hosts that nobody else uses")
    opts.add("cores", type_=int, help="slots of a host, instead of the role's")
    opts.add("mem", type_=str, help="memory of a host, instead of the role's: 64GB")
    opts.add("nomem", type_=bool, default=False, help="ask for no memory: before LSF 10.1.0.9")
    opts.add(f"{FAMILY}.*", type_=str, help="any other option of bsub: bsub.q=gpu, bsub.B=true")


def refuse_containers(cfg: Mapping[str, CfgVal]) -> None:
    """Refuse what only a container could honour."""
    if text(cfg, "container_workdir"):
        raise UserError("container_workdir: lsf starts ranks without a container; say cwd=FOLDER")
    if text(cfg, "shm_size") not in ("", SHM_SIZE):
        raise UserError(
            "shm_size: lsf starts ranks without a container; the host's /dev/shm counts"
        )


def with_folder(cfg: Mapping[str, CfgVal]) -> Mapping[str, CfgVal]:
    """Return the options with the job's folder under one name."""
    if not text(cfg, "jobdir"):
        return cfg
    if text(cfg, "job_dir"):
        raise UserError("jobdir and job_dir are one; name one of them")
    return {**cfg, "job_dir": cfg["jobdir"]}
