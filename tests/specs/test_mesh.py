"""The mesh of a strategy: its arithmetic, and what does not fit is refused by field."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.specs import SpecError
from torchloom.specs.jobspec import Distributed, Mesh, Strategy
from torchloom.specs.jobspec_shape import job_from_dict
from torchloom.specs.mesh import coordinates, data_share, mesh_of, servers_of, sizes_of

SIZES = st.integers(1, 5)


def job(strategy: str, workers: int = 4, model: str = "mlp", **more: Any) -> dict[str, Any]:
    """Return a job; `mesh` and `sequence_parallel` go where they belong."""
    distributed = {"strategy": strategy}
    own = ("mesh", "sequence_parallel", "schedule", "microbatches", "servers", "push", "staleness")
    distributed |= {name: more.pop(name) for name in own if name in more}
    dataset = "text:words.txt" if model == "transformer" else "synthetic"
    program = {"model": model, "dataset": dataset} if model else {}
    found = {"name": "a", "resources": {"workers": workers}, "distributed": distributed}
    return {**found, **program, **more}


@pytest.mark.parametrize(
    ("strategy", "workers", "mesh"),
    [
        ("data_parallel", 3, Mesh(dp_replicate=3)),
        ("fsdp", 4, Mesh(dp_shard=4)),
        ("fsdp", 1, Mesh()),
        ("tensor_parallel", 4, Mesh(tp=4)),
        ("hsdp", 6, Mesh(dp_replicate=2, dp_shard=3)),
        ("hybrid", 8, Mesh(dp_shard=4, tp=2)),
        ("pipeline_parallel", 3, Mesh(pp=3)),
        ("parameter_server", 3, Mesh(dp_replicate=3)),
    ],
)
def test_without_a_mesh_a_strategy_takes_all_workers(
    strategy: str, workers: int, mesh: Mesh
) -> None:
    assert mesh_of(Distributed(Strategy(strategy)), workers) == mesh


@pytest.mark.parametrize(
    ("workers", "given", "servers"), [(1, None, 1), (4, None, 1), (9, None, 2), (4, 3, 3)]
)
def test_there_is_a_parameter_server_for_four_workers_and_at_least_one(
    workers: int, given: int | None, servers: int
) -> None:
    chosen = Distributed(Strategy.PARAMETER_SERVER, servers=given)

    assert servers_of(chosen, workers) == servers
    assert servers_of(Distributed(Strategy.FSDP), workers) == 0


@given(st.builds(Mesh, SIZES, SIZES, SIZES, SIZES))
def test_each_worker_has_a_place_of_its_own_and_shares_samples_with_its_group(
    mesh: Mesh,
) -> None:
    stage = mesh.dp_replicate * mesh.dp_shard * mesh.tp  # ranks of one stage
    world = mesh.pp * stage
    places = [coordinates(mesh, rank) for rank in range(world)]
    shares = [data_share(mesh, rank) for rank in range(world)]

    assert len({tuple(place.values()) for place in places}) == world
    assert all(place[name] < size for place in places for name, size in sizes_of(mesh).items())
    assert shares == [(rank % stage // mesh.tp, stage // mesh.tp) for rank in range(world)]


@pytest.mark.parametrize(
    ("told", "path", "problem"),
    [
        (
            job("fsdp", mesh={"dp_shard": 3}),
            "distributed.mesh",
            "dp_shard 3 is 3 workers, and the job has 4: change a size, or resources.workers",
        ),
        (
            job("data_parallel", mesh={}),
            "distributed.mesh",
            "every size 1 is 1 workers, and the job has 4: change a size, or resources.workers",
        ),
        (
            job("fsdp", mesh={"dp_shard": 2, "tp": 2}),
            "distributed.mesh.tp",
            "is 2, and fsdp divides the workers by dp_shard only: remove it, or take the strategy"
            " hybrid",
        ),
        (
            job("hsdp", workers=3),
            "distributed.mesh",
            "missing: hsdp takes an even number of workers without a mesh, 4 or more, not 3; give"
            " dp_replicate and dp_shard",
        ),
        (
            job("hybrid", workers=2),
            "distributed.mesh",
            "missing: hybrid takes an even number of workers without a mesh, 4 or more, not 2;"
            " give pp and dp_replicate and dp_shard and tp",
        ),
        (job("fsdp", mesh={"dp_shard": 0}), "distributed.mesh.dp_shard", None),
        (job("fsdp", mesh={"cp": 4}), "distributed.mesh.cp", None),
        (
            job("fdsp"),
            "distributed.strategy",
            "expected one of DATA_PARALLEL, FSDP, HSDP, TENSOR_PARALLEL, PIPELINE_PARALLEL,"
            " HYBRID, PARAMETER_SERVER, got 'fdsp'",
        ),
        (
            job("parameter_server", model="", script="a.py"),
            "distributed.strategy",
            "parameter_server trains ready-made models: give model and dataset, or another"
            " strategy for a program",
        ),
        (
            job("parameter_server", servers=5),
            "distributed.servers",
            "5 servers for 4 workers: give as many at most",
        ),
        (
            job("parameter_server", staleness=2),
            "distributed.staleness",
            "is for push async: remove it, or give push: async",
        ),
        (
            job("parameter_server", push="sometimes"),
            "distributed.push",
            "expected one of SYNC, ASYNC, got 'sometimes'",
        ),
        (
            job("parameter_server", mesh={"dp_shard": 4}),
            "distributed.mesh.dp_shard",
            "is 4, and parameter_server divides the workers by dp_replicate only: remove it, or"
            " take the strategy hybrid",
        ),
        (
            job("parameter_server", hyperparameters={"clip": 1.0}),
            "hyperparameters.clip",
            "no server has all gradients, whose norm it limits: leave it out",
        ),
        (
            job("parameter_server", knobs={"clip": 1.0}),
            "knobs.clip",
            "no server has all gradients, whose norm it limits: leave it out",
        ),
        (
            job("parameter_server", hyperparameters={"amp": "fp16"}),
            "hyperparameters.amp",
            "fp16 scales gradients, which servers do not: take bf16, or off",
        ),
        (
            job("parameter_server", recovery={"policy": "live"}),
            "recovery.policy",
            "live cannot carry what servers hold: take restart or fail",
        ),
        (
            job("parameter_server", elastic={"min": 2, "max": 4}),
            "elastic",
            "parameter servers have a fixed number of workers: remove it",
        ),
        (
            job("fsdp", servers=1),
            "distributed.servers",
            "is for the strategy parameter_server: remove it",
        ),
        (
            job("tensor_parallel", hyperparameters={"hidden": 30}),
            "hyperparameters.hidden",
            "30 units of a hidden layer cannot be divided among tp 4: give a multiple of 4",
        ),
        (
            job("tensor_parallel", workers=3, model="transformer"),
            "hyperparameters.heads",
            "4 heads cannot be divided among tp 3: give a multiple of 3",
        ),
        (
            job(
                "tensor_parallel",
                model="transformer",
                sequence_parallel=True,
                hyperparameters={"context": 30},
            ),
            "hyperparameters.context",
            "30 bytes of a window cannot be divided among tp 4: give a multiple of 4",
        ),
        (
            job("tensor_parallel", model="cnn"),
            "model",
            "cnn has no plan for tensor parallelism: take mlp or transformer, or fsdp",
        ),
        (
            job("tensor_parallel", sequence_parallel=True),
            "distributed.sequence_parallel",
            "mlp has no sequences: remove it, or take the model transformer",
        ),
        (
            job("fsdp", sequence_parallel=True),
            "distributed.sequence_parallel",
            "divides what tensor parallelism leaves whole: give the mesh a tp of 2 or more",
        ),
        (
            job("pipeline_parallel", model="transformer"),
            "hyperparameters.layers",
            "transformer has 2 layers for 4 stages: give 4 or more",
        ),
        (
            job("pipeline_parallel", 2, schedule="interleaved"),
            "hyperparameters.layers",
            "mlp has 3 layers for 4 stages: give 3 or more",
        ),
        (
            job("pipeline_parallel", 2, microbatches=3),
            "distributed.microbatches",
            "3 cannot be dealt to 2 stages by 1f1b: give a multiple of 2",
        ),
        (
            job("pipeline_parallel", 2, hyperparameters={"batch_size": 5}),
            "hyperparameters.batch_size",
            "5 samples cannot be cut into 2 microbatches: give a multiple of 2",
        ),
        (
            job("pipeline_parallel", model="cnn"),
            "model",
            "cnn has no plan for a pipeline: take mlp or transformer, or fsdp",
        ),
        (
            job("fsdp", schedule="gpipe"),
            "distributed.schedule",
            "is for a pipeline: give the mesh a pp of 2 or more",
        ),
        (job("pipeline_parallel", 2, schedule="zigzag"), "distributed.schedule", None),
        (
            job("pipeline_parallel", 2, hyperparameters={"amp": "fp16"}),
            "hyperparameters.amp",
            "fp16 scales losses, which a pipeline does not: take bf16, or off",
        ),
        (
            job("hsdp", recovery={"policy": "live"}),
            "recovery.policy",
            "live cannot carry the shards of hsdp: take restart or fail",
        ),
        (
            job("fsdp", elastic={"min": 2, "max": 4}),
            "elastic",
            "the mesh of fsdp has a fixed number of workers: remove it",
        ),
        (
            job("fsdp", compression={"enabled": True, "algorithm": "topk"}),
            "compression.enabled",
            "is for data_parallel, and the job has fsdp: turn it off",
        ),
        (
            job(
                "pipeline_parallel",
                compression={"enabled": True, "sync_every": 4},
                hyperparameters={"layers": 4},
            ),
            "compression.enabled",
            "is for data_parallel, and the job has pipeline_parallel: turn it off",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_field(
    told: dict[str, Any], path: str, problem: str | None
) -> None:
    with pytest.raises(SpecError) as refused:
        job_from_dict(told)

    assert refused.value.path == path
    assert problem is None or refused.value.problem == problem


def test_a_program_may_have_any_mesh_that_is_its_workers() -> None:
    told = job(
        "hybrid", 8, model="", script="a.py", mesh={"dp_replicate": 2, "dp_shard": 2, "tp": 2}
    )

    assert job_from_dict(told).distributed.mesh == Mesh(2, 2, 2)
