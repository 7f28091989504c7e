"""A job becomes an app that any engine takes."""

import json

from torchloom.components.job import app_of
from torchloom.specs.jobspec import JobSpec, Policy, Recovery, Resources
from torchloom.specs.jobspec_shape import job_from_dict


def test_a_script_with_workers_is_launched_by_our_agent() -> None:
    spec = JobSpec(
        "train",
        script="train.py",
        args=("--lr", "$x"),
        env={"A": "$b"},
        resources=Resources(4, cpus_per_worker=2, gpus_per_worker=1, memory_mb_per_worker=10),
        recovery=Recovery(attempts=3),
        project="gpt",
        tags=("a", "b"),
    )

    app = app_of(spec, "/bin/python")

    (role,) = app.roles
    assert (app.name, role.entrypoint, role.num_replicas, role.max_retries) == (
        "train",
        "loom",
        1,
        3,
    )
    assert role.args == ["launch", "-n", "4", "--", "/bin/python", "train.py", "--lr", "$$x"]
    assert (role.resource.cpu, role.resource.gpu, role.resource.memMB) == (8, 4, 40)
    assert role.env["A"] == "$$b"
    assert app.metadata == {"project": "gpt", "tags": "a,b"}


def test_a_module_a_command_and_a_ready_made_training_are_what_runs() -> None:
    module = app_of(JobSpec("a", module="pkg.train", args=("x",)), "python")
    command = app_of(JobSpec("a", command=("bash", "train.sh"), args=("x",)), "python")
    model = app_of(JobSpec("a", model="mlp", dataset="synthetic"), "python")

    programs = [app.roles[0].args[4:] for app in (module, command, model)]
    assert programs == [
        ["python", "-m", "pkg.train", "x"],
        ["bash", "train.sh", "x"],
        ["python", "-m", "torchloom.worker.train"],
    ]


def test_the_workers_have_the_whole_job() -> None:
    spec = JobSpec("a", script="x.py", hyperparameters={"note": "$5"})

    app = app_of(spec)

    told = app.roles[0].env["LOOM_JOB_SPEC"].replace("$$", "$")
    assert job_from_dict(json.loads(told)) == spec


def test_a_job_that_is_to_fail_is_not_tried_again() -> None:
    spec = JobSpec("a", script="x.py", recovery=Recovery(Policy.FAIL, attempts=3))

    assert app_of(spec).roles[0].max_retries == 0
