"""One rank of a ready-made training: `python -m torchloom.worker.train [JOB.yaml]`.

The job is read from the file, else as JSON from the variable LOOM_JOB_SPEC. Any launcher may start
several ranks. Exit code 0: trained to the end, or until the job was stopped. 1: it failed. 2: the
job is invalid, and standard error names what to change.
"""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchloom.errors import Failure, LoomError, UserError, require_extra
from torchloom.specs.exceptions import SpecError
from torchloom.specs.framework import LIMITS
from torchloom.specs.jobspec import JobSpec
from torchloom.specs.serialize import load_job, read_spec
from torchloom.worker import environment
from torchloom.worker.environment import JOB_SPEC_VARIABLE
from torchloom.worker.smoke import SmokeNeedsTorch
from torchloom.worker.train.hyperparameters import check_job


class NotFinite(Failure):
    """The training ended with a loss that is not finite."""

    code = "loss_not_finite"

    def __init__(self) -> None:
        remedy = (
            "lower lr, set clip, or look at the data; `loom show --events` has the step it began in"
        )
        super().__init__(f"the loss is not finite: {remedy}")


def main(words: Sequence[str], env: Mapping[str, str]) -> int:
    """Train one job; rank 0 prints a summary."""
    try:
        return _train(_job(words, env))
    except LoomError as error:
        sys.stderr.write(f"loom train: {error}\n")
        return error.exit_code


def _train(spec: JobSpec) -> int:
    check_job(spec)  # an invalid job is reported before torch is imported
    if importlib.util.find_spec("torch") is None:
        raise SmokeNeedsTorch()
    limits = LIMITS[spec.framework]
    require_extra(f"framework {spec.framework}", limits.package, limits.extra)
    from torchloom.worker import dist
    from torchloom.worker.train.loop import train

    summary = train(spec)
    rank = dist.get_rank()
    dist.cleanup()
    if rank == 0:
        sys.stdout.write(f"{summary}\n")
        sys.stdout.flush()
    if not summary.is_finite:
        raise NotFinite()
    return 0


def _job(words: Sequence[str], env: Mapping[str, str]) -> JobSpec:
    if len(words) > 1:
        raise UserError(f"one job at a time: got {len(words)} arguments, give one file")
    if words:
        spec = read_spec(Path(words[0]))
    elif env.get(JOB_SPEC_VARIABLE):
        spec = load_job(env[JOB_SPEC_VARIABLE], "json")
    else:
        raise UserError(f"no job: give a file, as in examples/jobs, or set {JOB_SPEC_VARIABLE}")
    if not isinstance(spec, JobSpec):
        raise SpecError("roles", "this is an app: ready-made training takes a job, with a model")
    return spec


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], environment.variables()))
