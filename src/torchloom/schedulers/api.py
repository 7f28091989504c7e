"""The interface of every scheduler: it turns an app into a request, submits and describes it."""

import re
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from torchloom.errors import UserError
from torchloom.specs.api import (
    NONE,
    NULL_RESOURCE,
    AppDef,
    AppDryRunInfo,
    AppState,
    CfgVal,
    InvalidRunConfigException,
    Role,
    Workspace,
    cases,
    runopts,
)

if TYPE_CHECKING:
    from typing import Self

    from torchloom.specs.api import RoleStatus

T = TypeVar("T")
_BASES = "__orig_bases__"  # where Python keeps `Scheduler[...]` of a class statement


class Stream(str, Enum):  # noqa: UP042 - str() of a member is as in TorchX
    """The output streams of a replica."""

    STDOUT = "stdout"
    STDERR = "stderr"
    COMBINED = "combined"


@dataclass
class DescribeAppResponse:
    """What an engine reports about one app; what it does not know has its default."""

    app_id: str = "<NOT_SET>"
    state: AppState = AppState.UNSUBMITTED
    num_restarts: int = -1
    msg: str = NONE
    structured_error_msg: str = NONE
    ui_url: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    roles_statuses: "list[RoleStatus]" = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)


@dataclass
class ListAppResponse:
    """One line of an engine's list."""

    app_id: str
    state: AppState
    app_handle: str = "<NOT_SET>"
    name: str = ""

    def __hash__(self) -> int:
        return hash((self.app_id, self.app_handle, self.state))


class _Option(NamedTuple):
    """A field of typed options: its key, and its class if it is a group of options itself."""

    field: "Field[Any]"
    key: str
    type: Any
    group: "type[StructuredOpts] | None"

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def is_required(self) -> bool:
        return self.field.default is NO_DEFAULT and self.field.default_factory is NO_DEFAULT


@dataclass
class StructuredOpts(Mapping[str, CfgVal]):
    """Options of a scheduler as a dataclass; also a mapping with the keys of run options.

    A field of such a class is a group: its options have keys `FIELD.NAME`. The metadata `cfg_key`
    of a field is its key where that is no name of Python; the text below a field is its help.
    A scheduler that names its class, as in `class Mine(Scheduler[MyOpts])`, is given instances.

    Example:
        >>> from dataclasses import dataclass
        >>> from torchloom.schedulers.api import StructuredOpts
        >>> @dataclass
        ... class MyOpts(StructuredOpts):
        ...     cluster_name: str
        ...     num_retries: int = 3
        >>> opts = MyOpts.from_cfg({"clusterName": "a"})
        >>> opts.cluster_name, opts["num_retries"]
        ('a', 3)
    """

    _extra_cfg: dict[str, CfgVal] = field(
        default_factory=dict, repr=False, compare=False, kw_only=True
    )  # what `from_cfg` was given besides the fields

    @classmethod
    def from_cfg(cls, cfg: Mapping[str, CfgVal]) -> "Self":
        """Return the options of a mapping; keys may be in camelCase.

        Raises:
            InvalidRunConfigException: An option is given in two spellings, with different values.
        """
        values: dict[str, Any] = {}
        for option in _options_of(cls):
            if option.group is not None:
                below = _below(cfg, f"{option.name}.")
                if below or option.is_required:
                    values[option.name] = option.group.from_cfg(below)
            elif spelled := _spellings(option, cfg):
                values[option.name] = _only_value(option.key, spelled, cfg)
        opts = cls(**values)
        opts._extra_cfg = {key: value for key, value in cfg.items() if key not in opts}
        return opts

    @classmethod
    def as_runopts(cls) -> runopts:
        """Return the run options that these fields declare."""
        declared = runopts()
        helps = cls.get_docstrings()
        for option in _options_of(cls):
            if option.group is not None:
                for key, one in option.group.as_runopts():
                    key = f"{option.name}.{key}"
                    declared.add(key, one.opt_type, one.help, one.default, one.is_required)
                continue
            default = None if option.field.default is NO_DEFAULT else option.field.default
            text = helps.get(option.name, option.name)
            declared.add(option.key, option.type, text, default, option.is_required)
        return declared

    @classmethod
    def get_docstrings(cls) -> dict[str, str]:
        """Return the text below each field in the source, by the field's name."""
        found: dict[str, str] = {}
        for one in reversed(cls.__mro__):
            if one is not StructuredOpts and issubclass(one, StructuredOpts):
                found |= _texts_below_fields(one)
        for option in _options_of(cls):
            if option.group is not None:
                texts = option.group.get_docstrings()
                found |= {f"{option.name}.{key}": text for key, text in texts.items()}
        return found

    def __getitem__(self, key: str) -> CfgVal:
        first, dot, rest = key.partition(".")
        group = getattr(self, cases.camel_to_snake(first), None) if dot else None
        if isinstance(group, StructuredOpts):
            return group[rest]
        for option in _options_of(type(self)):
            if key == option.key or cases.camel_to_snake(key) == option.name:
                value: CfgVal = getattr(self, option.name)
                return value
        return self._extra_cfg[key]

    def __iter__(self) -> Iterator[str]:
        for option in _options_of(type(self)):
            if option.group is None:
                yield option.key
            else:
                yield from (f"{option.name}.{key}" for key in getattr(self, option.name) or ())
        yield from self._extra_cfg

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __or__(self, other: "StructuredOpts") -> dict[str, CfgVal]:
        """Return both as one mapping; the other's values win."""
        return {**self, **other}


