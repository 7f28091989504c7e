"""Ask what TorchX's names do; the same questions go to TorchX itself and to torchloom.

All is imported as `torchx...`: the real one when `record_torchx.py` asks, torchloom in the test.
"""

import dataclasses
import enum
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CFG = {"clusterName": "c", "k8s.context": "x"}
BASE = {"spec": {"cpu": "1", "tags": ["a"]}, "list": [1], "mode": "x", "rows": [{"id": 1, "a": 1}]}


class Color(enum.IntEnum):
    RED = 7


@dataclasses.dataclass
class Inner:
    color: Color = Color.RED
    nothing: str | None = None


@dataclasses.dataclass
class Outer:
    inner: Inner = dataclasses.field(default_factory=Inner)
    pairs: dict[str, Any] = dataclasses.field(default_factory=lambda: {"k": [Color.RED, (1, 2)]})
    queue: str = "q"


def ask() -> dict[str, Any]:
    """Return every answer, as JSON can hold it."""
    return {
        "overlays": overlays(),
        "opts": structured_opts(),
        "resources": resources(),
        "plugins": plugins(),
        "tracker": tracker(),
    }


def attempt(act: Callable[[], Any]) -> Any:
    """Return what an act gives, or the class of exception that callers may catch."""
    try:
        return act()
    except Exception as error:  # whatever it raises is the answer
        caught = [base.__name__ for base in type(error).__mro__]
        kinds = ("TypeError", "KeyError", "ValueError", "AttributeError")
        kinds = ("InvalidRunConfigException", *kinds, "NotImplementedError", "ModuleNotFoundError")
        return "raises " + next((kind for kind in kinds if kind in caught), caught[0])


