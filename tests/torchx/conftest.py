from ..harness.home import home

__all__ = ["home"]
