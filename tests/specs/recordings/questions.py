"""Ask an implementation of TorchX's specs what it does; both sides answer the same questions."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

DATACLASSES = (
    "AppDef",
    "AppStatus",
    "BindMount",
    "DeviceMount",
    "ReplicaStatus",
    "Resource",
    "Role",
    "RoleStatus",
    "VolumeMount",
    "Workspace",
    "runopt",
)
ENUMS = ("AppState", "MountType", "RetryPolicy")
OPTION_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "float": float,
    "int": int,
    "str": str,
    "list[str]": list[str],
    "List[str]": typing.List[str],  # noqa: UP006
    "dict[str,str]": dict[str, str],
    "Dict[str,str]": typing.Dict[str, str],  # noqa: UP006
}
CASTS = {
    "bool": [
        "true",
        "TRUE",
        "1",
        "yes",
        "on",
        "false",
        "0",
        "No",
        "off",
        "",
        "t",
        "maybe",
        " true",
    ],
    "float": ["1.5", "1e3", "nan", "", "x"],
    "int": ["1", "-7", " 12 ", "1_000", "1.0", "", "0x10"],
    "str": ["", "a", " a ", "a,b", "ü\n"],
    "list[str]": ["", "a", "a,b", "a;b", "a,b;c,", ",,", " a , b "],
    "List[str]": ["a,b"],
    "dict[str,str]": ["a:1", "a:1,b:2", "a:1;b:2", "a:b:c", "a:", "a", "a:1,", ""],
    "Dict[str,str]": ["a:1"],
}
CFG_STRINGS = [
    "",
    "NAME=v",
    "NAME=",
    "NAME",
    "=",
    "=NAME=v",
    "NAME==v",
    "NAME=v,",
    "NAME=v1,NUM=2",
    "NAME=v1;NUM=2",
    "TAGS=a,b",
    "TAGS=a;b",
    "TAGS=a,b,NAME=c",
    "TAGS=a;b;NAME=c",
    "TAGS=a,b;NAME=c",
    "TAGS=a,,NAME=c",
    "TAGS=,NAME=c",
    "NAME=a NUM=1",
    " NAME = a , NUM = 3 ",
    "NAME='a=b,c;d'",
    'NAME="a=b,c;d",NUM=4',
    "NAME=''",
    "NAME='',NUM=4",
    "NAME=it's",
    "NAME=it's,NUM=1,TAGS=o'clock",
    "NAME='",
    "TAGS='a','b'",
    "NAME=a\nb",
    "ENV=a:1,b:2,NAME=x",
    "ENV=a",
    "FLAG=on,NUM=5",
    "FLAG=perhaps",
    "NUM=five",
    "NUM=1,NUM=2",
    "longName=x",
    "long_name=x",
    "long_name=x,longName=y",
    "long_name=x,longName=x",
    "LONG_NAME=x",
    "RATE=1.5,FLAG=False",
]
JSON_CFGS = [
    "{}",
    '{"NAME": "v", "NUM": 2, "FLAG": true}',
    '{"TAGS": [1, "b"], "ENV": {"a": 1}}',
    '{"TAGS": null}',
    '{"longName": "x"}',
]
RESOLVE: list[dict[str, Any]] = [
    {},
    {"NAME": "v"},
    {"NAME": None},
    {"NAME": "v", "NUM": None},
    {"NAME": "v", "NUM": "2"},
    {"NAME": "v", "NUM": True},
    {"NAME": "v", "RATE": 1},
    {"NAME": "v", "TAGS": ["a"]},
    {"NAME": "v", "TAGS": "a"},
    {"NAME": "v", "TAGS": [1]},
    {"NAME": "v", "ENV": {"a": "1"}},
    {"NAME": "v", "ENV": {"a": 1}},
    {"NAME": "v", "longName": "x"},
    {"NAME": "v", "long_name": "x", "longName": "y"},
]
UNKNOWN_CFG_STRINGS = ["NOPE=1", "NAME=v,NOPE=1"]
UNKNOWN_RESOLVE = [{"NAME": "v", "NOPE": "1"}]
TYPES_OF = [
    ("1", str),
    (1, int),
    (True, int),
    (1, float),
    (1, bool),
    (["a"], list[str]),
    ([1], list[str]),
    ([], list[str]),
    ({"a": "b"}, dict[str, str]),
    ({"a": 1}, dict[str, str]),
    ("a", list[str]),
    (None, str),
]
MACRO_TEXTS = [
    "",
    "${app_id}",
    "$app_id",
    "$$app_id",
    "$${app_id}",
    "${app_id",
    "${ app_id }",
    "${APP_ID}",
    "x${replica_id}y${replica_id}z",
    "${img_root}/a b",
    "$",
    "$HOME/${rank0_env:=localhost}",
    "$${${rank0_env}:=localhost}",
    "${nothing}",
    "ü${app_id}\n$(rm -rf ${img_root})",
]
HANDLES = [
    "local://torchx/app",
    "k8s:///app",
    "k8s://default/ns:app",
    "slurm://torchx/a/b",
    "a://b://c/d",
    "ray://s/127.0.0.1:80-x",
    "a b://c d/e f",
    "://s/a",
    "a://s/",
    "a://s",
    "a:/s/a",
    "",
    "app",
    "a://s/b\nc",
    "a\n://s/b",
]
TEXTS = ["a", "aB", "clusterName", "cluster_name", "HTTPPort", "a1B2", "_x", "x__y", "memMB", ""]
LONG = "word " * 60
NESTED = '{"message": {"message": "%s", "errorCode": %s, "extraInfo": {"timestamp": "1700000000"}}}'
ERRORS = [
    "<NONE>",
    NESTED % ("boom", "3"),
    NESTED % ("boom", "0"),
    NESTED % (LONG, "1"),
    '{"message": {"message": "boom"}}',
    '{"message": {"message": "boom", "extraInfo": {"timestamp": "soon"}}}',
    '{"message": "flat", "errorCode": 7, "timestamp": 1700000001}',
    '{"message": "flat"}',
    '{"message": "a\\nb"}',
    '{"message": "c10::Error: bad\\nException raised from f (most recent call first)"}',
    '{"message": "x RuntimeError(\'On WorkerInfo(id=1, name=t:0:0):\\nline\\n\') y"}',
    '{"message": ""}',
]
ODD_ERRORS = ["not json", '{"message": 3}', "[1]", '"text"', "{}"]


def ask(specs: Any, api: Any) -> dict[str, Any]:
    """Return every answer, as JSON can hold it."""
    return {
        "all": sorted(specs.__all__),
        "fields": {name: _fields(getattr(api, name)) for name in DATACLASSES},
        "enums": {name: _members(getattr(api, name)) for name in ENUMS},
        "terminal": [state.name for state in api.AppState if api.is_terminal(state)],
        "sentinels": {name: getattr(api, name) for name in ("ALL", "MISSING", "NONE", "UNKNOWN")},
        "null_resource": dataclasses.asdict(api.NULL_RESOURCE),
        "type_names": {name: api.get_type_name(tp) for name, tp in OPTION_TYPES.items()},
        "camel_to_snake": {text: api.cases.camel_to_snake(text) for text in TEXTS},
        "snake_to_camel": {text: api.cases.snake_to_camel(text) for text in TEXTS},
        "casts": _casts(api),
        "is_type": [api.runopts.is_type(value, tp) for value, tp in TYPES_OF],
        **_options(api),
        "macros": _macros(api),
        "handles": {text: attempt(api.parse_app_handle, text) for text in HANDLES},
        "named": _named(specs),
        "resource": _resource(specs),
        **_statuses(api),
    }


def attempt(act: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return what an act gives, or that it raises: the class that callers may catch."""
    try:
        return act(*args, **options)
    except Exception as error:  # whatever it raises is the answer
        caught = [base.__name__ for base in type(error).__mro__]
        kinds = ("ValueError", "InvalidRunConfigException", "MalformedAppHandleException")
        return "raises " + next((kind for kind in kinds if kind in caught), caught[0])