def overlays() -> dict[str, Any]:
    module = import_module("torchx.specs.overlays")
    specs = import_module("torchx.specs")
    put, join, delete = module.PUT, module.JOIN, module.DEL
    cases: list[Any] = [
        {},
        {"new": {"a": [1]}},
        {"spec": {"mem": "2", "tags": ["b"]}},
        {"list": [2], "mode": 3},
        {"list": (2, 3), "new": (1,)},
        {"list": "x"},
        {"mode": [1]},
        {"mode": None, "spec": None},
        {"mode": (1,)},
        {put("list"): [9], put("spec"): {"only": 1}, put("mode"): "y", put("new"): 1},
        {delete("list"): None, delete("gone"): None, "spec": {delete("cpu"): None}},
        {join("rows", on="id"): [{"id": 1, "b": 2}, {"id": 2}, {"c": 3}]},
        {join("new", on="id"): [{"id": 1}]},
        {join("mode", on="id"): [{"id": 1}]},
        {join("list", on="id"): [{"id": 1}]},
        {join("rows", on="id"): {"id": 1}},
        {join("rows", on="id"): [1]},
        {join("rows", on=""): [{"id": 1}]},
        {"__join__:rows": [{"id": 1}]},
        {put("list"): [1], "list": [2]},
        {"list": [2], put("list"): [1]},
    ]
    stored: list[list[Any]] = [
        [{"a": {"x": 1}}, {"a": {"y": 2}}],
        [{"a": [1]}, {"a": [2]}],
        [{put("a"): [1]}, {put("a"): [2]}],
        [{put("a"): [1]}, {"a": [2]}],
        [{"a": [1]}, {put("a"): [2]}],
        [{"a": 1}, {delete("a"): None}],
        [{delete("a"): None}, {"a": 1}],
        [{join("a", on="id"): [{"id": 1}]}, {join("a", on="id"): [{"id": 1, "x": 1}, {"id": 2}]}],
        [{"a": [{"id": 1}]}, {join("a", on="id"): [{"id": 1, "x": 1}]}],
        [{join("a", on="id"): [{"id": 1}]}, {join("a", on="k"): [{"k": 1}]}],
        [{"s": {put("a"): 1}}, {"s": {delete("a"): None}}],
        [Outer()],
        [{"x": Outer(queue="z"), "y": Color.RED}],
        [Outer(pairs={"k": object()})],  # type: ignore[dict-item]
        [Outer(pairs={1: 2})],  # type: ignore[dict-item]
        [Outer],
        [[1]],
        [{"a": {"x": 1}}, {"a": [1]}],
    ]
    metadatas: list[Any] = [
        {},
        {"k8s": {"V1Pod": {"a": 1}}},
        {"k8s": {"a": 1}},
        {"k8s": {"A": {"x": 1}, "B": {"y": 1}}},
        {"k8s": {"A": {"x": 1}}},
        {"k8s": {"__torchx_overlays__": True, "A": {"x": 1}}},
        {"k8s": {"V1Pod": 3}},
        {"k8s": 3},
        {"k8s": {}},
    ]
    files = [
        '{"V1Pod": {"a": 1}}',
        "V1Pod:\n  a: !!python/tuple [1, 2]\n",
        "[1]",
        "a: [",
        "V1Pod: 3",
    ]
    reserved = (specs.Role("r", ""), "ns", "__torchx_overlays__", {})
    blocked: dict[str, Any] = {"blocklist": ["env"], "overlay_name": "Pod"}

    def applied(overlay: Any) -> Any:
        base = json.loads(json.dumps(BASE))
        module.apply_overlay(base, overlay)
        return base

    def accumulated(steps: list[Any]) -> Any:
        role = specs.Role("r", "")
        for step in steps:
            module.set_overlay(role, "ns", "K", step)
        return role.metadata

    def got(metadata: Any, **options: Any) -> Any:
        role = specs.Role("r", "", metadata=json.loads(json.dumps(metadata)))
        return module.get_overlay(role, "k8s", "V1Pod", **options)

    def of_file(text: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "overlay")
            file.write_text(text)
            return [got({"k8s": str(file)}), got({"k8s": f"file://{file}"})]

    def of_spec() -> Any:
        spec = module.OverlaySpec("k8s", "V1Pod", blocklist=("env",))
        role = specs.Role("r", "")
        refused = attempt(lambda: spec.set(role, {put("env"): {}}))
        spec.set(role, {"a": 1})
        return [refused, spec.get(role), module.get_overlay(role, "k8s", "V1Pod"), role.metadata]

    def kept(value: str) -> Any:
        app = specs.AppDef("a", [], {"k8s": value})
        module.set_overlay(app, "k8s", "V1Pod", {"b": 1})
        return app.metadata

    return {
        "keys": [put("a"), join("a", on="b"), delete("a")],
        "apply": [attempt(lambda case=case: applied(case)) for case in cases],  # type: ignore[misc]
        "set": [attempt(lambda steps=steps: accumulated(steps)) for steps in stored],  # type: ignore[misc]
        "get": [attempt(lambda each=each: got(each)) for each in metadatas],  # type: ignore[misc]
        "get_nested": [got(each, flat_fallback=False) for each in metadatas],
        "files": [attempt(lambda text=text: of_file(text)) for text in files],  # type: ignore[misc]
        "spec": of_spec(),
        "replaced": kept("text"),
        "reserved": attempt(lambda: module.set_overlay(*reserved)),
        "valid": [
            attempt(lambda: module.validate_overlay({"env": 1}, **blocked)),
            attempt(lambda: module.validate_overlay({put("env"): 1}, **blocked)),
            attempt(lambda: module.validate_overlay({"other": 1}, **blocked)),
            attempt(
                lambda: module.validate_overlay({"b": 1}, forbidden_keys={"b"}, suggestion="x")
            ),
        ],
    }


def structured_opts() -> dict[str, Any]:
    made = option_classes()
    cfgs: list[Any] = [
        {"cluster_name": "c"},
        {"clusterName": "c", "k8s.context": "x", "k8s.nameSpace": "n"},
        {"cluster_name": "c", "clusterName": "d"},
        {"cluster_name": "c", "clusterName": "c", "mail-user": "m", "numRetries": 5},
        {"cluster_name": "c", "mail_user": "m", "unknown": [1], "k8s.other": 2},
        {},
    ]

    def read(cfg: Any) -> Any:
        opts = made.Opts.from_cfg(cfg)
        return [dict(opts), len(opts), repr(opts).partition("(")[2], opts.k8s is None]

    def looked(key: str) -> Any:
        opts = made.Opts("c", k8s=made.Group("x"))
        return [attempt(lambda: opts[key]), key in opts, opts.get(key, "none")]

    options = made.Opts.as_runopts()
    keys = ["cluster_name", "clusterName", "mail-user", "mail_user", "k8s.context", "k8s", "get"]
    keys += ["numRetries", "_extra_cfg", "k8s.nope", "nope.context"]
    return {
        "runopts": repr(options),
        "fields": [[key, str(one.opt_type), one.default, one.is_required] for key, one in options],
        "helps": [[key, one.help] for key, one in options],
        "read": [attempt(lambda cfg=cfg: read(cfg)) for cfg in cfgs],  # type: ignore[misc]
        "looked": [looked(key) for key in keys],
        "merged": made.Opts("a") | made.Opts("b", num_retries=9),
        "equal": made.Opts("a") == made.Opts("a"),
        "typed": typed_scheduler(made),
    }


