"""One parameter server of a job: `python -m torchloom.worker.servers`.

The job is read as JSON from the variable LOOM_JOB_SPEC, the number of the server from RANK. It ends
with 0 when all workers are done, and with 1 if one is lost.
"""

import os
import sys

import torch

from torchloom.errors import LoomError, UserError
from torchloom.specs.jobspec import JobSpec
from torchloom.specs.serialize import load_job
from torchloom.worker import environment
from torchloom.worker.servers.frames import ServerSocket
from torchloom.worker.servers.server import ParameterServer, serve


def main() -> int:
    """Serve the workers of a job until they are done."""
    try:
        text = environment.text(environment.JOB_SPEC_VARIABLE)
        if not text:
            raise UserError(f"no job in {environment.JOB_SPEC_VARIABLE}: a job starts its servers")
        _serve(load_job(text, "json"))
    except LoomError as error:
        sys.stderr.write(f"loom server: {error}\n")
        return error.exit_code
    return 0


def _serve(spec: JobSpec) -> None:
    torch.set_num_threads(min(spec.resources.cpus_per_worker, os.cpu_count() or 1))
    is_local = environment.text("TORCHX_RANK0_HOST", "localhost") == "localhost"
    listener = ServerSocket(int(environment.text("RANK", "0")), is_local)
    serve(listener, ParameterServer(spec.resources.workers, spec.distributed.bound))


if __name__ == "__main__":
    sys.exit(main())
