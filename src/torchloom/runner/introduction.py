"""Tell an app's processes who they are and where they may report, in TorchX's variables."""

from collections.abc import Mapping

from torchloom import settings
from torchloom.runner import config
from torchloom.specs.api import AppDef, AppHandle

JOB_ID = "TORCHX_JOB_ID"
PARENT = "TORCHX_PARENT_RUN_ID"
TRACKERS = "TORCHX_TRACKERS"


def introduce(app: AppDef, handle: AppHandle, parent_run_id: str | None) -> None:
    """Put the app's handle, its parent's and the trackers into every role's environment."""
    env = settings.environment()
    parent = parent_run_id or env.get(PARENT)
    told = {JOB_ID: handle, **({PARENT: parent} if parent else {}), **_trackers(env)}
    for role in app.roles:
        role.env |= told


def _trackers(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name the trackers and their configs; ours beat the files'."""
    chosen = env.get(TRACKERS)
    names = chosen.split(",") if chosen else list(config.get_configs("torchx", "tracker"))
    configs = {name: _config(name, env) for name in names}
    told = {_config_variable(name): text for name, text in configs.items() if text}
    return {TRACKERS: ",".join(names), **told} if names else {}


def _config(tracker: str, env: Mapping[str, str]) -> str | None:
    return env.get(_config_variable(tracker)) or config.get_config("tracker", tracker, "config")


def _config_variable(tracker: str) -> str:
    return f"TORCHX_TRACKER_{tracker.upper()}_CONFIG"
