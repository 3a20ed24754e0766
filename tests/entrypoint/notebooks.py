"""A real JupyterLab and TensorBoard for the tests, started as the services say, on free ports of this machine."""

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from runs import wait_for

from entrypoint import jupyter, jupyter_files


def tool(name):
    """A package of requirements/image.txt or dev.txt: without it the test is left out, but in CI it has to be there."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(name)
    return pytest.importorskip(name, reason="no JupyterLab or playwright in this environment (make setup)")


tool("jupyterlab")
websocket = tool("websocket")
PASSWORD = "a b$c*;x'\"%s#"  # what shells, configuration files and supervisor would each take apart
# A line that somebody would have to look into.
_COMPLAINT = re.compile(r"^\[[WEC] |\b(WARNING|ERROR|CRITICAL)\b|Traceback|Warning:", re.MULTILINE)

# Of an IPv6 machine, which is so; and of jupyter-server's milliseconds, which tornado takes for seconds. Once a start.
_KNOWN = re.compile("listening on all IP addresses|websocket_ping_timeout .* cannot be longer")


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return tuple(ports)


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


class Lab:
    """What is behind a port of this machine, as a browser or a program meets it."""

    def __init__(self, port: int, password: str = PASSWORD) -> None:
        self.port, self.password = port, password
        self.url = f"http://127.0.0.1:{port}"

    def log_in(self, password=None, host=None) -> tuple[int, requests.Session]:
        """What the form answers, and the browser afterwards. `host`: as a proxy in between writes it."""
        session = requests.Session()
        session.headers.update({"Host": host} if host else {})
        session.get(f"{self.url}/login")
        form = {"password": self.password if password is None else password, "_xsrf": session.cookies["_xsrf"]}
        return session.post(f"{self.url}/login", data=form, allow_redirects=False).status_code, session

    def connect(self, session, path, *, origin=None, host=None):
        cookie = "; ".join(f"{each.name}={each.value}" for each in session.cookies)
        given = {"origin": origin} if origin else {"suppress_origin": True}
        return websocket.create_connection(
            f"ws://127.0.0.1:{self.port}{path}", cookie=cookie, timeout=30, host=host, **given
        )

    def run_in_kernel(self, session, code) -> str:
        """What a notebook at the root prints."""
        made = {"kernel": {"name": "python3"}, "name": "", "path": "x.ipynb", "type": "notebook"}
        answer = session.post(f"{self.url}/api/sessions", headers=xsrf(session), json=made).json()
        assert "kernel" in answer, answer
        channel = self.connect(session, f"/api/kernels/{answer['kernel']['id']}/channels?session_id=1")
        header = {"msg_id": "1", "msg_type": "execute_request", "session": "1", "username": "", "version": "5.3"}
        request = {"header": header, "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": []}
        channel.send(json.dumps(request | {"content": {"code": code, "silent": False}}))
        said, seen = "", set()
        while not {"execute_reply", "idle"} <= seen:  # they come by two sockets
            message = json.loads(channel.recv())
            if message["parent_header"].get("msg_id") == "1":
                content = message["content"]
                seen |= {message["header"]["msg_type"], content.get("execution_state")}
                assert content.get("status", "ok") == "ok", content
                said += content.get("text", "")
        channel.close()
        session.delete(f"{self.url}/api/sessions/{answer['id']}", headers=xsrf(session))
        return said

    def run_in_terminal(self, session, line) -> None:
        name = session.post(f"{self.url}/api/terminals", headers=xsrf(session), json={}).json()["name"]
        terminal = self.connect(session, f"/terminals/websocket/{name}")
        terminal.send(json.dumps(["stdin", f"{line}; exit\r"]))
        while json.loads(terminal.recv())[0] != "disconnect":
            pass
        terminal.close()


def xsrf(session):
    return {"X-XSRFToken": session.cookies["_xsrf"]}


class Pod(Lab):
    """What `up` would start beside training. `prefix` goes before each command: another user's, for one."""

    def __init__(self, folder: Path, *, prefix=(), ports=None, **variables: str) -> None:
        self.volume, self.home = folder / "volume", folder / "home"
        for each in (self.volume, self.home):
            each.mkdir(exist_ok=True)
        self.folder, self.log = folder / "private", folder / "log"
        ports = ports or free_ports(2)
        super().__init__(ports[0])
        self.tensorboard_port = ports[1]
        self.variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TRAIN_VOLUME": str(self.volume),
            "JUPYTER_PASSWORD": PASSWORD,
            **variables,
        }
        self.services = jupyter_files.prepare(self.variables, self.volume, self.folder, print, ports=ports)
        self.configuration = json.loads((self.folder / jupyter.CONFIG).read_text())
        self.prefix, self.processes = prefix, []

    def __enter__(self) -> "Pod":
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_) -> None:
        self._stop()

    def _start(self) -> None:
        with self.log.open("a") as log:
            for service in self.services:
                process = subprocess.Popen(
                    [*self.prefix, *service.command],
                    cwd=service.folder,
                    env=self.variables | service.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                self.processes.append(process)
        for address in (f"{self.url}/login", f"http://127.0.0.1:{self.tensorboard_port}/data/runs"):
            wait_for(lambda address=address: self._answers(address), f"{address}\n{self.log.read_text()}", 90)

    def _answers(self, address: str) -> bool:
        assert [process.poll() for process in self.processes] == [None] * len(self.processes), self.log.read_text()
        try:
            return requests.get(address, timeout=5).ok
        except requests.ConnectionError:
            time.sleep(0.2)
            return False

    def _stop(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def complaints(self) -> list[str]:
        lines = self.log.read_text().splitlines()
        return [line for line in lines if _COMPLAINT.search(line) and not _KNOWN.search(line)]
