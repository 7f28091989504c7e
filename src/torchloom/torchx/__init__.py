"""What exists for programs, components and packages that were written for TorchX.

`names` serves `import torchx` with torchloom's modules, `plugins` finds packages that add engines,
sizes and trackers. Everything else of TorchX is in the room of its subject: `specs`, `runner`, ...
"""


class resource_tags:  # noqa: N801 - TorchX's name
    """Keys in `Resource.tags`."""

    RESOURCE_NAME = "torchx/named_resources.name"
    IS_FRACTIONAL = "torchx/named_resources.is_fractional"
