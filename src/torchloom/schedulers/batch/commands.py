"""Run an engine's own commands with retries; errors contain what they printed."""

import time
from collections.abc import Callable, Sequence

from torchloom.errors import Failure, shorten

PATIENCE = 60.0  # seconds for one command
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # seconds between tries of a query without an answer
_LAST = 500  # letters of what a command printed

Sleep = Callable[[float], None]


class EngineMissing(Failure):
    """The engine's commands are not on this host."""

    code = "engine_missing"

    def __init__(self, engine: str, program: str) -> None:
        super().__init__(
            f"{engine} is not installed here: no {program} on PATH; run this on a login node of "
            f"the cluster (`loom plan -s {engine}` works anywhere)"
        )


class EngineRefused(Failure):
    """The engine refused, with a reason."""

    code = "engine_refused"

    def __init__(self, program: str, code: int, reason: str, printed: str = "") -> None:
        self.reason = reason
        self.printed = printed  # what it printed nevertheless
        super().__init__(f"{program}: {shorten(reason, _LAST) or f'exit code {code}'}")


class EngineCommands:
    """The commands of one engine as they are found on PATH."""

    def __init__(self, engine: str, sleep: Sleep = time.sleep) -> None:
        self._engine = engine
        self._sleep = sleep

    def run(self, argv: Sequence[str], stdin: str | None = None) -> str:
        """Run words and return what they printed; raise in the engine's own words."""
        import subprocess

        try:
            done = subprocess.run(
                list(argv),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
        except FileNotFoundError as error:
            raise EngineMissing(self._engine, argv[0]) from error
        except subprocess.TimeoutExpired as error:
            raise EngineRefused(argv[0], 1, f"no answer in {PATIENCE:.0f} s") from error
        if done.returncode:
            reason = _in_short(done.stderr or done.stdout)
            raise EngineRefused(argv[0], done.returncode, reason, done.stdout)
        return done.stdout

    def ask(self, argv: Sequence[str], is_silence: Callable[[str], bool]) -> str:
        """Ask again, with growing pauses, while the engine cannot be reached.

        `is_silence` decides by the text of an error whether the engine did not answer.
        """
        for pause in _PAUSES:
            try:
                return self.run(argv)
            except EngineRefused as error:
                if not is_silence(error.reason):
                    raise
            self._sleep(pause)
        return self.run(argv)


def _in_short(text: str) -> str:
    """Return what a command printed in one line, each sentence once."""
    lines = (line.strip() for line in text.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))
