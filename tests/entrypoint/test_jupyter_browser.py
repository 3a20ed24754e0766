"""JupyterLab and TensorBoard in a real Chromium: directly, and behind a TLS proxy that changes the Host.

ROUNDHOUSE_PICTURES=DIR keeps what was seen.
"""

import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from metrics import Metrics
from notebooks import PASSWORD, Pod, is_free, tool
from options import Options
from runs import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.torch]
CHROMIUM, NGINX = shutil.which("chromium"), shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
NO_NETWORK = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
ADDRESS = "https://abc123-8888.proxy.runpod.net"
PICTURES = os.environ.get("ROUNDHOUSE_PICTURES")


def needs(program, package):
    there = program is not None or os.environ.get("CI") == "true"
    return pytest.mark.skipif(not there, reason=f"no {package} here (apt install {package})")


@pytest.fixture(scope="module")
def pod(tmp_path_factory):
    pod = Pod(tmp_path_factory.mktemp("pod"), RUNPOD_POD_ID="abc123")
    make_run(pod.volume / "runs" / "ddp")
    with pod:
        yield pod


def make_run(folder):
    """What a recipe leaves, written by the recipes' own code; a training would take minutes on a busy machine."""
    folder.mkdir(parents=True)
    metrics = Metrics(folder, Options(steps=400, global_batch=8), speak=True)
    for step in range(10, 401, 10):
        metrics.log(step, 1.7 + 4 / math.sqrt(step) + math.sin(step) / 20, 3e-3)
        if step % 100 == 0:
            metrics.log_validation(step, 1.8 + 4 / math.sqrt(step))
    for name, text in {"plan.json": "{}", "step": "400", "exit.json": '{"exit_code": 0, "text": "finished"}'}.items():
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def chromium():
    with tool("playwright.sync_api").sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture
def page(chromium, tmp_path, request):
    """Of a browser that nobody has used. A parameter: what is beside the usual on its command line."""
    context = chromium.launch_persistent_context(
        str(tmp_path / "profile"),
        executable_path=CHROMIUM,
        args=NO_NETWORK + getattr(request, "param", []),
        viewport={"width": 1200, "height": 700},
        ignore_https_errors=True,
    )
    context.set_default_timeout(60_000)
    yield context.pages[0]
    context.close()


def picture(page, name):
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def log_in(page, address, password=PASSWORD):
    try:
        page.goto(address)
    except tool("playwright.sync_api").Error as error:  # a container elsewhere on the machine has come or gone
        if "ERR_NETWORK_CHANGED" not in str(error):
            raise
        page.goto(address)
    page.fill("input[name=password]", password)
    page.click("#login_submit")


def tiles(page, pod):
    """Of the launcher, which Lab shows where no notebook is open."""
    page.wait_for_url("**/lab/**")
    page.goto(f"{pod.url}/lab?reset")
    return page.locator(".jp-LauncherCard")


def run_all(page):
    page.get_by_text(re.compile(r"^Python .* \| Idle$")).wait_for()
    for entry in ("Run", "Run All Cells"):
        page.get_by_role("menuitem", name=entry, exact=True).click()
    page.locator(".jp-OutputArea-output svg polyline").wait_for()


@needs(CHROMIUM, "chromium")
def test_a_wrong_password_is_told_and_shows_nothing(pod, page):
    log_in(page, pod.url, "wrong")
    page.get_by_text("Invalid credentials").wait_for()
    picture(page, "login")
    page.goto(f"{pod.url}/lab")
    assert page.locator("input[name=password]").is_visible()
    assert page.get_by_text("JUPYTER_PASSWORD").is_visible()