def options(api: Any) -> Any:
    """Return a set of options with one of each kind."""
    opts = api.runopts()
    opts.add("NAME", type_=str, help="a name", required=True)
    opts.add("NUM", type_=int, help="a number", default=1)
    opts.add("RATE", type_=float, help="a rate", default=0.5)
    opts.add("FLAG", type_=bool, help="a flag", default=False)
    opts.add("TAGS", type_=list[str], help="a list", default=["t"])
    opts.add("ENV", type_=dict[str, str], help="a map")
    opts.add("long_name", type_=str, help="two words")
    return opts


def _fields(cls: Any) -> list[list[Any]]:
    return [[field.name, _default(field)] for field in dataclasses.fields(cls)]


def _default(field: Any) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return dataclasses.asdict(made) if dataclasses.is_dataclass(made) else made
    return "required" if field.default is dataclasses.MISSING else field.default


def _members(enum: Any) -> dict[str, Any]:
    return {each.name: [each.value, str(each), repr(each)] for each in enum}


def _casts(api: Any) -> dict[str, dict[str, Any]]:
    return {
        name: {text: attempt(_cast, api, OPTION_TYPES[name], text) for text in texts}
        for name, texts in CASTS.items()
    }


def _cast(api: Any, tp: Any, text: str) -> Any:
    value = api.runopt(None, tp, False, "").cast_to_type(text)
    return repr(value) if isinstance(value, float) else value


