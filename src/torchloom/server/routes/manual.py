"""The manual's pages and files; they are the package's own and need no authentication."""

import base64
import functools
import gzip
import hashlib
import re
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from torchloom.server.bundle import HOW_MANUAL, Bundle
from torchloom.server.routes.dashboard import content_type, takes_gzip

PREFIX = "/manual/"
_HTML = ".html"
_PACKABLE = (_HTML, ".js", ".json", ".css", ".svg")
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_ABSENT = "the manual has no such page; /manual/ is its first one"
_RULES = (
    "default-src 'none'",
    "script-src 'self'{scripts}",
    "style-src 'self' 'unsafe-inline'",  # columns of tables are aligned by attributes
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "worker-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept-Encoding",
}
router = APIRouter(include_in_schema=False)


@router.get("/manual")
def first_page() -> Response:
    """The folder, for links within the pages are relative to it."""
    return RedirectResponse(PREFIX, 308)


@router.get("/manual/{path:path}")
def file(path: str, request: Request) -> Response:
    """A page or another file; without a manual, a line on how to have it."""
    manual: Bundle = request.app.state.manual
    found = manual.file(f"{path}index.html" if path == "" or path.endswith("/") else path)
    if found is None:
        return PlainTextResponse(
            f"{_ABSENT if manual.is_there else HOW_MANUAL}\n", 404, headers=_headers("")
        )
    read = _read(found, found.stat().st_mtime_ns)
    headers, body = _headers(read.scripts), read.body
    if read.packed and takes_gzip(request):
        headers, body = {**headers, "Content-Encoding": "gzip"}, read.packed
    return Response(body, headers=headers, media_type=content_type(found))


class _File:
    """A file as it is sent: plain, packed where that is worth it, with the scripts in a page."""

    def __init__(self, path: Path) -> None:
        self.body = path.read_bytes()
        self.packed = gzip.compress(self.body, mtime=0) if path.suffix in _PACKABLE else b""
        inline = _SCRIPT.findall(self.body) if path.suffix == _HTML else []
        self.scripts = "".join(f" {_digest(text)}" for text in dict.fromkeys(inline))


@functools.lru_cache(maxsize=256)
def _read(path: Path, changed: int) -> _File:
    """Return a file; one that was built again since is read again."""
    return _File(path)


def _headers(scripts: str) -> dict[str, str]:
    rules = "; ".join(_RULES).format(scripts=scripts)
    return {**_HEADERS, "Content-Security-Policy": rules}


def _digest(script: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'"