def _options_of(cls: type[StructuredOpts]) -> "list[_Option]":
    """Return the fields that are options; those that begin with an underscore are not."""
    hints = get_type_hints(cls)
    found = []
    for each in fields(cls):
        if not each.name.startswith("_"):
            wanted = _without_none(hints[each.name])
            key = each.metadata.get("cfg_key", each.name)
            found.append(_Option(each, key, wanted, _structured(wanted)))
    return found


def _without_none(hint: Any) -> Any:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    others = tuple(each for each in get_args(hint) if each is not types.NoneType)
    return Union[others]  # noqa: UP007 - of a tuple; one alone is itself


def _structured(tp: Any) -> "type[StructuredOpts] | None":
    is_one = isinstance(tp, type) and get_origin(tp) is None and issubclass(tp, StructuredOpts)
    return tp if is_one and tp is not StructuredOpts else None


def _below(cfg: Mapping[str, CfgVal], prefix: str) -> dict[str, CfgVal]:
    return {key.removeprefix(prefix): cfg[key] for key in cfg if key.startswith(prefix)}


def _spellings(option: _Option, cfg: Mapping[str, CfgVal]) -> "list[str]":
    names = (option.key, option.name, cases.snake_to_camel(option.name))
    return [name for name in dict.fromkeys(names) if name in cfg]


def _only_value(key: str, spelled: "list[str]", cfg: Mapping[str, CfgVal]) -> CfgVal:
    first = cfg[spelled[0]]
    if any(cfg[other] != first for other in spelled[1:]):
        reason = f"option {key!r} is given as {' and '.join(spelled)}, with different values"
        raise InvalidRunConfigException(f"{reason}; keep {key!r}", key, cfg)
    return first


