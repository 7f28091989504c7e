"""LSF seen from the queue: signals, the job's environment, its files and its report."""

import time

from ..batch.job import Cause, Job
from ..batch.vendor import Site, Steps
from ..batch.wire import Message
from .jobs import REASONS, name, path, slots
from .report import report


class LsfVendor:
    """What `Vendor` asks for."""

    depend_holds = False
    signals_first_host = False

    def __init__(self, site: Site) -> None:
        self.site = site

    def kill_steps(self, force: bool) -> Steps:
        """SIGINT, SIGTERM, SIGKILL."""
        if force:
            return [("SIGKILL", 0)]
        pause = self.site.settings["terminate_interval"]
        return [("SIGINT", pause), ("SIGTERM", pause), ("SIGKILL", 0)]

    def requeue_steps(self) -> Steps:
        """SIGKILL at once for `brequeue`."""
        return [("SIGKILL", 0)]

    def limit_steps(self) -> Steps:
        """SIGUSR2, and the same later."""
        grace = self.site.settings["runlimit_grace"]
        return [("SIGUSR2", grace), *self.kill_steps(force=False)]

    def over_limit(self, job: Job, now: float) -> str:
        """Nothing is said in the output."""
        return ""

    def gives_up(self, job: Job) -> bool:
        """Only what may run again is not waited for when its host is silent."""
        return job.rerunnable

    def start(self, job: Job) -> Message:
        """Run the job file by the shell; host file and rank file are there for all hosts."""
        base = self._base(job)
        hosts = "".join(f"{host}\n" * count for host, count in slots(job).items())
        files = {base: (job.script, 0o700)}
        files |= {f"{base}.hostfile": (hosts, 0o644), f"{base}.rankfile": (hosts, 0o644)}
        separate = bool(job.vendor["err"])
        return {
            "argv": [job.vendor["shell"], "-c", f"trap : 15 10 12 2 1; '{base}'; exit $?"],
            "env": self.task_env(job),
            "cwds": [job.cwd, "/tmp"],
            "files": files,
            "stdin": path(job, job.vendor["in"]) if job.vendor["in"] else "",
            "out": f"{base}.out",
            "err": f"{base}.err" if separate else f"{base}.out",
            "mark": f"LSB_JOBFILENAME={base}",
            "spool": [*files, f"{base}.out", f"{base}.err"],
        }

    def task_env(self, job: Job) -> dict[str, str]:
        """Return the environment of the submitting shell with LSF's own variables."""
        base, given = self._base(job), slots(job)
        each = [host for host, count in given.items() for _ in range(count)]
        env = {
            **job.env,
            "TMPDIR": f"{self.site.home}/{job.key}.tmpdir",
            "LSB_JOBID": str(job.number),
            "LSB_BATCH_JID": job.key,
            "LSB_JOBINDEX": str(job.index or 0),
            "LSB_JOBNAME": name(job),
            "LSB_JOBFILENAME": base,
            "LSB_QUEUE": job.queue,
            "LSB_HOSTS": " ".join(each),
            "LSB_MCPU_HOSTS": " ".join(f"{host} {count}" for host, count in given.items()),
            "LSB_DJOB_NUMPROC": str(len(each)),
            "LSB_MAX_NUM_PROCESSORS": str(len(each)),
            "LSB_DJOB_HOSTFILE": f"{base}.hostfile",
            "LSB_DJOB_RANKFILE": f"{base}.rankfile",
            "LSB_SUB_HOST": job.from_host,
            "LSB_PROJECT_NAME": job.vendor["project"],
            "LSB_EXIT_PRE_ABORT": "99",
            "LSFUSER": job.owner,
            "LS_SUBCWD": job.cwd,
            "LS_EXECCWD": job.cwd,
        }
        for variable, file in (("LSB_OUTPUTFILE", "out"), ("LSB_ERRORFILE", "err")):
            if job.vendor[file]:
                env[variable] = path(job, job.vendor[file])
        if job.runs > 1:
            env["LSB_RESTART"] = "Y"
        return env

    def finish(self, job: Job) -> list[Message]:
        """Append report and output to the files that were asked for; mail is thrown away."""
        base, own, writes = self._base(job), job.vendor, []
        if own["out"]:
            text = report(job, time.time(), self._said(job))
            after = (
                f"\n\nPS:\n\nRead file <{path(job, own['err'])}> for stderr output of this job.\n\n"
            )
            parts = [{"text": text}, {"file": f"{base}.out"}]
            parts += [{"text": after}] if own["err"] else []
            target = path(job, own["out"])
            writes.append({"path": target, "mode": own["out_mode"], "parts": parts})
        if own["err"]:
            parts = [{"file": f"{base}.err"}]
            target = path(job, own["err"])
            writes.append({"path": target, "mode": own["err_mode"], "parts": parts})
        return writes

    def _said(self, job: Job) -> str:
        if job.exit == 0:
            return "Successfully completed."
        code = 128 - (job.exit or 0) if (job.exit or 0) < 0 else job.exit
        reason = f"{REASONS.get(job.cause, '')}.\n" if job.cause is not Cause.ITSELF else ""
        return f"{reason}Exited with exit code {code}."

    def _base(self, job: Job) -> str:
        index = "" if job.index is None else f".{job.index}"
        return f"{self.site.home}/{int(job.queued)}.{job.number}{index}.{job.runs}"


def vendor(site: Site) -> LsfVendor:
    """Return LSF for a site."""
    return LsfVendor(site)
