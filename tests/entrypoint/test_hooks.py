"""Hooks of an image or a volume: each is run and told of, and the boot goes on."""

import os
import signal
import threading
import time

import psutil
import pytest

from entrypoint import hooks

VARIABLES = {"PATH": os.environ["PATH"], "WORD": "a b"}


@pytest.fixture
def boot(tmp_path):
    """The files under a root, run as `up` runs them; what was said."""

    def run(files, modes=()):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode() if isinstance(text, str) else text)
        for name in modes:
            (tmp_path / name).chmod(0o755)
        said: list[str] = []
        hooks.before_services(VARIABLES, said.append, root=tmp_path)
        hooks.after_services(VARIABLES, tmp_path / "workspace", said.append, root=tmp_path)
        return said

    return run


def output(said):
    return [line for line in said if line.startswith("[")]


def test_they_run_in_their_order_with_the_containers_environment(boot):
    files = {
        "pre_start.sh": 'echo "1 $WORD"',
        "etc/roundhouse/hooks.d/20-b.sh": "echo 3",
        "etc/roundhouse/hooks.d/10-a.py": "import os\nprint(2, os.environ['WORD'])",
        "workspace/hooks.d/a.sh": "echo 4",
        "post_start.sh": "echo 5; pwd",
    }
    said = boot(files)
    wanted = ("[pre_start.sh] 1 a b", "[10-a.py] 2 a b", "[20-b.sh] 3", "[a.sh] 4", "[post_start.sh] 5")
    assert output(said) == [*wanted, "[post_start.sh] /"]
    assert sum(" ended after " in line for line in said) == 5


def test_without_hooks_nothing_is_said(boot):
    assert boot({}) == []


@pytest.mark.parametrize(
    ("text", "mode", "last"),
    [
        (b"#!/bin/bash\r\necho one\r\nif true; then\r\n  echo two\r\nfi\r\n", False, "[post_start.sh] two"),  # CRLF
        ("#!/no/such/shell\necho no", False, "not run"),
        ("echo without x bit", False, "[post_start.sh] without x bit"),
        ("#!/usr/bin/env python3\nprint('python')", True, "[post_start.sh] python"),
        ("printf 'no end of line'", False, "[post_start.sh] no end of line"),
        (b"printf '\\xff\\n'", False, "[post_start.sh] \ufffd"),
    ],
)
def test_line_ends_modes_and_first_lines_are_what_people_write(boot, text, mode, last):
    said = boot({"post_start.sh": text}, modes=["post_start.sh"] if mode else [])
    assert any(last in line for line in said), said


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("echo before; echo why >&2; exit 3", "failed: exit code 3; the boot goes on"),
        ("echo before; echo why >&2; kill -SEGV $$", "failed: killed by SIGSEGV; the boot goes on"),
        ("echo before; echo why >&2; no-such-program", "failed: exit code 127; the boot goes on"),
    ],
)
def test_one_that_fails_is_told_with_its_output_and_the_next_runs(boot, text, how):
    said = boot({"pre_start.sh": text, "post_start.sh": "echo next"})
    assert "[pre_start.sh] why" in said
    assert any(how in line for line in said), said
    assert "[post_start.sh] next" in said


def test_one_that_hangs_is_ended_with_what_it_started_after_a_time_that_is_said(boot, monkeypatch, tmp_path):
    monkeypatch.setattr(hooks, "LIMIT_SECONDS", 1.0)
    monkeypatch.setattr(hooks, "_SAY_SECONDS", 0.4)
    began = time.monotonic()
    said = boot({"pre_start.sh": f"sleep 4000 & echo $! > {tmp_path}/pid; sleep 4000", "post_start.sh": "echo next"})
    assert time.monotonic() - began < 8
    assert any("after 1 s it is ended" in line for line in said)
    assert any("had not ended after 1 s and was ended" in line for line in said)
    assert "[post_start.sh] next" in said
    left = [p for p in psutil.process_iter() if p.pid == int((tmp_path / "pid").read_text())]
    assert [p.status() for p in left] in ([], ["zombie"])  # process 1 collects it


def test_what_a_hook_leaves_in_the_background_lives_on(boot, tmp_path):
    said = boot({"post_start.sh": f"sleep 30 & echo $! > {tmp_path}/pid"})
    pid = int((tmp_path / "pid").read_text())
    try:
        assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        assert " ended after " in said[-1]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_only_scripts_and_programs_of_a_folder_are_run(boot):
    folder = "workspace/hooks.d"
    names = ("README.md", "old.sh.bak", ".hidden.sh", "a.sh~", "notes")
    said = boot({f"{folder}/{name}": "echo wrong" for name in names} | {f"{folder}/tool": "#!/bin/sh\necho right"},
                modes=[f"{folder}/tool", f"{folder}/README.md"])  # fmt: skip
    assert output(said) == ["[tool] right"]


def test_a_folder_that_is_closed_is_said(boot, tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/hooks.d").write_text("no folder")
    assert "its hooks are left out" in boot({})[0]


def test_a_request_to_end_ends_the_hook_and_the_boot(boot):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(hooks.Stopped):
        boot({"pre_start.sh": "sleep 4000"})
    assert signal.getsignal(signal.SIGTERM) is before
