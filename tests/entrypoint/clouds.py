"""A cloud's API on this machine: a real HTTP server that answers, fails, stalls or hangs up, as it is told."""

import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

OK = (200, {"success": True})


@dataclass
class Seen:
    method: str
    path: str
    headers: dict
    body: object


@dataclass
class Api:
    """`script`: what each request gets, the last for all that follow. A word: "stall", "reset", "drip"."""

    script: list = field(default_factory=lambda: [OK])
    seen: list = field(default_factory=list)
    host: str = "127.0.0.1"

    def __enter__(self) -> "Api":
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length).decode()
                api.seen.append(Seen(self.command, self.path, dict(self.headers), json.loads(body) if body else None))
                api.answer(self, api.script[min(len(api.seen), len(api.script)) - 1])

            do_GET = do_POST = do_PUT = do_DELETE = do  # noqa: N815

            def log_message(self, *_) -> None:
                pass

        self.over = threading.Event()
        self.server = ThreadingHTTPServer((self.host, 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{self.host}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler, what) -> None:
        if what == "stall":
            self.over.wait(60)
        elif what == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        elif what == "drip":
            handler.send_response(200)
            handler.send_header("Content-Length", "1000")
            handler.end_headers()
            while not self.over.wait(0.1):
                handler.wfile.write(b" ")
        else:
            status, body, *headers = what
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            handler.send_response(status)
            for name, value in headers[0].items() if headers else ():
                handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            handler.wfile.write(data)

    def wait_for(self, count: int, seconds: float = 20) -> None:
        until = time.monotonic() + seconds
        while len(self.seen) < count:
            assert time.monotonic() < until, f"{len(self.seen)} requests"
            time.sleep(0.05)
