"""PBS seen from the queue: signals, the job's environment and files on its first host."""

import hashlib

from ..batch.job import Job
from ..batch.vendor import Site, Steps
from ..batch.wire import Message
from .jobs import identifier, output_path

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class PbsVendor:
    """What `Vendor` asks for."""

    depend_holds = True
    signals_first_host = True

    def __init__(self, site: Site) -> None:
        self.site = site

    def kill_steps(self, force: bool) -> Steps:
        """SIGTERM, and SIGKILL after kill_delay."""
        if force:
            return [("SIGKILL", 0)]
        return [("SIGTERM", self.site.settings["kill_delay"]), ("SIGKILL", 0)]

    def requeue_steps(self) -> Steps:
        """The same for `qrerun`."""
        return self.kill_steps(force=False)

    def limit_steps(self) -> Steps:
        """The same for a walltime that is over."""
        return self.kill_steps(force=False)

    def over_limit(self, job: Job, now: float) -> str:
        """Say so in the job's stderr, as the execution daemon does."""
        used = now - (job.started or now) - job.stopped
        limit = int(job.limit or 0)
        return f"=>> PBS: job killed: walltime {max(limit, int(used))} exceeded limit {limit}\n"

    def gives_up(self, job: Job) -> bool:
        """Every job that does not ask to be left alone, after node_fail_requeue."""
        return job.vendor["tolerates"] != "all"

    def start(self, job: Job) -> Message:
        """Run a shell that reads the script's path, with the node file on this host alone."""
        name, home = identifier(job, self.site.server), self.site.home
        script = f"{home}/mom_priv/jobs/{name}.SC"
        nodefile = "".join(
            f"{host}\n" * chunk.ranks for host, chunk in zip(job.hosts, job.chunks, strict=True)
        )
        files = {script: (job.script, 0o700), f"{home}/aux/{name}": (nodefile, 0o644)}
        files[f"{script}.in"] = (f"{script}\n", 0o600)
        out, err = self._spooled(job)
        return {
            "argv": self._argv(job),
            "stdin": "" if job.vendor["command"] else f"{script}.in",
            "env": {**self.task_env(job), "PBS_NODENUM": "0", "PBS_TASKNUM": "1"},
            "cwds": [job.cwd],
            "files": files,
            "out": out,
            "err": err,
            "mark": f"PBS_JOBCOOKIE={self._cookie(job)}",
            "spool": [path for path in (out, err) if path.startswith(home)] + list(files),
        }

    def _argv(self, job: Job) -> list[str]:
        """Return the top process of the job: the shell above the script, not the script itself."""
        if job.vendor["command"]:
            return list(job.vendor["command"])
        return [job.vendor["shell"] or job.vendor["login_shell"]]

    def task_env(self, job: Job) -> dict[str, str]:
        """Return the variables of the job, and what every task of it gets."""
        name, first = identifier(job, self.site.server), job.chunks[0]
        threads = str(first.cpus // max(first.ranks, 1) or 1)
        env = {
            "PATH": f"{self.site.bin}:{SYSTEM_PATH}",
            "NCPUS": str(first.cpus),
            "OMP_NUM_THREADS": threads,
            **job.env,
            "TMPDIR": f"{self.site.home}/tmp/pbs.{name}",
            "HOME": job.cwd,
            "USER": job.owner,
            "LOGNAME": job.owner,
            "SHELL": job.vendor["login_shell"],
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_JOBID": name,
            "PBS_JOBNAME": job.name,
            "PBS_JOBDIR": job.cwd,
            "PBS_QUEUE": job.queue,
            "PBS_NODEFILE": f"{self.site.home}/aux/{name}",
            "PBS_JOBCOOKIE": self._cookie(job),
            "PBS_MOMPORT": "15003",
        }
        if job.index is not None:
            env["PBS_ARRAY_INDEX"] = str(job.index)
            env["PBS_ARRAY_ID"] = f"{job.number}[].{self.site.server}"
        return env

    def finish(self, job: Job) -> list[Message]:
        """Copy what was spooled to where it was asked for; not what succeeded and is not wanted."""
        writes = []
        for stream, spool in zip("oe", self._spooled(job), strict=True):
            joined = job.vendor["join"] == ("oe" if stream == "e" else "eo")
            unwanted = stream in job.vendor["remove"] and job.exit == 0
            if joined or unwanted or not spool.startswith(self.site.home):
                continue
            path = output_path(job, stream, self.site.server)
            if stream in job.vendor["keep"]:  # it stays on the host, in the owner's home
                path = f"{job.cwd}/{path.rpartition('/')[2]}"
            writes.append({"path": path, "mode": "wb", "parts": [{"file": spool}]})
        return writes

    def _spooled(self, job: Job) -> tuple[str, str]:
        """Return where stdout and stderr go while the job runs."""
        name, paths = identifier(job, self.site.server), {}
        for stream, ending in (("o", "OU"), ("e", "ER")):
            keep = job.vendor["keep"]
            paths[stream] = f"{self.site.home}/spool/{name}.{ending}"
            if "d" in keep and stream in keep:
                paths[stream] = output_path(job, stream, self.site.server)
        if job.vendor["join"] == "oe":
            paths["e"] = paths["o"]
        elif job.vendor["join"] == "eo":
            paths["o"] = paths["e"]
        return paths["o"], paths["e"]

    def _cookie(self, job: Job) -> str:
        text = f"{self.site.bin} {job.key} {job.runs}"
        return hashlib.sha256(text.encode()).hexdigest()[:32].upper()


def vendor(site: Site) -> PbsVendor:
    """Return PBS for a site."""
    return PbsVendor(site)