def option_classes() -> Any:
    """Return option classes as a package of TorchX's users declares them."""
    from dataclasses import dataclass, field

    base: Any = import_module("torchx.schedulers.api").StructuredOpts

    @dataclass
    class Group(base):  # type: ignore[misc]
        context: str
        """where it runs"""

        name_space: str | None = None

    @dataclass
    class Opts(base):  # type: ignore[misc]
        cluster_name: str
        """Name of the "cluster"."""

        k8s: Group | None = None  # type: ignore[valid-type]
        tags: list[str] | None = None
        env: dict[str, str] | None = field(default_factory=dict)
        mail_user: str | None = field(default=None, metadata={"cfg_key": "mail-user"})
        """
        who hears of it
        """

        num_retries: int = 3
        is_quiet: bool = False
        _private: int = 1

    Opts.__annotations__["k8s"] = Group | None
    return SimpleNamespace(Opts=Opts, Group=Group)


def typed_scheduler(made: Any) -> Any:
    api: Any = import_module("torchx.schedulers.api")
    specs: Any = import_module("torchx.specs")

    class Typed(api.Scheduler[made.Opts]):  # type: ignore[misc,name-defined]
        def _run_opts(self) -> Any:
            return made.Opts.as_runopts()

        def _submit_dryrun(self, app: Any, cfg: Any) -> Any:
            return specs.AppDryRunInfo(f"{type(cfg).__name__} {cfg.cluster_name}", str)

        def schedule(self, dryrun_info: Any) -> str:
            return "id"

        def describe(self, app_id: str) -> Any:
            return None

        def list(self, cfg: Any = None) -> Any:
            return []

        def _cancel_existing(self, app_id: str) -> None: ...

    role = specs.Role("r", "", entrypoint="e", resource=specs.Resource(1, 0, 1))
    runner: Any = import_module("torchx.runner").Runner(
        "s",
        scheduler_factories={"local_dir": lambda session_name, **_: Typed("typed", session_name)},
    )
    info = runner.dryrun(specs.AppDef("a", [role]), "local_dir", CFG)
    return [
        info.request,
        type(info.cfg).__name__,
        info.cfg["cluster_name"],
        info.app.roles[0].entrypoint,
        repr(info),
        runner.schedule(info),
    ]


def resources() -> dict[str, Any]:
    specs: Any = import_module("torchx.specs")
    aws: Any = import_module("torchx.specs.named_resources_aws")
    constants = ("EFA_DEVICE", "NEURON_DEVICE", "K8S_ITYPE", "MEM_TAX", "GiB")
    type_of = aws.instance_type_from_resource
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        without = type_of(specs.Resource(1, 0, 1))
    return {
        "named": {
            name: dataclasses.asdict(specs.resource(h=name)) for name in specs.named_resources
        },
        "functions": {
            name: dataclasses.asdict(getattr(aws, name)())
            for name in (each.replace(".", "_").replace("-", "_") for each in aws.NAMED_RESOURCES)
        },
        "constants": {name: getattr(aws, name) for name in constants},
        "types": [
            type_of(aws.aws_t3_medium()),
            without,
            [each.category.__name__ for each in caught],
        ],
        "unknown": attempt(lambda: specs.resource(h="aws_p5.48xlarg")),
    }


