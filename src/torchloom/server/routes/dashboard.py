"""The dashboard's page and files; they hold no data and need no authentication."""

import functools
import gzip
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from torchloom.server.bundle import HOW, Bundle
from torchloom.server.problems import ApiProblem

_PAGES = (  # the page's own paths: it reads them itself
    *("/", "/jobs", "/jobs/{path:path}"),
    *("/experiments", "/experiments/{path:path}", "/submit"),
    *("/cluster", "/settings"),
)
_BESIDE = ("/favicon.ico", "/favicon.svg", "/robots.txt")
_TYPES = {".js": "text/javascript", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
_RULES = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "manifest-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
_HEADERS = {
    "Content-Security-Policy": "; ".join(_RULES),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_ALWAYS_ASK = {**_HEADERS, "Cache-Control": "no-cache"}
_FOR_EVER = {
    **_HEADERS,
    "Cache-Control": "public, max-age=31536000, immutable",
    "Vary": "Accept-Encoding",
}
_PACKED = {**_FOR_EVER, "Content-Encoding": "gzip"}
_PACKABLE = (".js", ".css", ".svg")
router = APIRouter(include_in_schema=False)


def page(request: Request) -> Response:
    """The page, whichever of its paths was asked for; without one, a line on how to have it."""
    index = _bundle(request).index()
    if index is None:
        return PlainTextResponse(f"{HOW}\n", headers={**_HEADERS, "Cache-Control": "no-store"})
    return _sent(index, _ALWAYS_ASK)


def not_found(bundle: Bundle) -> Response | None:
    """The page for an unknown address, with status 404; nothing without a dashboard."""
    index = bundle.index()
    return None if index is None else _sent(index, _ALWAYS_ASK, 404)


@router.get("/assets/{path:path}")
def asset(path: str, request: Request) -> Response:
    """A file that never changes under its name, for that has the hash of its content."""
    found = _bundle(request).file(f"assets/{path}")
    if found is None or found.suffix not in _PACKABLE or not takes_gzip(request):
        return _sent(found, _FOR_EVER)
    return Response(_packed(found), headers=_PACKED, media_type=content_type(found))


def beside(request: Request) -> Response:
    """A file that browsers look for by themselves."""
    return _sent(_bundle(request).file(request.url.path.removeprefix("/")), _ALWAYS_ASK)


for _path in _PAGES:
    router.add_api_route(_path, page)
for _path in _BESIDE:
    router.add_api_route(_path, beside)


def _sent(path: Path | None, headers: Mapping[str, str], status: int = 200) -> Response:
    if path is None:
        raise ApiProblem(404, "not_found", "no such file", remedy="/ is the dashboard")
    return Response(path.read_bytes(), status, dict(headers), content_type(path))


def content_type(path: Path) -> str | None:
    """Return the media type of a file by its name."""
    return _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]


@functools.lru_cache(maxsize=64)
def _packed(path: Path) -> bytes:
    """Return a file that never changes under its name, a third as large."""
    return gzip.compress(path.read_bytes(), mtime=0)


def takes_gzip(request: Request) -> bool:
    """Tell whether a client can unpack gzip."""
    ways = request.headers.get("accept-encoding", "").lower().split(",")
    return any(way.replace(" ", "") in ("gzip", "gzip;q=1.0") for way in ways)


def _bundle(request: Request) -> Bundle:
    found: Bundle = request.app.state.bundle
    return found
