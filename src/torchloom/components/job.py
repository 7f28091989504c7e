"""Make an app of a job: its program, or the ready-made training, under our own agent."""

import json
from dataclasses import replace

from torchloom.components.dist import loom
from torchloom.sealed import hide
from torchloom.specs.api import AppDef
from torchloom.specs.jobspec import JobSpec
from torchloom.specs.jobspec_shape import job_in_short
from torchloom.specs.mesh import servers_of
from torchloom.specs.role import Role

SPEC_VARIABLE = "LOOM_JOB_SPEC"
TRAINER = "torchloom.worker.train"
SERVERS = "torchloom.worker.servers"


def app_of(spec: JobSpec, python: str | None = None) -> AppDef:
    """Return the app of a job; the whole job is in its workers' environment as JSON."""
    each, words = spec.resources, (*spec.command, *spec.args)
    app = loom(
        *words,
        script=spec.script or None,
        m=TRAINER if spec.model else spec.module or None,
        name=f"{spec.project}/{spec.name}",
        cpu=each.workers * each.cpus_per_worker,
        gpu=each.workers * each.gpus_per_worker,
        memMB=each.workers * each.memory_mb_per_worker or -1,
        j=str(each.workers),
        env=_variables(spec),
        metadata=_labels(spec),
        max_retries=spec.retries,
        python=python,
    )
    app.name = spec.name
    if count := servers_of(spec.distributed, each.workers):
        app.roles.append(_servers(spec, app.roles[0], count, python))
    return app


def _servers(spec: JobSpec, workers: Role, count: int, python: str | None) -> Role:
    """Return the role of the parameter servers: they report nothing, and end with the workers."""
    each = spec.resources
    (role,) = loom(
        m=SERVERS,
        cpu=count * each.cpus_per_worker,
        memMB=count * each.memory_mb_per_worker or -1,
        j=str(count),
        env={**workers.env, "LOOM_ATTACH": "0"},
        max_retries=spec.retries,
        python=python,
    ).roles
    return replace(role, name="server")


def _variables(spec: JobSpec) -> dict[str, str]:
    """Return a job's variables; values arrive as written, so macros find no dollar in them."""
    shown = job_in_short(replace(spec, env=hide(spec.env)))  # ranks have secrets as variables
    found = {**spec.env, SPEC_VARIABLE: json.dumps(shown)}
    return {name: value.replace("$", "$$") for name, value in found.items()}


def _labels(spec: JobSpec) -> dict[str, str]:
    labels = {"project": spec.project, "group": spec.group, "tags": ",".join(spec.tags)}
    return {name: value for name, value in labels.items() if value}
