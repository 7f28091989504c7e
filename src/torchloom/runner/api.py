"""Submit, watch, read and end an app on any scheduler."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from torchloom import settings
from torchloom.runner import config
from torchloom.schedulers import SchedulerFactory, get_scheduler_factories, get_scheduler_factory
from torchloom.schedulers.api import ListAppResponse, Scheduler, Stream
from torchloom.specs.api import (
    AppDef,
    AppDryRunInfo,
    AppHandle,
    CfgVal,
    Role,
    UnknownAppException,
    UnknownSchedulerException,
    Workspace,
    macros,
    make_app_handle,
    parse_app_handle,
    resolved,
    runopts,
    validate_app,
)

if TYPE_CHECKING:
    from torchloom.specs.api import AppStatus

JOB_ID = "TORCHX_JOB_ID"
PARENT = "TORCHX_PARENT_RUN_ID"
TRACKERS = "TORCHX_TRACKERS"
SESSION = "torchx"  # the session name every TorchX tool writes into its handles
WAIT_INTERVAL = 10.0


def introduce(app: AppDef, handle: AppHandle, parent_run_id: str | None) -> None:
    """Put the app's handle, its parent's and the trackers into every role's environment."""
    env = settings.environment()
    parent = parent_run_id or env.get(PARENT)
    variables = {JOB_ID: handle, **({PARENT: parent} if parent else {}), **_trackers(env)}
    for role in app.roles:
        role.env |= variables


def _trackers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the trackers and their configs; ours override the files'."""
    chosen = env.get(TRACKERS)
    names = chosen.split(",") if chosen else list(config.get_configs("torchx", "tracker"))
    configs = {name: _config(name, env) for name in names}
    configured = {_config_variable(name): text for name, text in configs.items() if text}
    return {TRACKERS: ",".join(names), **configured} if names else {}


def _config(tracker: str, env: Mapping[str, str]) -> str | None:
    return env.get(_config_variable(tracker)) or config.get_config("tracker", tracker, "config")


def _config_variable(tracker: str) -> str:
    return f"TORCHX_TRACKER_{tracker.upper()}_CONFIG"


