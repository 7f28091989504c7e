"""Read checkpoints in a subprocess that imports torch; the CLI itself never does."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchloom import settings
from torchloom.errors import Failure, UserError

if TYPE_CHECKING:
    from torchloom.launch.records.record import RunRecord

_MODULE = "torchloom.worker.inspecting"


class NoTorchForTensors(UserError):
    """Tensors cannot be read without torch."""

    code = "no_torch"

    def __init__(self, tried: str) -> None:
        super().__init__(
            f"reading tensors needs torch, which {tried} does not have; "
            "pip install 'torchloom[torch]' adds it"
        )


def ask(what: str, record: "RunRecord", facts: Mapping[str, Any]) -> Any:
    """Return the reply of `torchloom.worker.inspecting`; its errors are raised here."""
    python = _interpreter(record)
    done = subprocess.run(
        [python, "-m", _MODULE, what],
        input=json.dumps(facts),
        stdout=subprocess.PIPE,
        text=True,
        env=settings.environment(),
    )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        why = f"code {done.returncode}" if done.returncode >= 0 else f"signal {-done.returncode}"
        raise Failure(f"the process that reads the checkpoint ended with {why}") from None
    if "error" in answer:
        raise _raised(answer, python)
    return answer["answer"]


def _raised(answer: Mapping[str, Any], python: str) -> Exception:
    if answer["code"] == "no_torch":
        return NoTorchForTensors(python)
    error = (UserError if answer["exit_code"] == 2 else Failure)(answer["error"])
    error.code = answer["code"]
    return error


def _interpreter(record: "RunRecord") -> str:
    """Return a Python that has torch: this one, else the one that the job used."""
    if importlib.util.find_spec("torch") is not None:
        return sys.executable
    from torchloom.launch.keeper.python_command import PythonCommand
    from torchloom.launch.records.folder import RunFolder

    try:
        request = RunFolder.named(record.id).request()
    except (OSError, ValueError, KeyError, TypeError):
        raise NoTorchForTensors(sys.executable) from None
    for role in request.roles:
        for replica in role.replicas:
            if PythonCommand.parse(replica.argv) is not None:
                return replica.argv[0]
    raise NoTorchForTensors(sys.executable)
