"""A real JupyterLab: who gets in, what works there, and what it leaves behind."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
import requests
from notebooks import PASSWORD, Pod, websocket, xsrf

pytestmark = pytest.mark.slow
OWN_PROXY = "https://abc123-8888.proxy.runpod.net"
BEHIND = "100.65.0.2:60123"  # the Host that comes from it
# Names that a user's files may have, and that a program started in their folder would import.
TRAPS = ("random.py", "logging.py", "tornado.py", "numpy.py")


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    pod = Pod(tmp_path_factory.mktemp("pod"), RUNPOD_POD_ID="abc123")
    for name in TRAPS:
        (pod.volume / name).write_text("raise SystemExit('a file of the user was imported')\n")
    with pod:
        yield pod


@pytest.fixture(scope="module")
def browser(pod):
    code, session = pod.log_in()
    assert code == 302
    return session


@pytest.mark.parametrize("password", ["", " ", "wrong", PASSWORD[:-1], PASSWORD + "x", PASSWORD.upper(), "null"])
def test_a_wrong_password_is_refused(pod, password):
    code, session = pod.log_in(password)
    assert code == 401
    assert session.get(f"{pod.url}/api/contents").status_code == 403


def test_the_password_is_taken_exactly_as_it_was_given(pod):
    assert pod.log_in(PASSWORD)[0] == 302
    # as the clouds' consoles open it, and as programs do
    assert requests.get(f"{pod.url}/api/contents", params={"token": PASSWORD}).ok
    assert requests.get(f"{pod.url}/api/contents", headers={"Authorization": f"token {PASSWORD}"}).ok


@pytest.mark.parametrize("path", ["/", "/lab", "/tensorboard/", "/tensorboard/data/runs", "/proxy/6006/", "/files/x"])
def test_a_page_without_the_password_is_the_login_page(pod, path):
    answer = requests.get(pod.url + path)
    assert answer.url.startswith(f"{pod.url}/login")
    assert 'type="password"' in answer.text


@pytest.mark.parametrize("path", ["/api/contents", "/api/kernels", "/api/terminals", "/lab/api/settings/"])
def test_nothing_is_told_without_the_password(pod, path):
    assert requests.get(pod.url + path, allow_redirects=False).status_code in (302, 403)


def test_the_first_page_is_the_opening_notebook(pod, browser):
    assert browser.get(pod.url).url == f"{pod.url}/lab/tree/roundhouse.ipynb"


@pytest.mark.parametrize(
    ("origin", "host", "let_in"),
    [
        (None, None, True),  # a program that has the cookie
        (OWN_PROXY, BEHIND, True),  # Runpod's proxy
        ("https://pod.example:1234", "pod.example:1234", True),  # a proxy that keeps the Host
        ("https://evil.example", BEHIND, False),
        ("https://other-8888.proxy.runpod.net", BEHIND, False),  # somebody else's pod
        (f"{OWN_PROXY}.evil.example", BEHIND, False),
        ("https://abc123-8888xproxy.runpod.net", BEHIND, False),
        (OWN_PROXY.replace("https", "http"), BEHIND, False),
        ("null", BEHIND, False),
    ],
)
def test_a_kernel_is_open_to_our_own_pages_only(pod, origin, host, let_in):
    _, session = pod.log_in(host=host)
    kernel = session.post(f"{pod.url}/api/kernels", headers=xsrf(session), json={}).json()["id"]
    path = f"/api/kernels/{kernel}/channels"
    try:
        if let_in:
            pod.connect(session, path, origin=origin, host=host).close()
        else:
            with pytest.raises(websocket.WebSocketBadStatusException) as caught:
                pod.connect(session, path, origin=origin, host=host)
            assert caught.value.status_code == 403
            pod.connect(session, path, host=host).close()  # so it was the origin
    finally:
        session.delete(f"{pod.url}/api/kernels/{kernel}", headers=xsrf(session))


def test_a_foreign_form_starts_no_kernel(pod, browser):
    assert browser.post(f"{pod.url}/api/kernels", json={}).status_code == 403
    foreign = xsrf(browser) | {"Origin": "https://evil.example"}
    assert browser.post(f"{pod.url}/api/kernels", json={}, headers=foreign).status_code in (403, 404)
    assert browser.get(f"{pod.url}/api/kernels").json() == []


def test_a_notebook_runs_in_the_interpreter_of_the_image_and_in_its_folder(pod, browser):
    said = pod.run_in_kernel(browser, "import os, sys; print(sys.executable, os.getcwd())")
    assert said.split() == [sys.executable, str(pod.volume)]


def test_a_terminal_is_a_login_shell_on_the_volume(pod, browser):
    pod.run_in_terminal(browser, "shopt login_shell > done; pwd >> done")
    assert (pod.volume / "done").read_text().split() == ["login_shell", "on", str(pod.volume)]


def test_tensorboard_is_reached_through_jupyterlab_by_name_and_by_port(pod, browser):
    for path in ("tensorboard", f"proxy/{pod.tensorboard_port}"):
        answer = browser.get(f"{pod.url}/{path}/data/plugins_listing")
        assert "scalars" in answer.json(), path
        assert "TensorBoard" in browser.get(f"{pod.url}/{path}/").text


def test_tensorboard_listens_on_loopback_and_jupyterlab_on_every_family(pod):
    ours = {process.pid for process in pod.processes}
    found = [c.laddr for c in psutil.net_connections("tcp") if c.pid in ours and c.status == "LISTEN"]
    expected = {("127.0.0.1", pod.tensorboard_port), ("0.0.0.0", pod.port)}
    if pod.configuration["ServerApp"]["ip"] == "*":
        expected.add(("::", pod.port))
    assert {(address.ip, address.port) for address in found} == expected


def test_the_secret_is_in_no_process_list_no_log_and_no_file_for_others(pod, browser):
    browser.get(f"{pod.url}/api/contents", params={"token": PASSWORD})
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if PASSWORD in command]
    for form in (PASSWORD, requests.utils.quote(PASSWORD), requests.utils.quote(PASSWORD).replace("%20", "+")):
        assert form not in pod.log.read_text()
    for path in pod.folder.rglob("*"):
        others = stat.S_IMODE(path.stat().st_mode) & 0o077
        assert path.is_dir() or not others or PASSWORD not in path.read_text(errors="replace"), path
    assert stat.S_IMODE(pod.folder.stat().st_mode) == 0o700


def test_nothing_is_left_in_the_home(pod, browser):
    pod.run_in_kernel(browser, "%history -g")
    # a login shell's, and npm's, which jupyter-lsp asks where it is installed
    assert {path.name for path in pod.home.iterdir()} <= {".bash_history", ".npm"}


def test_a_deleted_file_is_gone_and_no_trash_grows_on_the_volume(pod, browser):
    (pod.volume / "old.txt").write_text("x")
    assert browser.delete(f"{pod.url}/api/contents/old.txt", headers=xsrf(browser)).status_code == 204
    assert not [path for path in pod.volume.rglob("*") if "rash" in path.name or path.name == "old.txt"]


def test_a_taken_port_is_a_failure_and_no_other_port_is_opened(pod, tmp_path):
    second = Pod(tmp_path, ports=(pod.port, pod.tensorboard_port))
    for service in second.services:
        environment = second.variables | service.environment
        ended = subprocess.run(service.command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        assert str(pod.port if service.name == "jupyter" else pod.tensorboard_port) in ended.stderr


OTHERS_REACH_IT = all(parent.stat().st_mode & 0o001 for parent in Path(sys.executable).resolve().parents)
USERS = {
    "this user": (),
    "a user without a name or a home": pytest.param(
        ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"),
        marks=pytest.mark.skipif(
            os.getuid() != 0 or not OTHERS_REACH_IT, reason="needs root, and a Python outside of root's home"
        ),
    ),
}


@pytest.mark.parametrize("prefix", USERS.values(), ids=USERS)
def test_nothing_is_complained_of(prefix):
    with tempfile.TemporaryDirectory() as name:  # not pytest's folder, which is this user's alone
        pod = Pod(Path(name), prefix=prefix, HOME="/")
        for path in (Path(name), *Path(name).rglob("*")):
            os.chown(path, *((12345, 12345) if prefix else (-1, -1)))
        with pod:
            code, session = pod.log_in()
            assert code == 302
            user = 12345 if prefix else os.getuid()
            assert pod.run_in_kernel(session, "import os; print(os.getuid())").split() == [str(user)]
            assert pod.complaints() == []
