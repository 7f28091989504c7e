"""The names under which schedulers leave facts about an app, where others look for them."""

TORCHX_CONTEXT_NAME = "TORCHX_CONTEXT_NAME"  # environment variable: who submitted
NA = "<<NA>>"  # a fact that nobody supplied


class app_metadata:
    """Keys in `AppDef.metadata`."""

    CONTEXT = "torchx/context"
    VERSION = "torchx/version"
    SCHEDULER = "torchx/scheduler"
    ROLES_PREFIX = "torchx/roles."


class resource_tags:
    """Keys in `Resource.tags`."""

    RESOURCE_NAME = "torchx/named_resources.name"
    IS_FRACTIONAL = "torchx/named_resources.is_fractional"
