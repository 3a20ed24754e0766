"""JupyterLab and TensorBoard in a real Chromium: directly, and behind a TLS proxy that changes the Host.

ROUNDHOUSE_PICTURES=DIR keeps what was seen.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from notebooks import PASSWORD, Pod, free_ports, roundhouse
from runs import ROOT, wait_for

pytestmark = pytest.mark.slow
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
    small = ("--steps", "24", "--seq-length", "32", "--global-batch", "8", "--eval-every", "8", "--log-every", "2")
    roundhouse(pod, "train", "ddp", "--data", f"{ROOT}/docs/*.md", *small, TRAIN_NPROC="1")
    with pod:
        yield pod


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium


@pytest.fixture
def context(chromium, tmp_path, request):
    """A window of a browser that nobody has used; `extra`: what is beside the usual on its command line."""
    extra = getattr(request, "param", [])
    context = chromium.launch_persistent_context(
        str(tmp_path / "profile"),
        executable_path=CHROMIUM,
        args=NO_NETWORK + extra,
        viewport={"width": 1280, "height": 800},
        ignore_https_errors=True,
    )
    context.set_default_timeout(60_000)
    yield context
    context.close()


def picture(page, name):
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / f"{name}.png")


def log_in(page, address, password=PASSWORD):
    page.goto(address)
    page.fill("input[name=password]", password)
    page.click("#login_submit")


def run_all(page):
    """As a person does: the menu, then the entry."""
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.locator(".jp-OutputArea-output svg polyline").first.wait_for()


@needs(CHROMIUM, "chromium")
def test_a_wrong_password_is_told_and_shows_nothing(pod, context):
    page = context.pages[0]
    log_in(page, pod.url, "wrong")
    page.get_by_text("Invalid credentials").wait_for()
    picture(page, "login")
    page.goto(f"{pod.url}/lab")
    assert page.locator("input[name=password]").is_visible()


@needs(CHROMIUM, "chromium")
def test_the_opening_notebook_shows_plan_runs_and_curves(pod, context):
    page = context.pages[0]
    log_in(page, pod.url)
    run_all(page)
    assert "environment  one node" in page.locator(".jp-OutputArea-output").first.inner_text()
    assert page.locator(".jp-OutputArea-output td").all_inner_texts()[:4] == ["ddp", "finished", "24", "24"]
    page.locator(".jp-OutputArea-output svg").scroll_into_view_if_needed()
    picture(page, "notebook")
    assert page.get_by_text("would you like", exact=False).count() == 0  # no question about news


@needs(CHROMIUM, "chromium")
def test_a_terminal_opens_on_the_volume_and_tensorboard_shows_the_run(pod, context):
    page = context.pages[0]
    log_in(page, pod.url)
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.get_by_role("menuitem", name="New Launcher", exact=False).click()
    page.locator(".jp-LauncherCard", has_text="Terminal").wait_for()
    picture(page, "launcher")
    with context.expect_page() as opened:
        page.locator(".jp-LauncherCard", has_text="TensorBoard").click()
    board = opened.value
    board.locator("text=ddp/tensorboard").first.wait_for()
    board.locator("scalar-card, tb-line-chart, line-chart").first.wait_for()
    board.get_by_text("validation_loss", exact=False).first.wait_for()
    picture(board, "tensorboard")
    page.bring_to_front()
    page.locator(".jp-LauncherCard", has_text="Terminal").click()
    page.locator(".xterm-helper-textarea").wait_for(state="attached")
    page.locator(".xterm-screen").click()
    page.keyboard.type("pwd > typed.partial && mv typed.partial typed\n")
    wait_for((pod.volume / "typed").exists, "the terminal did nothing")
    assert (pod.volume / "typed").read_text().strip() == str(pod.volume)
    picture(page, "terminal")


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
PROXY_PORT = free_ports(1)[0]


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
@pytest.mark.parametrize("context", [[f"--host-resolver-rules=MAP * 127.0.0.1:{PROXY_PORT}"]], indirect=True)
def test_behind_a_clouds_proxy_the_notebook_runs_and_the_cookie_is_for_tls_only(pod, proxy, context):
    page = context.pages[0]
    log_in(page, ADDRESS)
    page.wait_for_url(f"{ADDRESS}/lab/tree/roundhouse.ipynb")
    run_all(page)
    login = [cookie for cookie in context.cookies() if cookie["name"].startswith("username-")]
    assert [cookie["secure"] and cookie["httpOnly"] for cookie in login] == [True]