def _texts_below_fields(cls: type) -> dict[str, str]:
    import ast
    import inspect
    import itertools
    import textwrap

    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # made in a shell, or without its source
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        each.target.id: str(below.value.value).strip()
        for each, below in itertools.pairwise(body)
        if isinstance(each, ast.AnnAssign)
        and isinstance(each.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


class Scheduler(ABC, Generic[T]):
    """One engine, the base class of all schedulers.

    `_submit_dryrun` is pure; only `schedule` and the methods after it act on the engine.
    """

    def __init__(self, backend: str, session_name: str) -> None:
        self.backend = backend
        self.session_name = session_name

    def close(self) -> None:
        """Close connections; apps keep running."""

    def submit(
        self, app: AppDef, cfg: Mapping[str, CfgVal], workspace: str | Workspace | None = None
    ) -> str:
        """Build the request and submit it; return the app's id."""
        if workspace and app.roles:
            given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
            app.roles[0].workspace = given
        return self.schedule(self.submit_dryrun(app, cfg))

    def submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Return what would be submitted, with the options filled in."""
        resolved = self._typed(self.run_opts().resolve(cfg))
        info = self._submit_dryrun(app, resolved)
        for role in app.roles:
            info = role.pre_proc(self.backend, info)
        info.app, info.cfg, info._scheduler = app, resolved, self.backend
        return info

    def _typed(self, cfg: Mapping[str, CfgVal]) -> Mapping[str, CfgVal]:
        """Return the options as the class that `Scheduler[...]` names, if it names one."""
        bases = (base for cls in type(self).__mro__ for base in cls.__dict__.get(_BASES, ()))
        named = next((get_args(base)[0] for base in bases if get_origin(base) is Scheduler), None)
        opts = _structured(named)
        return cfg if opts is None else opts.from_cfg(cfg)

    def run_opts(self) -> runopts:
        """Return the options this engine takes."""
        return self._run_opts()

    def exists(self, app_id: str) -> bool:
        """Tell whether the engine knows the app."""
        return self.describe(app_id) is not None

    def cancel(self, app_id: str) -> None:
        """Cancel the app; one that has ended or is unknown is left alone."""
        if self.exists(app_id):
            self._cancel_existing(app_id)

    def delete(self, app_id: str) -> None:
        """Remove the records of the app; an unknown app is left alone."""
        if self.exists(app_id):
            self._delete_existing(app_id)

    def wait(self, app_id: str, timeout: float) -> bool:
        """Wait until the app has ended, at most `timeout` seconds; tell whether it may have ended.

        This implementation only sleeps, for engines that cannot report the end.
        """
        import time

        time.sleep(timeout)
        return True

    @abstractmethod
    def schedule(self, dryrun_info: AppDryRunInfo[T]) -> str:
        """Submit a request; return the app's id."""

    @abstractmethod
    def _submit_dryrun(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> AppDryRunInfo[T]:
        """Translate the app into this engine's request."""

    @abstractmethod
    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return what the engine knows of the app; None if it does not know it."""

    @abstractmethod
    def list(self, cfg: Mapping[str, CfgVal] | None = None) -> list[ListAppResponse]:
        """Return the apps that the engine knows, newest first."""

    @abstractmethod
    def _cancel_existing(self, app_id: str) -> None: ...

    def _delete_existing(self, app_id: str) -> None:
        raise UserError(f"{self.backend} cannot delete apps")

    def _run_opts(self) -> runopts:
        return runopts()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a replica's log, with their newlines."""
        raise UserError(f"{self.backend} keeps no logs that can be read from here")

    def _pre_build_validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Refuse what cannot run here before any image is built."""

    def _validate(self, app: AppDef, scheduler: str, cfg: Mapping[str, CfgVal]) -> None:
        """Refuse what cannot run here; most engines want to know what a role needs."""
        for role in app.roles:
            if role.resource == NULL_RESOURCE:
                raise UserError(
                    f"role {role.name!r} names no resource; {scheduler} needs one: "
                    "set resource=, or cpu, gpu, memMB or h of the component"
                )


def filter_regex(regex: str, data: Iterable[str]) -> Iterable[str]:
    """Return the lines in which the regex is found."""
    return filter(re.compile(regex).search, data)


def split_lines(text: str) -> "list[str]":
    """Return the lines of a text with their newlines; other line breaks do not count."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def split_lines_iterator(chunks: Iterable[str]) -> Iterable[str]:
    """Yield whole lines out of chunks cut anywhere."""
    partial = ""
    for chunk in chunks:
        whole = split_lines(partial + chunk)
        partial = whole.pop() if whole and not whole[-1].endswith("\n") else ""
        yield from whole
    if partial:
        yield partial
