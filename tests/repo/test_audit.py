"""`make audit` never takes a database that is silent for one that found nothing."""

import json
import os
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".audit" / "bin" / "python"
LOCKS = ("cuda.txt", "image.txt", "toolkit.txt", "dev.txt", "validators.txt", "audit.txt")
pytestmark = pytest.mark.skipif(
    not PYTHON.exists() and os.environ.get("CI") != "true", reason="no pip-audit: `make .audit/ready`"
)


class Osv:
    """An advisory database of the form of OSV, which knows what it is told: names, or names of one version."""

    def __init__(self, *known: str, status: int = 200) -> None:
        asked: set[str] = set()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = query["package"]["name"]
                asked.add(name)
                is_known = f"{name}=={query['version']}" in known or name in known
                data = json.dumps(advisory(name) if is_known else {}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_) -> None:
                pass

        self.asked, self.server = asked, ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> "Osv":
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/query"
        return self

    def __exit__(self, *_) -> None:
        self.server.shutdown()
        self.server.server_close()


def advisory(name):
    package = {"name": name, "ecosystem": "PyPI"}
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]
    return {"vulns": [{"id": "PYSEC-1", "summary": "bad", "affected": [{"package": package, "ranges": ranges}]}]}


def audit(url):
    command = [str(PYTHON), "requirements/audit.py", "-s", "osv", "--osv-url", url]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("silent", [Osv(), Osv("jinja2==2.11.2", status=500)], ids=["knows nothing", "is broken"])
def test_a_silent_database_is_said_in_one_line_and_is_no_pass(silent):
    with silent as osv:
        answer = audit(osv.url)
    assert answer.returncode == 75
    assert answer.stdout.startswith("audit: NOT CHECKED: the advisory database does not answer here (")
    assert len(answer.stdout.splitlines()) == 1
    assert "No known" not in answer.stdout + answer.stderr
    assert osv.asked <= {"jinja2"}


def test_a_database_that_nobody_reaches_is_no_pass_either():
    answer = audit("http://127.0.0.1:9/")
    assert (answer.returncode, "NOT CHECKED" in answer.stdout) == (75, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("known", "code", "said"),
    [
        (("jinja2==2.11.2",), 0, "6 of 6 locks have no known vulnerability"),
        (("jinja2==2.11.2", "supervisor"), 1, "5 of 6 locks have no known vulnerability"),
    ],
)
def test_one_that_answers_is_asked_about_every_package(known, code, said):
    with Osv(*known) as osv:
        answer = audit(osv.url)
    assert answer.returncode == code, answer.stdout + answer.stderr
    assert said in answer.stdout
    locked = {line.partition("==")[0] for name in LOCKS for line in read(name) if "==" in line and line[0].isalpha()}
    assert len(locked - osv.asked) < 25  # for another Python or system only
    assert len(locked) > 250


def read(name):
    return (ROOT / "requirements" / name).read_text().splitlines()
