"""What is one's own: the tokens and cookies by which whoever asks is known."""

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi import Request as HttpRequest

from torchloom.server.plane_access import AccessDep
from torchloom.server.problems import ApiProblem, declared
from torchloom.server.routes.people import Token, TokenPage
from torchloom.server.security.auth import Identities, Who

router = APIRouter(tags=["people"])


@router.get("/api/me/tokens", response_model=TokenPage, responses=declared(503))
async def tokens(access: AccessDep, who: Who) -> dict[str, Any]:
    """The tokens and cookies of whoever asks."""
    return {"items": await access.link.ask("tokens", user=who.user), "next": None}


@router.delete("/api/me/tokens/{id}", response_model=Token, responses=declared(404, 422, 503))
async def revoke_token(
    access: AccessDep,
    who: Who,
    request: HttpRequest,
    token_id: Annotated[str, Path(alias="id", min_length=1, max_length=64)],
) -> Any:
    """End a token of one's own; that of somebody else is not known here."""
    own = await access.link.ask("tokens", user=who.user)
    if token_id not in {token["id"] for token in own}:
        raise ApiProblem(404, "not_found", "no token of yours", remedy="GET /api/me/tokens")
    found = await access.link.ask("token_revoke", id=token_id, author=who.user)
    identities: Identities = request.app.state.identities
    identities.forget()
    return found
