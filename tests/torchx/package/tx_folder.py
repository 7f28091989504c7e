"""A scheduler as a package for TorchX has it: each app is a folder of text files.

It is written for TorchX and imports nothing else; the test installs it and uses it as it is.
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchx.schedulers.api import (
    DescribeAppResponse,
    ListAppResponse,
    Scheduler,
    StructuredOpts,
    filter_regex,
)
from torchx.schedulers.ids import make_unique
from torchx.specs import AppDef, AppDryRunInfo, AppState, ReplicaStatus, RoleStatus, macros, runopts
from torchx.specs.overlays import get_overlay


@dataclass
class FolderOpts(StructuredOpts):
    root: str
    """where the folders are"""

    copies: int = 1
    """how often each command is written"""


class FolderScheduler(Scheduler[FolderOpts]):
    def __init__(self, session_name: str, root: str | None = None) -> None:
        super().__init__("folder", session_name)
        self._root = Path(root or tempfile.gettempdir())

    def _run_opts(self) -> runopts:
        return FolderOpts.as_runopts()

    def _submit_dryrun(self, app: AppDef, cfg: FolderOpts) -> AppDryRunInfo[Any]:
        app_id = make_unique(app.name)
        lines: dict[str, str] = {}
        for role in app.roles:
            for replica in range(role.num_replicas):
                values = macros.Values("/", app_id, str(replica), "RANK0")
                filled = values.apply(role)
                note = get_overlay(role, "folder", "Note").get("text", "")
                words = [filled.entrypoint, *filled.args, note]
                lines[f"{role.name}-{replica}"] = f"{' '.join(words)}\n" * cfg.copies
        return AppDryRunInfo({"id": app_id, "root": cfg.root, "lines": lines}, repr)

    def schedule(self, dryrun_info: AppDryRunInfo[Any]) -> str:
        request = dryrun_info.request
        folder = Path(request["root"], request["id"])
        folder.mkdir()
        for name, text in request["lines"].items():
            (folder / name).write_text(text)
        return str(request["id"])

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        folder = self._root / app_id
        if not folder.is_dir():
            return None
        state = AppState.CANCELLED if (folder / "cancelled").exists() else AppState.SUCCEEDED
        names = sorted(file.name for file in folder.iterdir() if "-" in file.name)
        replicas = [ReplicaStatus(n, state, "echo", "host") for n, _ in enumerate(names)]
        statuses = [RoleStatus("echo", replicas)]
        return DescribeAppResponse(app_id, state, roles_statuses=statuses)

    def list(self, cfg: Any = None) -> list[ListAppResponse]:
        ids = sorted(folder.name for folder in self._root.iterdir())
        return [ListAppResponse(each, AppState.SUCCEEDED, name=each) for each in ids]

    def _cancel_existing(self, app_id: str) -> None:
        (self._root / app_id / "cancelled").touch()

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        *rest: Any,
        **more: Any,
    ) -> Iterable[str]:
        from torchx.schedulers.api import split_lines  # at its use, as many packages do

        lines = split_lines((self._root / app_id / f"{role_name}-{k}").read_text())
        return filter_regex(regex, lines) if regex else lines


def create_scheduler(session_name: str, **kwargs: Any) -> FolderScheduler:
    return FolderScheduler(session_name, root=kwargs.get("root"))
