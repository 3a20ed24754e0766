"""Scripts as people have them: any suffix, any line endings, blanks in the path, no x bit."""

import pytest
import runs

from entrypoint.errors import SettingError
from entrypoint.recipes import choose_recipe
from entrypoint.scripts import WITHOUT_CR, choose_interpreter, complete, refuse_missing


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.py", b"print()\r\n", None),
        ("t.py", b"#!/no/such/python\n", None),
        ("t", b"#!/usr/bin/env python3\n", None),
        ("t", b"#!/usr/bin/env -S python3\r\n", None),
        ("run.sh", b"echo\n", ("bash",)),
        ("run.sh", b"#!/bin/sh\necho\n", ("/bin/sh",)),
        ("run.sh", b"#!/usr/bin/env bash\necho\n", ("bash",)),
        ("run.sh", b"#!/bin/bash -e\necho\n", ("/bin/bash", "-e")),
        ("run.sh", b"echo\r\n", ("bash", "-c", WITHOUT_CR)),
        ("run.sh", b"#!/bin/bash\r\necho\r\n", ("bash", "-c", WITHOUT_CR)),
        ("run", b"#!/bin/bash\r\necho\r\n", ("bash", "-c", WITHOUT_CR)),
    ],
)
def test_suffix_and_first_line_choose_what_runs_it(tmp_path, name, content, expected):
    assert choose_interpreter(tmp_path / name, content) == expected


@pytest.mark.parametrize(
    ("content", "quoted"), [(b"echo\n", "no #! line"), (b"#!/no/such/interpreter\n", "/no/such/interpreter")]
)
def test_what_cannot_be_run_is_said(tmp_path, content, quoted):
    path = tmp_path / "script"
    path.write_bytes(content)
    with pytest.raises(SettingError, match=quoted) as caught:
        complete(choose_recipe(str(path), base=tmp_path))
    assert caught.value.exit_code == 78


def test_a_program_is_run_as_it_is(tmp_path):
    path = tmp_path / "program"
    path.write_bytes(b"\x7fELF")
    path.chmod(0o755)
    assert complete(choose_recipe(str(path), base=tmp_path)).target == ("--no-python", str(path))


@pytest.mark.parametrize(("given", "quoted"), [("no-such.py", "no such file"), (".//", "is a folder")])
def test_a_path_without_a_script_is_refused(tmp_path, given, quoted):
    with pytest.raises(SettingError, match=quoted):
        refuse_missing(complete(choose_recipe(given, base=tmp_path)))


def test_arguments_in_the_path_are_pointed_out(tmp_path):
    with pytest.raises(SettingError, match=r"my\.py --lr 3") as caught:
        refuse_missing(choose_recipe("./my.py --lr 3", base=tmp_path))
    assert "TRAIN_ARGS" in caught.value.fix


ECHO = b"""#!/bin/bash
set -eu
echo "$(basename "$0") rank $RANK got $# words: $*"
if [ "$1" = stop ]; then
  exit 5
fi
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("content", [ECHO, ECHO.replace(b"\n", b"\r\n"), ECHO.partition(b"\n")[2]])
@pytest.mark.parametrize("name", ["run.sh", "my run.sh"])
def test_a_shell_script_runs_with_its_words_and_its_code(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    (tmp_path / name).chmod(0o644)
    variables = {"TRAIN_SCRIPT": f"{tmp_path}/{name}", "TRAIN_ARGS": "stop 'two words' '$(touch here)' `id`"}
    code, output = runs.train(tmp_path, cwd=tmp_path, **variables)
    assert code == 5, output
    # One rank's code ends the other, which may not have begun to speak.
    assert any(f"[n0r{n}] {name} rank {n} got 4 words: stop two words $(touch here) `id`" in output for n in (0, 1))
    assert not (tmp_path / "here").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_train_of_the_users_shadows_nothing_and_is_not_shadowed(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").write_text("whose = 'the user'\n")
    (tmp_path / "options.py").write_text("whose = 'the user'\n")
    (tmp_path / "main.py").write_text("import options, train\nprint(options.whose, train.whose)\n")
    code, output = runs.train(tmp_path, "./main.py", cwd=tmp_path)
    assert code == 0, output
    assert "[n0r0] the user the user" in output
    code, output = runs.train(tmp_path, "-m", "train.own", cwd=tmp_path)
    assert code == 1
    assert "No module named train.own" in output
    (tmp_path / "train" / "own.py").write_text("import sys, train\nprint(train.whose, sys.argv[1:])\n")
    code, output = runs.train(tmp_path, cwd=tmp_path, TRAIN_SCRIPT="-m train.own", TRAIN_ARGS="a 'b c'")
    assert code == 0, output
    assert "[n0r1] the user ['a', 'b c']" in output
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(2000)))
    small = ("--steps", "2", "--seq-length", "32", "--global-batch", "2", "--data", text)
    code, output = runs.train(tmp_path, "ddp", *small, cwd=tmp_path)
    assert code == 0, output