def _options(api: Any) -> dict[str, Any]:
    opts = options(api)
    return {
        "usage": repr(opts),
        "cfg_from_str": {text: attempt(opts.cfg_from_str, text) for text in CFG_STRINGS},
        "cfg_from_json": {text: attempt(opts.cfg_from_json_repr, text) for text in JSON_CFGS},
        "resolve": [attempt(opts.resolve, cfg) for cfg in RESOLVE],
        "unknown": {
            "cfg_from_str": [attempt(opts.cfg_from_str, text) for text in UNKNOWN_CFG_STRINGS],
            "resolve": [attempt(opts.resolve, cfg) for cfg in UNKNOWN_RESOLVE],
            "resolve_ignoring": [
                attempt(opts.resolve, cfg, ignore_unknown=True) for cfg in UNKNOWN_RESOLVE
            ],
        },
    }


def _macros(api: Any) -> dict[str, Any]:
    values = api.macros.Values(img_root="/i", app_id="a-1", replica_id="3", rank0_env="HOST")
    text = " ".join((api.macros.img_root, api.macros.app_id, api.macros.rank0_env))
    role = api.Role(
        name="${app_id}",
        image="${img_root}",
        entrypoint="${app_id}",
        args=[text],
        env={"${app_id}": text},
        metadata={"${app_id}": {"deep": ["${replica_id}", {"er": "${app_id}"}, 3]}, "n": 1},
    )
    applied = values.apply(role)
    return {
        "texts": {text: values.substitute(text) for text in MACRO_TEXTS},
        "values": values.to_dict(),
        "role": [
            [each.name, each.image, each.entrypoint, each.args, each.env, each.metadata]
            for each in (role, applied)
        ],
    }


def _named(specs: Any) -> dict[str, Any]:
    names = [name for name in specs.named_resources if name.startswith(("cpu.", "gpu."))]
    return {
        name: dataclasses.asdict(specs.resource(h=name))
        for name in [*names, "GPU.Small", "NULL", "MISSING"]
    }


def _resource(specs: Any) -> list[Any]:
    given: list[dict[str, Any]] = [{}, {"cpu": 4, "gpu": 1, "memMB": 9}, {"cpu": 0, "gpu": 0}]
    given += [{"cpu": 4, "h": "cpu.nano"}, {"h": ""}]
    return [dataclasses.asdict(specs.resource(**each)) for each in given]


def _statuses(api: Any) -> dict[str, Any]:
    return {
        "formats": [status.format() for status in statuses(api)],
        "filtered": [status.format(["b"]) for status in statuses(api)],
        "odd_formats": [_failed(api, error).format() for error in ODD_ERRORS],
        "json": [status.to_json() for status in statuses(api)],
        "reprs": [repr(api.AppStatus(state, 2, "m")) for state in api.AppState],
        "repr_with_error": repr(
            api.AppStatus(api.AppState.FAILED, structured_error_msg='{"message": "x"}')
        ),
        "repr_with_text": repr(api.AppStatus(api.AppState.FAILED, structured_error_msg="oops")),
    }


def statuses(api: Any) -> list[Any]:
    """Return statuses that differ in everything the text shows."""
    plain = [api.AppStatus(state, 1, "hello", ui_url="http://x") for state in api.AppState]
    replicas = [
        api.ReplicaStatus(
            id=index, state=state, role="b", hostname=f"h{index}", hostaddr="10.0.0.1"
        )
        for index, state in enumerate(reversed(api.AppState))
    ]
    roles = [
        api.RoleStatus("a", [api.ReplicaStatus(0, api.AppState.RUNNING, "a", "host")]),
        api.RoleStatus("b", replicas[::-1]),
    ]
    failed = [_failed(api, error) for error in ERRORS]
    return [*plain, api.AppStatus(api.AppState.RUNNING, roles=roles), *failed]


def _failed(api: Any, error: str) -> Any:
    state = api.AppState.FAILED
    replica = api.ReplicaStatus(1, state, "b", "host", structured_error_msg=error)
    return api.AppStatus(state, structured_error_msg=error, roles=[api.RoleStatus("b", [replica])])
