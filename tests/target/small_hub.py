"""A model hub of one small model on this machine, with as much of the hub's HTTP interface as a download takes."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

MODEL, REVISION = "owner/small", "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def small_hub(folder: Path) -> Iterator[str]:
    """Serves `folder` as MODEL at REVISION; `owner/gated` is refused, nothing else is there. Gives the address."""
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def log_message(self, format: str, *args: object) -> None: ...

        def _answer(self, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            name = path.removeprefix(f"/{MODEL}/resolve/{REVISION}/")
            if name != path and name in files:
                etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
                self._send(
                    200, files[name] if body else b"", {"ETag": etag, "X-Repo-Commit": REVISION}, len(files[name])
                )
            elif path == f"/api/models/{MODEL}/tree/{REVISION}":
                entries = [{"type": "file", "path": n, "size": len(c), "oid": _oid(c)} for n, c in files.items()]
                self._send(200, json.dumps(entries).encode())
            elif path in (
                f"/api/models/{MODEL}",
                f"/api/models/{MODEL}/revision/main",
                f"/api/models/{MODEL}/revision/{REVISION}",
            ):
                siblings = [{"rfilename": n, "size": len(c), "blobId": _oid(c)} for n, c in files.items()]
                self._send(200, json.dumps({"id": MODEL, "sha": REVISION, "siblings": siblings}).encode())
            elif "owner/gated" in path:
                self._send(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
            elif f"/api/models/{MODEL}/revision/" in path:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            else:
                self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def _send(
            self, code: int, content: bytes, headers: dict[str, str] | None = None, length: int | None = None
        ) -> None:
            self.send_response(code)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content) if length is None else length))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
