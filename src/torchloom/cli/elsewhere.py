"""A job on another engine as `run` sees it: submit it, show its logs, wait for its end."""

import threading
from typing import Any

import click

from torchloom.cli.output import echo, echo_json, say
from torchloom.cli.shapes import engine_job_shape
from torchloom.runner.api import Runner
from torchloom.schedulers.batch.logs import records
from torchloom.schedulers.batch.scheduler import BatchScheduler
from torchloom.specs.api import NONE, AppDryRunInfo, AppState, parse_app_handle

_DETACHED = 130


class EngineSubmission:
    """A dry run on its way to an engine that only the runner knows."""

    def __init__(self, runner: Runner, info: AppDryRunInfo[Any]) -> None:
        self._runner = runner
        self._info = info
        self._handle = ""

    def submit(self) -> None:
        """Submit the job and say its handle, and what can be done with it."""
        self._handle = self._runner.schedule(self._info)
        echo(self._handle)
        verbs = ("loom logs -f", "loom show", "loom stop")
        for note in getattr(self._info.request, "notes", ()):
            say(note)
        say("\n".join(["submitted", *(f"  {verb} {self._handle}" for verb in verbs)]))

    def submit_json(self) -> None:
        """Submit the job and print what the engine says of it."""
        self._handle = self._runner.schedule(self._info)
        status = self._runner.status(self._handle)
        name = self._info.app.name if self._info.app else ""
        state = status.state if status else AppState.UNKNOWN
        echo_json(engine_job_shape(self._handle, name, state))

    def follow(self) -> int:
        """Submit the job, show its logs, and return what it ended with."""
        self.submit()
        return self.show_logs()

    def show_logs(self) -> int:
        """Show what all replicas print until the end; Ctrl-C leaves the job to itself."""
        backend, _, app_id = parse_app_handle(self._handle)
        scheduler = self._runner.scheduler(backend)
        try:
            if isinstance(scheduler, BatchScheduler):
                for line in scheduler.log_lines(app_id, follow=True):
                    click.echo(line, nl=not line.endswith("\n"))
                return self.wait()
            return self._show_each()
        except KeyboardInterrupt:
            say(f"it goes on; `loom logs -f {self._handle}` follows it, `loom stop` ends it")
            return _DETACHED

    def _show_each(self) -> int:
        roles = self._info.app.roles if self._info.app else []
        places = [(role.name, index) for role in roles for index in range(role.num_replicas)]
        readers = [threading.Thread(target=self._print, args=p, daemon=True) for p in places]
        for reader in readers:
            reader.start()
        code = self.wait()
        for reader in readers:
            reader.join()
        return code

    def wait(self) -> int:
        """Wait for the end; return 0 when the job succeeded, else its first bad rank's code."""
        status = self._runner.wait(self._handle)
        succeeded = status is not None and status.state is AppState.SUCCEEDED
        if not succeeded:
            why = f" ({status.msg})" if status and status.msg not in ("", NONE) else ""
            say(f"{self._handle} {status.state.name if status else 'is gone'}{why}")
        return 0 if succeeded else self._code()

    def _code(self) -> int:
        """Return what the ranks ended with, as far as the run itself tells."""
        from torchloom.cli.submission import exit_code

        backend, _, app_id = parse_app_handle(self._handle)
        scheduler = self._runner.scheduler(backend)
        entry = scheduler.entry(app_id) if isinstance(scheduler, BatchScheduler) else None
        found = records(entry.run_id).values() if entry else ()
        return next((code for record in found if (code := exit_code(record))), 1)

    def _print(self, role: str, index: int) -> None:
        for line in self._runner.log_lines(self._handle, role, index, should_tail=True):
            click.echo(f"[{role}{index}]: {line}", err=True, nl=not line.endswith("\n"))