class Runner:
    """Submits apps to any scheduler, and watches, reads and ends them. `get_runner()` makes one.

    An app is named by its handle, `SCHEDULER://SESSION/APP_ID`. Closing a runner, by `close` or a
    `with` block, ends no app.

    Args:
        name: The session name in the handles of its apps.
        scheduler_factories: Schedulers by name; default: the installed ones.
        component_defaults: Default arguments of components, by component; default: those of the
            config files.
        scheduler_params: Keyword arguments for each scheduler.
    """

    def __init__(
        self,
        name: str = SESSION,
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, str]] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
    ) -> None:
        self._name = name
        self._factories = scheduler_factories
        self._component_defaults = component_defaults
        self._params = dict(scheduler_params or {})
        self._schedulers: dict[str, Scheduler[Any]] = {}

    def __enter__(self) -> "Runner":
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the schedulers that were used; apps keep running."""
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._schedulers.clear()

    def name(self) -> str:
        """Return the session name."""
        return self._name

    def run_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any],
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
    ) -> AppHandle:
        """Build an app from a component and submit it.

        Args:
            component: A name such as `dist.ddp`, or `FILE.py:FUNCTION`.
            component_args: Arguments of the component: words of a command line, or a mapping.
            scheduler: The scheduler, such as `local` or `slurm`.
            cfg: Options of the scheduler.
            workspace: A folder; the app runs in a copy of it.
            parent_run_id: The run that this one belongs to, for trackers.

        Returns:
            The handle of the app.

        Raises:
            UserError: The component, its arguments, the scheduler or an option is not usable.
        """
        info = self.dryrun_component(
            component, component_args, scheduler, cfg, workspace, parent_run_id
        )
        return self.schedule(info)

    def dryrun_component(
        self,
        component: str,
        component_args: Sequence[str] | Mapping[str, Any],
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Build an app from a component and return what `run_component` would submit."""
        app = self.build(component, component_args)
        return self.dryrun(app, scheduler, cfg, workspace, parent_run_id)

    def build(self, component: str, component_args: Sequence[str] | Mapping[str, Any]) -> AppDef:
        """Return the app that a component makes of arguments and the config files' defaults."""
        from torchloom.components.finder import get_component
        from torchloom.specs.builders import materialize_appdef

        fn = get_component(component).fn
        defaults = self._defaults_of(component)
        if isinstance(component_args, Mapping):
            return materialize_appdef(fn, [], defaults, config=component_args)
        return materialize_appdef(fn, list(component_args), defaults)

    @overload
    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = ...,
        workspace: str | Workspace | None = ...,
        parent_run_id: str | None = ...,
        *,
        dryrun: Literal[False] = ...,
    ) -> AppHandle: ...

    @overload
    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = ...,
        workspace: str | Workspace | None = ...,
        parent_run_id: str | None = ...,
        *,
        dryrun: Literal[True],
    ) -> AppDryRunInfo[Any]: ...

    def run(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
        *,
        dryrun: bool = False,
    ) -> AppHandle | AppDryRunInfo[Any]:
        """Submit an app and return its handle; with `dryrun`, return what would be submitted.

        The arguments are those of `run_component`.
        """
        info = self.dryrun(app, scheduler, cfg, workspace, parent_run_id)
        return info if dryrun else self.schedule(info)

    def dryrun(
        self,
        app: AppDef,
        scheduler: str,
        cfg: Mapping[str, CfgVal] | None = None,
        workspace: str | Workspace | None = None,
        parent_run_id: str | None = None,
    ) -> AppDryRunInfo[Any]:
        """Return the request that would be submitted. Prints as the engine's own script or command.

        The app is not changed.

        Raises:
            UserError: The app, the scheduler or an option is not valid.
        """
        from torchloom.launch.agent.rank_environment import check_variables

        backend = self.scheduler(scheduler)
        app = _final(app)
        validate_app(app)
        check_variables(app)
        introduce(app, make_app_handle(scheduler, self._name, macros.app_id), parent_run_id)
        if workspace:
            given = Workspace.from_str(workspace) if isinstance(workspace, str) else workspace
            app.roles[0].workspace = given
        options = self._options(backend, scheduler, cfg)
        backend._pre_build_validate(app, scheduler, options)
        backend._validate(app, scheduler, options)
        info = backend.submit_dryrun(app, options)
        info._scheduler = scheduler  # which may have another name than its backend
        return info

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> AppHandle:
        """Submit the request of a dry run and return the handle of the app."""
        name = str(dryrun_info._scheduler)
        app_id = self.scheduler(name).schedule(dryrun_info)
        return make_app_handle(name, self._name, app_id)

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Return the options of a scheduler."""
        return self.scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literal: str) -> Mapping[str, CfgVal]:
        """Parse `key=value,..` literals as options of a scheduler."""
        options = self.scheduler_run_opts(scheduler)
        cfg: dict[str, CfgVal] = {}
        for literal in cfg_literal:
            cfg.update(options.cfg_from_str(literal, ignore_unknown=False))
        return cfg

    def scheduler_backends(self) -> list[str]:
        """Return the names of the installed schedulers."""
        return list(get_scheduler_factories() if self._factories is None else self._factories)

    def status(self, app_handle: AppHandle) -> "AppStatus | None":
        """Return the status of an app; None if its scheduler does not know it."""
        scheduler, app_id = self._find(app_handle)
        found = scheduler.describe(app_id)
        if found is None:
            return None
        from torchloom.specs.api import AppStatus

        return AppStatus(
            state=found.state,
            num_restarts=found.num_restarts,
            msg=found.msg,
            structured_error_msg=found.structured_error_msg,
            ui_url=found.ui_url,
            roles=found.roles_statuses,
        )

    def wait(
        self, app_handle: AppHandle, wait_interval: float = WAIT_INTERVAL
    ) -> "AppStatus | None":
        """Wait until an app has ended and return its status; None if it is not known.

        A scheduler that cannot report the end is asked every `wait_interval` seconds.
        """
        scheduler, app_id = self._find(app_handle)
        while True:
            status = self.status(app_handle)
            if status is None:
                return None
            if status.is_terminal():
                return status
            scheduler.wait(app_id, wait_interval)

    def cancel(self, app_handle: AppHandle) -> None:
        """Cancel an app; one that has ended or is unknown is left alone."""
        scheduler, app_id = self._find(app_handle)
        scheduler.cancel(app_id)

    def delete(self, app_handle: AppHandle) -> None:
        """Remove an app that has ended, with its records, from its scheduler."""
        scheduler, app_id = self._find(app_handle)
        scheduler.delete(app_id)

    def stop(self, app_handle: AppHandle) -> None:
        """TorchX's old name for `cancel`."""
        self.cancel(app_handle)

    def describe(self, app_handle: AppHandle) -> AppDef | None:
        """Return the app as far as its scheduler knows it; None if it does not."""
        scheduler, app_id = self._find(app_handle)
        found = scheduler.describe(app_id)
        return AppDef(app_id, found.roles, found.metadata) if found else None

    def log_lines(
        self,
        app_handle: AppHandle,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterator[str]:
        """Yield the output lines of one replica, with their newlines.

        Args:
            app_handle: The handle of the app.
            role_name: The role.
            k: The number of the replica in its role.
            regex: Only lines that match it.
            since: Only lines from this time on, if the engine keeps times.
            until: Only lines up to this time.
            should_tail: Follow the output until the app has ended.
            streams: stdout, stderr or both combined.

        Raises:
            UnknownAppException: The scheduler does not know the app.
        """
        scheduler, app_id = self._find(app_handle)
        if not scheduler.exists(app_id):
            raise UnknownAppException(app_handle)
        return scheduler.log_iter(
            app_id, _one_word(role_name), k, regex, since, until, should_tail, streams=streams
        )

    def list(
        self, scheduler: str, cfg: Mapping[str, CfgVal] | None = None
    ) -> list[ListAppResponse]:
        """Return the apps that a scheduler knows, newest first."""
        return self.scheduler(scheduler).list(cfg)

    def scheduler(self, name: str) -> Scheduler[Any]:
        """Return the scheduler of a name.

        Raises:
            UnknownSchedulerException: No scheduler has this name.
        """
        if name not in self._schedulers:
            find = get_scheduler_factory if self._factories is None else self._factories.get
            factory = find(name)
            if factory is None:
                raise UnknownSchedulerException(name, self.scheduler_backends())
            self._schedulers[name] = factory(self._name, **self._params)
        return self._schedulers[name]

    def _find(self, app_handle: AppHandle) -> tuple[Scheduler[Any], str]:
        backend, _, app_id = parse_app_handle(app_handle)
        return self.scheduler(backend), app_id

    def _defaults_of(self, component: str) -> Mapping[str, str]:
        if self._component_defaults is not None:
            return self._component_defaults.get(component, {})
        return config.get_configs("component", component)

    def _options(
        self, backend: Scheduler[Any], scheduler: str, cfg: Mapping[str, CfgVal] | None
    ) -> Mapping[str, CfgVal]:
        """Return the run options: those given, else the config files', else the defaults."""
        options = dict(cfg or {})
        known = backend.run_opts()
        config.apply(scheduler, options, options=known)
        return known.resolve(options)


def _final(app: AppDef) -> AppDef:
    """Return a copy with late values in place; roles that are none are left to the validator.

    Names are parts of paths and ids here, so blanks in them become dashes.
    """
    if isinstance(app.roles, list) and all(isinstance(role, Role) for role in app.roles):
        app = replace(app, roles=[resolved(role) for role in app.roles])
        for role in app.roles:
            role.name = _one_word(role.name)
    return copy.deepcopy(replace(app, name=_one_word(app.name)))


def _one_word(name: str) -> str:
    return "-".join(name.split()) if isinstance(name, str) else name


def get_runner(
    name: str | None = None,
    component_defaults: Mapping[str, Mapping[str, str]] | None = None,
    **scheduler_params: Any,
) -> Runner:
    """Return a runner with every installed scheduler.

    Args:
        name: The session name in the handles of its apps.
        component_defaults: Default arguments of components, by component.
        **scheduler_params: Keyword arguments for each scheduler.

    Example:
        >>> from torchloom.runner import get_runner
        >>> with get_runner() as runner:
        ...     handle = runner.run_component("utils.echo", ["--msg", "hi"], "local")
        ...     status = runner.wait(handle)
        >>> status.state.name
        'SUCCEEDED'
    """
    return Runner(name or SESSION, None, component_defaults, scheduler_params)
