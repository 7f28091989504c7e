"""The base of the models of the API: each states its name in the OpenAPI description."""

from typing import Any

from pydantic import BaseModel


class Schema(BaseModel):
    """A model whose component in OpenAPI is named by `schema`, independent of its class name."""

    def __init_subclass__(cls, *, schema: str = "", **options: Any) -> None:
        """Set the stated name before pydantic reads the class; a base class may have none."""
        super().__init_subclass__(**options)
        if schema:
            cls.__name__ = cls.__qualname__ = schema