@needs(CHROMIUM, "chromium")
def test_the_opening_notebook_shows_plan_runs_and_curves(pod, page):
    log_in(page, pod.url)
    run_all(page)
    output = page.locator(".jp-OutputArea-output")
    assert "environment  one node" in output.first.inner_text()
    assert output.locator("td").all_inner_texts()[:4] == ["ddp", "finished", "400", "400"]
    assert output.locator("svg circle").count() == 4  # a validation every 100 steps
    assert page.get_by_text("Jupyter news").count() == 0  # whether one would like to get them
    page.set_viewport_size({"width": 1100, "height": 1340})
    page.locator("h1").scroll_into_view_if_needed()
    picture(page, "notebook")


@needs(CHROMIUM, "chromium")
def test_a_terminal_opens_on_the_volume(pod, page):
    log_in(page, pod.url)
    tiles(page, pod).filter(has_text="Terminal").click()

    def answered():  # what is typed before the shell is there is lost
        page.locator(".xterm-screen").click()
        page.keyboard.type("pwd > typed.partial && mv typed.partial typed\n")
        page.wait_for_timeout(1000)
        return (pod.volume / "typed").exists()

    wait_for(answered, "the terminal did nothing")
    assert (pod.volume / "typed").read_text().strip() == str(pod.volume)
    picture(page, "terminal")


@needs(CHROMIUM, "chromium")
def test_tensorboard_opens_from_the_launcher_and_shows_the_run(pod, page):
    log_in(page, pod.url)
    tile = tiles(page, pod).filter(has_text="TensorBoard")
    tile.locator("img").evaluate("icon => icon.decode()")
    picture(page, "launcher")
    with page.context.expect_page() as opened:
        tile.click()
    board = opened.value
    board.get_by_text("ddp/tensorboard").first.wait_for()
    board.goto(f"{pod.url}/tensorboard/?tagFilter=loss")
    board.locator("line-chart").first.wait_for()
    board.get_by_role("button", name="Settings").click()  # closes what covers half of it
    board.locator("card-view", has_text="1.8575").first.wait_for()  # the last loss, below its curve
    board.wait_for_timeout(3000)  # the curves are drawn slowly
    picture(board, "tensorboard")


NGINX_CONF = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/cert.pem; ssl_certificate_key {folder}/key.pem;
    location / {{
      proxy_pass http://127.0.0.1:{upstream};
      proxy_http_version 1.1;
      proxy_set_header Host 100.65.0.2:60123;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-Proto https;
      proxy_set_header X-Forwarded-For $remote_addr;
    }}
  }}
}}
"""
# Below the ports that the kernel gives to others, since it is chosen long before it is used.
PROXY_PORT = next(port for port in range(20443, 32768) if is_free(port))


@pytest.fixture
def proxy(pod, tmp_path):
    """As a cloud's: TLS ends here, and what is behind sees another Host than the browser."""
    subject = ("-subj", "/CN=proxy", "-days", "2", "-nodes", "-newkey", "rsa:2048")
    files = ("-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem")
    subprocess.run(["openssl", "req", "-x509", *subject, *files], check=True, capture_output=True)
    (tmp_path / "conf").write_text(NGINX_CONF.format(folder=tmp_path, port=PROXY_PORT, upstream=pod.port))
    process = subprocess.Popen([NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "conf"), "-e", "stderr"])
    wait_for((tmp_path / "nginx.pid").exists, "nginx did not start")
    yield
    process.terminate()
    process.wait(10)


@needs(CHROMIUM, "chromium")
@needs(NGINX, "nginx-light")
@pytest.mark.parametrize("page", [[f"--host-resolver-rules=MAP * 127.0.0.1:{PROXY_PORT}"]], indirect=True)
def test_behind_a_clouds_proxy_the_notebook_runs_and_the_cookie_is_for_tls_only(pod, proxy, page):
    log_in(page, ADDRESS)
    run_all(page)
    assert page.url.startswith(f"{ADDRESS}/lab/tree/roundhouse.ipynb")
    login = [cookie for cookie in page.context.cookies() if cookie["name"].startswith("username-")]
    assert [cookie["secure"] and cookie["httpOnly"] for cookie in login] == [True]
