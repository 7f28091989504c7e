"""Jobs as JSON and YAML: the public format whole there and back, and errors that name the field."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from torchloom.specs import SpecError
from torchloom.specs.jobspec import (
    Backend,
    Checkpointing,
    Distributed,
    Elastic,
    JobSpec,
    Knob,
    Mode,
    Policy,
    Recovery,
    Resources,
)
from torchloom.specs.jobspec_shape import JOB, job_from_dict, job_to_dict
from torchloom.specs.serialize import load_job, load_spec, read_spec

from . import hostile

DEMO = {
    "name": "mnist-ddp-demo",
    "framework": "pytorch",
    "model": "mlp",
    "dataset": "synthetic",
    "resources": {"workers": 4, "gpus_per_worker": 0},
    "distributed": {"strategy": "data_parallel", "backend": "gloo"},
    "hyperparameters": {"batch_size": 64, "lr": 0.001, "epochs": 2},
    "checkpointing": {"enabled": True, "every_n_steps": 200, "store": "local"},
    "compression": {"enabled": False},
}


def compressed(algorithm: str, **more: object) -> dict[str, object]:
    return {"enabled": True, "algorithm": algorithm, **more}


SCRIPT = {"name": "train", "script": "train.py"}
TEXT = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), max_size=12)
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
JOBS = st.builds(
    JobSpec,
    name=NAMES,
    script=TEXT.filter(bool),
    args=st.lists(TEXT, max_size=3).map(tuple),
    env=st.dictionaries(st.sampled_from(["A", "PATH", "_x1"]), TEXT, max_size=3),
    resources=st.builds(
        Resources,
        workers=st.just(3),
        cpus_per_worker=st.integers(1, 99),
        gpus_per_worker=st.integers(0, 8),
        memory_mb_per_worker=st.integers(0, 2**40),
    ),
    distributed=st.builds(Distributed, backend=st.sampled_from([Backend.AUTO, Backend.GLOO])),
    hyperparameters=st.dictionaries(TEXT, PLAIN, max_size=3),
    checkpointing=st.builds(
        Checkpointing,
        enabled=st.booleans(),
        every_n_steps=st.none() | st.integers(1, 2**40),
        every_n_seconds=st.none() | st.floats(0.1, 1e6),
        store=st.sampled_from(["local", "/data/all of it", "~/kept", "s3://bucket", "s3://b.c/d"]),
        keep_last=st.integers(1, 99),
        keep_every=st.none() | st.integers(1, 99),
        best=st.none() | TEXT.filter(bool),
        mode=st.sampled_from(Mode),
    ),
    recovery=st.builds(
        Recovery,
        st.none() | st.sampled_from(Policy),
        st.none() | st.integers(0, 99),
        st.floats(0, 1e6),
    ),
    elastic=st.none() | st.builds(Elastic, st.integers(1, 3), st.integers(3, 9)),
    knobs=st.dictionaries(TEXT, st.builds(Knob, NUMBERS | TEXT | st.booleans()), max_size=2),
    seed=st.none() | st.integers(0, 2**63 - 1),
    priority=st.integers(-1000, 1000),
    max_workers=st.none() | st.integers(3, 100_000),
    scheduler=NAMES,
    options=st.dictionaries(TEXT, PLAIN, max_size=2),
    project=TEXT,
    tags=st.lists(TEXT, max_size=3).map(tuple),
)


def test_the_public_example_is_a_job() -> None:
    job = job_from_dict(DEMO)

    assert job == JobSpec(
        name="mnist-ddp-demo",
        model="mlp",
        dataset="synthetic",
        resources=Resources(workers=4),
        distributed=Distributed(backend=Backend.GLOO),
        hyperparameters={"batch_size": 64, "lr": 0.001, "epochs": 2},
        checkpointing=Checkpointing(enabled=True),
    )


def test_whoever_says_seconds_does_not_mean_the_usual_steps_as_well() -> None:
    def told(**checkpointing: object) -> Checkpointing:
        return job_from_dict({**DEMO, "checkpointing": checkpointing}).checkpointing

    assert told(every_n_seconds=60) == Checkpointing(every_n_steps=None, every_n_seconds=60.0)
    assert told(every_n_seconds=60, every_n_steps=5) == Checkpointing(False, 5, 60.0)
    assert told(best="accuracy", mode="max").mode is Mode.MAX
    assert told(enabled=True) == Checkpointing(enabled=True, every_n_steps=200)


def test_a_job_that_saves_is_started_again_three_times_unless_it_says_otherwise() -> None:
    def retries(**more: object) -> int:
        return job_from_dict({"name": "a", "script": "a.py", **more}).retries

    saves = {"checkpointing": {"enabled": True}}

    assert retries() == 0
    assert retries(**saves) == 3
    assert retries(**saves, recovery={"attempts": 0}) == 0
    assert retries(recovery={"attempts": 7}) == 7
    assert retries(**saves, recovery={"policy": "fail"}) == 0
    assert job_from_dict(DEMO).retries == 3


@settings(max_examples=100, deadline=None)
@given(JOBS)
def test_a_job_survives_text_whole(job: JobSpec) -> None:
    plain = job_to_dict(job)

    assert load_job(json.dumps(plain)) == job
    assert load_spec(json.dumps(plain)) == job


def test_what_omegaconf_holds_is_a_job_with_everything_looked_up() -> None:
    config = OmegaConf.create(
        {**SCRIPT, "hyperparameters": {"lr": 0.1, "warmup_lr": "${.lr}"}, "tags": ["a"]}
    )

    job = job_from_dict(config)

    assert job.hyperparameters == {"lr": 0.1, "warmup_lr": 0.1}
    assert job.tags == ("a",)


def test_what_omegaconf_cannot_look_up_is_named() -> None:
    config = OmegaConf.create({**SCRIPT, "project": "${nowhere}"})

    with pytest.raises(SpecError) as caught:
        job_from_dict(config)

    assert (caught.value.path, "nowhere" in caught.value.problem) == ("project", True)


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"script": ""}, "", "nothing to run: give one of model, script, module, command"),
        ({"module": "m"}, "module", "is given together with script"),
        ({"script": "", "model": "mlp"}, "dataset", "missing: a model needs one"),
        ({"dataset": "synthetic"}, "dataset", "is for a model"),
        ({"name": "a b"}, "name", "'a b' is not a name"),
        ({"name": 3}, "name", "put it in quotes if text is meant"),
        ({"framework": "caffe"}, "framework", "known: pytorch"),
        ({"resources": {"workers": 0}}, "resources.workers", "must be 1 to 100000, is 0"),
        ({"resources": {"worker": 4}}, "resources.worker", "did you mean 'workers'?"),
        ({"resources": {"workers": 8}, "max_workers": 4}, "resources.workers", "max_workers (4)"),
        ({"resources": {"workers": True}}, "resources.workers", "expected int, got True"),
        ({"elastic": {"min": 2, "max": 4}}, "elastic", "is 1, not within 2 to 4"),
        ({"elastic": {"min": 2}}, "elastic.max", "missing"),
        ({"distributed": {"backend": "nccl"}}, "distributed.backend", "nccl needs GPUs"),
        ({"distributed": {"strategy": "magic"}}, "distributed.strategy", "one of DATA_PARALLEL"),
        ({"compression": {"enabled": True}}, "compression.algorithm", "or sync_every"),
        ({"compression": {"algorithm": "zip"}}, "compression.algorithm", "one of FP16, BF16"),
        ({"compression": {"k": 1.5}}, "compression.k", "at most 1"),
        ({"compression": compressed("topk", rank=2)}, "compression.rank", "option of powersgd"),
        ({"compression": compressed("int8", k=0.1)}, "compression.k", "option of topk"),
        ({"compression": compressed("powersgd", warmup_steps=1)}, "compression.warmup_steps", "2"),
        ({"compression": compressed("topk", outer_lr=1)}, "compression.outer_lr", "sync_every"),
        (
            {"compression": compressed("topk", sync_every=4)},
            "compression.sync_every",
            "weights instead of gradients",
        ),
        (
            {"compression": compressed("onebit"), "hyperparameters": {"amp": "fp16"}},
            "hyperparameters.amp",
            "take bf16, or off",
        ),
        (
            {
                "compression": {"enabled": True, "sync_every": 8},
                "recovery": {"policy": "live"},
            },
            "recovery.policy",
            "take restart or fail",
        ),
        ({"recovery": {"policy": "pray"}}, "recovery.policy", "one of LIVE, RESTART, SHRINK, FAIL"),
        ({"recovery": {"backoff": -1}}, "recovery.backoff", "not negative"),
        ({"env": {"A=B": "1"}}, "env['A=B']", "is not a variable's name"),
        ({"env": {"A": 1}}, "env.A", "put it in quotes"),
        ({"knobs": {"lr": {"value": 2, "max": 1}}}, "knobs.lr", "not within its own range"),
        ({"knobs": {"on": {"value": True, "max": 1}}}, "knobs.on", "a range is for numbers"),
        ({"seed": -1}, "seed", "must be 0 to"),
        ({"priority": 10**400}, "priority", "a number of some 401 digits"),
        ({"hyperparameters": {"lr": float("nan")}}, "hyperparameters.lr", "a finite number"),
        ({"args": ["a\0b"]}, "args[0]", "cannot be printed"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        job_from_dict({**SCRIPT, **change})

    assert caught.value.path == path
    assert words in caught.value.problem


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"name": "a", "name": "b", "script": "x.py"}', "name: is given twice"),
        ("name: a\nscript: x.py\nname: b\n", "name: is given twice"),
        ("name: !!python/object/apply:os.system [id]\nscript: x.py\n", "not YAML"),
        ("name: a\nscript: x.py\nhyperparameters:\n" + "  " + LAUGHS.replace("\n", "\n  "), "than"),
        ("name: a\nscript: x.py\nargs: &a [*a]\n", "args[0]"),
        ("[" * 100_000, "nested too deeply"),
        ('{"name": "a", "script": "' + "x" * (1 << 20) + '"}', "is too long"),
        ("name: a\nscript: x.py\nhyperparameters: {1: 2}\n", "hyperparameters[1]"),
        ("? [a, b]\n: c\n", "line 1: a key must be text"),
        ("just words", "expected a mapping"),
        ("", "expected a mapping"),
    ],
)
def test_hostile_text_is_refused_in_few_words(text: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(text)

    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_merge_of_yaml_may_be_overruled() -> None:
    text = (
        "name: a\nscript: x.py\nhyperparameters:\n  base: &b {lr: 1, wd: 2}\n  x: {<<: *b, lr: 3}\n"
    )

    job = load_job(text)

    assert job.hyperparameters["x"] == {"lr": 3, "wd": 2}


def test_the_documentation_names_every_field() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/job-spec.md").read_text()
    named = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    example = page.partition("```yaml\n")[2].partition("```")[0]

    assert {*JOB.fields, *Checkpointing.__slots__} <= set(named)
    assert load_job(example) == job_from_dict(DEMO)


HOSTILE = hostile.read_table()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_job_is_refused_by_its_field(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name].content)

    with pytest.raises(SpecError) as caught:
        read_spec(path)

    assert caught.value.path == HOSTILE[name].field
    assert len(caught.value.problem) > len("x")
    assert len(str(caught.value)) < 600