def plugins() -> dict[str, Any]:
    module: Any = import_module("torchx.plugins")
    registry: Any = module.registry()
    specs: Any = import_module("torchx.specs")
    here = sys.modules[__name__]
    before = set(vars(here))

    def host(fractional: float = 1.0) -> Any:
        return specs.Resource(int(64 * fractional), int(8 * fractional), int(65536 * fractional))

    register = module.register
    options = {"aliases": ["big"], "fractionals": module.powers_of_two_gpus}
    made = register.named_resource(name="host8", **options)(host)
    mem = module.halve_mem_down_to(minGiB=16)
    marked = register.scheduler(name="mine")(lambda: None)
    added = sorted(set(vars(here)) - before - {"NAMED_RESOURCES"})
    answers = {
        "types": {each.name: each.value for each in module.PluginType},
        "fractions": [getattr(module, name) for name in ("WHOLE", "HALF", "QUARTER", "EIGHTH")],
        "sixteenth": module.SIXTEENTH,
        "tags": [module.resource_tags.RESOURCE_NAME, module.resource_tags.IS_FRACTIONAL],
        "added": added,
        "table": sorted(vars(here)["NAMED_RESOURCES"]),
        "made": {name: dataclasses.asdict(vars(here)[name]()) for name in added},
        "base": dataclasses.asdict(made()),
        "marked": [marked._plugin_type, marked._plugin_name, made._plugin_name],
        "default": register.tracker()(option_classes)._plugin_name,
        "event": str(register.event_handler()._type),
        "gpus": [
            attempt(lambda count=count: module.powers_of_two_gpus(specs.Resource(1, count, 1)))  # type: ignore[misc]
            for count in (8, 1, 0, 6)
        ],
        "memory": [
            attempt(lambda size=size: mem(specs.Resource(1, 0, size)))  # type: ignore[misc]
            for size in (65536, 98304, 40960, 1000, 0, 71680)
        ],
        "twice": attempt(lambda: register.named_resource(name="host8")(host)),
        "taken": attempt(lambda: register.named_resource(name="plugins")(host)),
        "error": dataclasses.asdict(module.RegistrationError("m", "e")),
        "registry": [
            sorted(name for name in dir(registry) if not name.startswith("_")),
            sorted(registry.to_dict()),
            registry.errors,
            registry.load_errors(),
            registry is module.registry(),
            sorted(each.name for each in registry.info()),
        ],
    }
    for name in set(vars(here)) - before:
        delattr(here, name)
    del option_classes._plugin_type, option_classes._plugin_name  # type: ignore[attr-defined]
    return answers


def tracker() -> dict[str, Any]:
    api: Any = import_module("torchx.tracker.api")
    backend: Any = import_module("torchx.tracker.backend.fsspec")
    top: Any = import_module("torchx.tracker")
    one, two = "local://torchx/a b", "slurm://s/2"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "root")
        root.mkdir()
        config = Path(name, "config")

        def made(text: str) -> Any:
            config.write_text(text)
            return backend.create(str(config))

        kept = made(f"# kept here\nprotocol=file\nroot_path={root}\nauto_mkdir=1\n")
        run = api.AppRun(one, [kept])
        run.add_metadata(lr=0.1, name="x")
        run.add_metadata(lr=0.2, deep={"a": [1]})
        run.add_artifact("model", "/m.pt", {"step": 3})
        run.add_artifact("log", "/l")
        api.AppRun(two, [kept]).add_source(one, "model")
        api.AppRun(two, [kept]).add_source(one, "data")
        api.AppRun(two, [kept]).add_source(one, "data")
        api.AppRun(two, [kept]).add_source("s3://else")
        empty = api.AppRun("none", [])
        empty.add_metadata(a=1)
        os.environ.update(
            TORCHX_TRACKERS="fsspec,no_such_tracker",
            TORCHX_TRACKER_FSSPEC_CONFIG=str(config),
            TORCHX_JOB_ID="local://s/env",
            TORCHX_PARENT_RUN_ID=one,
        )
        from_env = top.app_run_from_env()
        answers = {
            "metadata": [kept.metadata(one), kept.metadata(two)],
            "artifacts": {key: dataclasses.asdict(e) for key, e in kept.artifacts(one).items()},
            "sources": sorted(map(str, map(dataclasses.astuple, kept.sources(two)))),
            "filtered": [dataclasses.astuple(e) for e in kept.sources(two, "data")],
            "run_sources": sorted(
                f"{e.parent.id} {e.artifact_name}" for e in api.AppRun(two, [kept]).sources()
            ),
            "run_ids": sorted(kept.run_ids()),
            "of_parent": sorted(kept.run_ids(parent_run_id=one)),
            "lineage": attempt(lambda: kept.lineage(two) and None),
            "empty": [list(empty.sources()), empty.job_id()],
            "environment": [
                from_env.id,
                len(list(from_env.backends)),
                from_env is api.AppRun.run_from_env(),
                api.tracker_config_env_var_name("my_one"),
                [e.parent.id for e in from_env.sources()],
            ],
            "files": sorted(
                str(file.relative_to(root).parent) for file in root.rglob("*") if file.is_file()
            ),
            "bad": [
                attempt(lambda text=text: made(text))  # type: ignore[misc]
                for text in ("", "protocol=file\n", f"protocol=file\nroot_path={root}\na.=1\n")
            ],
            "classes": [
                api.TrackerSource("a", None) == api.TrackerSource("a", None),
                dataclasses.asdict(api.TrackerArtifact("a", "b", None)),
                [field.name for field in dataclasses.fields(api.AppRunTrackableSource)],
                sorted(api.TrackerBase.__abstractmethods__),
            ],
        }
        for key in [key for key in os.environ if key.startswith("TORCHX_")]:
            del os.environ[key]
    api.AppRun.run_from_env.cache_clear()
    return answers
