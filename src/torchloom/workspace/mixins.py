"""Base classes of schedulers that make an image, or a folder, of an app's workspace: TorchX's.

A scheduler that inherits one has its options, and the runner has it build the workspaces of the
roles before the plan. Our own engines copy workspaces themselves.
"""

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from torchloom.errors import UserError
from torchloom.specs.api import AppDef, CfgVal, Role, Workspace, runopts
from torchloom.workspace import dir_workspace

T = TypeVar("T")


class WorkspaceMixin(ABC, Generic[T]):
    """Builds the workspaces of roles; a subclass says how, in `build_workspace_and_update_role`."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)

    def workspace_opts(self) -> runopts:
        """Return the run options that building takes."""
        return runopts()

    def build_workspaces(self, roles: list[Role], cfg: Mapping[str, CfgVal]) -> None:
        """Build the workspace of each role that has one; the roles get their new images."""
        cache: dict[object, object] = {}
        for role in roles:
            if role.workspace:
                self.caching_build_workspace_and_update_role(role, cfg, cache)

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Build the workspace of a role; the cache lives as long as one `build_workspaces`."""
        if not role.workspace:
            return
        if role.workspace.is_unmapped_single_project():
            self.build_workspace_and_update_role(role, str(role.workspace), cfg)
            return
        with tempfile.TemporaryDirectory(suffix="torchx_workspace_") as folder:
            role.workspace.merge_into(folder)
            self.build_workspace_and_update_role(role, folder, cfg)

    def build_workspace_and_update_role(
        self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]
    ) -> None:
        """Build one folder, and set the role's image to what was made of it."""
        raise NotImplementedError("implement caching_build_workspace_and_update_role")

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> T:
        """Set the images to the names they will have where the app runs; return what to push."""
        raise NotImplementedError("dryrun_push_images: this workspace has nothing to push")

    def push_images(self, images_to_push: T) -> None:
        """Push what `dryrun_push_images` returned."""
        raise NotImplementedError("push_images: this workspace has nothing to push")


class DirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace into the folder of the option `job_dir`, which must not exist yet."""

    def build_workspace_and_update_role(
        self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]
    ) -> None:
        folder = cfg.get("job_dir")
        if folder is not None:
            os.mkdir(str(folder))
            dir_workspace.copy({workspace: ""}, Path(str(folder)))
            role.image = str(folder)


class TmpDirWorkspaceMixin(WorkspaceMixin[None]):
    """Copies the workspace into a new temporary folder."""

    def build_workspace_and_update_role(
        self, role: Role, workspace: str, cfg: Mapping[str, CfgVal]
    ) -> None:
        folder = tempfile.mkdtemp(prefix="torchx_workspace")
        dir_workspace.copy({workspace: ""}, Path(folder))
        role.image = folder


class MultiWorkspaceMixin(WorkspaceMixin[tuple[str, Any]]):
    """Offers several builders; the run option `workspace_type` names one, the first by default."""

    WORKSPACE_TYPE_OPT = "workspace_type"

    @abstractmethod
    def workspace_builders(self) -> Mapping[str, WorkspaceMixin[Any]]:
        """Return the builders by name, the same ones at each call."""

    def workspace_opts(self) -> runopts:
        """Return the options of all builders, and the one that names a builder."""
        builders = self.workspace_builders()
        if not builders:
            raise ValueError(f"{type(self).__name__}.workspace_builders() returned no builders")
        names = list(builders)
        options = runopts()
        text = f"how the workspace is built: {', '.join(names)}"
        options.add(self.WORKSPACE_TYPE_OPT, type_=str, help=text, default=names[0])
        for builder in builders.values():
            options.update(builder.workspace_opts())
        return options

    def workspace_builder(self, cfg: Mapping[str, CfgVal]) -> tuple[str, WorkspaceMixin[Any]]:
        """Return the builder that the options name, with its name."""
        builders = self.workspace_builders()
        name = cfg.get(self.WORKSPACE_TYPE_OPT) or next(iter(builders))
        if not isinstance(name, str) or name not in builders:
            raise UnknownBuilder(f"no workspace_type {name!r}; there are {', '.join(builders)}")
        return name, builders[name]

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        _, builder = self.workspace_builder(cfg)
        builder.caching_build_workspace_and_update_role(role, cfg, build_cache)

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> tuple[str, Any]:
        """Return the name of the builder and what it has to push; None if it never pushes."""
        name, builder = self.workspace_builder(cfg)
        pushes = type(builder).dryrun_push_images is not WorkspaceMixin.dryrun_push_images
        return name, builder.dryrun_push_images(app, cfg) if pushes else None

    def push_images(self, images_to_push: tuple[str, Any]) -> None:
        name, images = images_to_push
        if images is not None:
            self.workspace_builders()[name].push_images(images)


class UnknownBuilder(UserError, ValueError):
    """A scheduler has no builder of workspaces of this name."""

    code = "unknown_workspace_type"


def pin_workspace_images(app: AppDef, images: Mapping[tuple[str, Workspace], str]) -> None:
    """Give roles the images that were built of their image and workspace, which is then done."""
    for role in app.roles:
        built = images.get((role.image, role.workspace)) if role.workspace else None
        if built is not None:
            role.image, role.workspace = built, None
