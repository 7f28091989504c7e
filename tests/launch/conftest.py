from ..living import home

__all__ = ["home"]
