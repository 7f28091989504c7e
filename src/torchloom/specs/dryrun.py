"""The dry run as a value: what would be submitted, and how to show it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Generic, TypeVar

from torchloom.specs.options import CfgVal

if TYPE_CHECKING:
    from torchloom.specs.role import AppDef

T = TypeVar("T")


class AppDryRunInfo(Generic[T]):
    """A scheduler's request with the app and the options it was made from.

    `request` may be changed before it is submitted; `cfg` may only be replaced as a whole.
    """

    def __init__(self, request: T, fmt: Callable[[T], str]) -> None:
        self.request = request
        self.app: AppDef | None = None
        self.cfg = {}
        self._fmt = fmt
        self._scheduler: str | None = None

    @property
    def cfg(self) -> Mapping[str, CfgVal]:
        return self._cfg

    @cfg.setter
    def cfg(self, cfg: Mapping[str, CfgVal]) -> None:
        self._cfg = MappingProxyType(cfg) if isinstance(cfg, dict) else cfg

    def __repr__(self) -> str:
        return self._fmt(self.request)
