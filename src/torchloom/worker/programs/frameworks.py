"""The frameworks whose training loops are observed, and the hooks that wait for their imports.

It is imported before the program's first line, so it imports almost nothing.
"""

import sys

from torchloom.worker.environment import variables
from torchloom.worker.threadlet.import_hook import when_imported
from torchloom.worker.threadlet.owner import is_taken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

# The name of the adapter, the module that is observed, and the adapter's module in this room.
_FRAMEWORKS = (
    ("transformers", "transformers.trainer", "huggingface"),
    ("lightning", "lightning.pytorch.trainer.trainer", "lightning"),
    ("lightning", "pytorch_lightning.trainer.trainer", "lightning"),
    ("accelerate", "accelerate.accelerator", "accelerate"),
    ("torchft", "torchft.manager", "torchft"),
)


def observe_frameworks() -> None:
    """Observe each framework that the program imports."""
    for name, module, adapter in _FRAMEWORKS:
        when_imported(module, _installer(name, adapter))


def _installer(name: str, adapter: str) -> "Callable[[ModuleType], None]":
    """Return what installs an adapter in the process that reports for the rank."""

    def install(module: "ModuleType") -> None:
        try:
            if is_taken(variables()):
                from torchloom.worker.programs.program import observed

                observed().install(name, adapter, module)
        except Exception as error:  # training continues without the adapter
            sys.stderr.write(f"loom: {name} is not observed, training continues: {error!r}\n")

    return install
