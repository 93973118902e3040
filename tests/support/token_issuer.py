"""OAuth 2 issuer of tokens on a port of this machine."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs


@contextmanager
def token_issuer(grant: Callable[[dict[str, str]], dict[str, object] | None]) -> Iterator[str]:
    """Serve an issuer and yield its URL; ``grant`` answers the form of a token request, None refuses it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer({"token_endpoint": f"{url}/token"})

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            granted = grant({name: value for name, (value,) in form.items()})
            if granted is None:
                self.answer({"error": "access_denied"}, 401)
            else:
                self.answer({"token_type": "Bearer", **granted})

        def answer(self, content: dict[str, object], status: int = 200) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()
