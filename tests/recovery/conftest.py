"""A plane for each module, with warm ranks, as where ranks are steered."""

from ..control.conftest import database, place, plane, warm

__all__ = ["database", "place", "plane", "warm"]
