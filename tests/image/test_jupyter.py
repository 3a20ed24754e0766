"""JupyterLab and TensorBoard of a container: what `up` makes of the variables. No training: seconds each."""

import re

import containers
import pytest
from notebooks import PASSWORD, Lab, xsrf

# As a cloud starts a node of a cluster: a plain program must not take itself for one process of sixteen.
CLUSTER = {"RUNPOD_POD_ID": "abc123", "NUM_NODES": "1", "NUM_TRAINERS": "16", "WORLD_SIZE": "16", "NODE_RANK": "0"}
LOCKED = ("--user", "1234", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
LOCKED += ("--security-opt", "no-new-privileges")
USERS = {"root": (), "a user without a name or rights, on a read-only root": LOCKED}

# 401 and 403 that the test asked for, and jupyter-server's milliseconds, which tornado takes for seconds.
KNOWN = re.compile(r" WARNING .* 40[13] |40[13] (POST|GET)|websocket_ping_timeout")


def start(engine, *options, **variables):
    """A container, and its port 8888 on this machine."""
    container = engine.start(options=("-p", "127.0.0.1::8888", *options), variables=variables)
    container.wait_for("Jupyter Server", 120)
    published = containers.docker("port", container.name, "8888/tcp").stdout
    return container, Lab(int(re.match(r"127\.0\.0\.1:(\d+)$", published, re.MULTILINE)[1]))


@pytest.mark.parametrize("options", USERS.values(), ids=USERS)
def test_a_password_opens_notebooks_terminals_and_tensorboard_and_is_nowhere_to_be_seen(engine, options):
    volume = engine.volume()
    containers.docker("run", "--rm", "-v", f"{volume}:/workspace", containers.IMAGE, "chmod", "1777", "/workspace")
    container, lab = start(engine, "-v", f"{volume}:/workspace", *options, JUPYTER_PASSWORD=PASSWORD, **CLUSTER)
    container.wait_for("TensorBoard 2")
    assert lab.log_in("wrong")[0] == 401
    answer, browser = lab.log_in()
    assert answer == 302
    assert browser.get(lab.url).url == f"{lab.url}/lab/tree/roundhouse.ipynb"
    said = lab.run_in_kernel(
        browser, "import os, sys; print(sys.executable, os.getcwd(), os.environ.get('WORLD_SIZE'))"
    )
    assert said.split() == ["/opt/venv/bin/python", "/workspace", "None"]
    plan = lab.run_in_kernel(browser, "print(__import__('subprocess').getoutput('roundhouse plan'))")
    assert "16 processes a node (NUM_TRAINERS)" in plan  # our own command knows the cluster
    lab.run_in_terminal(browser, "(which python; pwd; env | grep -c ^RUNPOD_POD_ID=abc123) > /workspace/typed")
    assert container.read("/workspace/typed").split() == ["/opt/venv/bin/python", "/workspace", "1"]
    assert "scalars" in browser.get(f"{lab.url}/tensorboard/data/plugins_listing").json()
    assert browser.post(f"{lab.url}/api/kernels", json={}).status_code == 403  # no XSRF token
    spec = browser.get(f"{lab.url}/api/kernelspecs", headers=xsrf(browser)).json()["kernelspecs"]["python3"]["spec"]
    assert (spec["display_name"], spec["argv"][0]) == ("Python 3.11 (/opt/venv)", "/opt/venv/bin/python")
    assert PASSWORD not in container.execute("ps", "-eo", "args", "--cols", "1000")
    assert PASSWORD not in container.logs()
    assert container.listening() == {8888}
    assert [one for one in containers.complaints(container.logs()) if not KNOWN.search(one)] == []


@pytest.mark.parametrize("variables", [{"JUPYTER_PASSWORD": "null"}, {"JUPYTER_PASSWORD": "x", "JUPYTER_DISABLE": "1"}])
def test_without_a_password_nothing_listens(engine, variables):
    container = engine.start(variables=variables | {"RUNPOD_POD_ID": "abc123"})
    container.wait_for("this container stays")
    assert container.listening() == set()
    assert "jupyter" not in container.execute("roundhouse", "status", check=False)


def test_a_wrong_setting_of_jupyterlab_is_told_and_holds_up_nothing_else(engine):
    container = engine.start(variables={"JUPYTER_PASSWORD": "x", "JUPYTER_ALLOW_ORIGIN": "*"})
    container.wait_for("this container stays")
    assert "no JupyterLab: JUPYTER_ALLOW_ORIGIN=* is not the address of one proxy" in container.logs()
    assert container.listening() == set()
