"""What every request and answer is made of: names, keys, texts."""

from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import ConfigDict, Field

from torchloom.server.schema import Schema

Text = Annotated[str, Field(max_length=1000)]
LONGEST = 300  # letters of a name
Uuid = Annotated[str, Field(min_length=1, max_length=LONGEST)]
Name = Annotated[
    str,
    Path(
        alias="id",
        min_length=1,
        max_length=LONGEST,
        description="a job: its id, the beginning of one, or its name",
    ),
]
AbsolutePath = Annotated[str | None, Query(max_length=4096, pattern=r"^/[^\x00-\x1f]*$")]
CommandId = Annotated[str, Path(min_length=1, max_length=LONGEST)]
RunId = Annotated[str, Path(min_length=1, max_length=LONGEST)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="the same request with the same key, sent again, is done once",
    ),
]


class Answer(Schema):
    """Anything that is answered."""

    model_config = ConfigDict(extra="allow")


class Request(Schema):
    """Anything that is asked for; a member that nobody knows is a mistake."""

    model_config = ConfigDict(extra="forbid")
