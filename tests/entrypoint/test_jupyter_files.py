"""What is written for JupyterLab, and what of a person's is left alone."""

import json
import os
import stat

import pytest
from mounts import as_root, hung

from entrypoint import jupyter, jupyter_files
from entrypoint.jupyter_files import OPENING, put_opening

VARIABLES = {"JUPYTER_PASSWORD": "hunter2", "HOME": "/root"}


def test_without_a_secret_nothing_is_started_and_nothing_written(tmp_path):
    assert jupyter_files.prepare({"JUPYTER_PASSWORD": "null"}, tmp_path, tmp_path / "run", print) == ()
    assert list(tmp_path.iterdir()) == []


def test_the_secret_is_in_one_file_that_only_this_user_reads(tmp_path):
    volume, folder = tmp_path / "volume", tmp_path / "run"
    volume.mkdir()
    (folder / jupyter.CONFIG).parent.mkdir(parents=True)
    (folder / jupyter.CONFIG).write_text("older, and readable by all")
    umask = os.umask(0)
    try:
        jupyter_files.prepare(VARIABLES, volume, folder, print)
    finally:
        os.umask(umask)
    holding = [path for path in tmp_path.rglob("*") if path.is_file() and "hunter2" in path.read_text()]
    assert holding == [folder / jupyter.CONFIG]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600


def test_without_the_volume_it_starts_in_the_home_and_says_so(tmp_path):
    said = []
    variables = VARIABLES | {"HOME": str(tmp_path)}
    lab, _ = jupyter_files.prepare(variables, tmp_path / "volume", tmp_path / "run", said.append)
    assert lab.folder == tmp_path
    assert said == [f"{tmp_path}/volume is not there: JupyterLab shows {tmp_path}"]
    assert not (tmp_path / "volume").exists()  # a folder in its place would hide that the mount is missing


@as_root
def test_a_volume_that_hangs_is_not_waited_for(tmp_path):
    said = []
    with hung(tmp_path / "volume") as volume:
        jupyter_files.prepare(VARIABLES | {"HOME": str(tmp_path)}, volume, tmp_path / "run", said.append)
    assert said == [f"{volume} does not answer: JupyterLab shows {tmp_path}"]


def test_a_volume_that_takes_no_notebook_is_no_reason_to_stay_away(tmp_path):
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / OPENING).mkdir()
    assert len(jupyter_files.prepare(VARIABLES, volume, tmp_path / "run", print)) == 2
    config = json.loads((tmp_path / "run" / jupyter.CONFIG).read_text())
    assert config["LabApp"]["default_url"] == "/lab"


def run_by_a_person(notebook):
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"execution_count": 3, "outputs": [{"name": "stdout", "output_type": "stream", "text": ["1\n"]}]}
        cell["source"] = "".join(cell["source"])  # as some editors save it
    notebook["metadata"]["widgets"] = {}


def edited(notebook):
    notebook["cells"][1]["source"] += ["print('mine')\n"]


def cut(notebook):
    del notebook["cells"][2:]


@pytest.mark.parametrize(
    ("change", "ours_is_new", "kept"),
    [
        (None, False, True),
        (run_by_a_person, False, True),  # its outputs are what they saw
        (run_by_a_person, True, False),
        (None, True, False),
        (edited, True, True),
        (cut, True, True),
    ],
)
def test_an_opening_notebook_is_renewed_only_where_nobody_has_changed_it(tmp_path, change, ours_is_new, kept):
    path = tmp_path / OPENING
    assert put_opening(tmp_path, ["older" if ours_is_new else "roundhouse"]) == OPENING
    if change:
        notebook = json.loads(path.read_text())
        change(notebook)
        path.write_text(json.dumps(notebook))
    before = path.read_text()
    assert put_opening(tmp_path, ["roundhouse"]) == OPENING
    assert (path.read_text() == before) == kept


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"cells": []}', '{"cells": [], "metadata": {"roundhouse": 1}}'])
def test_a_foreign_file_of_that_name_is_left_alone(tmp_path, text):
    (tmp_path / OPENING).write_text(text)
    put_opening(tmp_path, ["roundhouse"])
    assert (tmp_path / OPENING).read_text() == text
