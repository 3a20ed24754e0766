"""The opening notebook runs from top to bottom on every volume, and shows what is there."""

import json
import re

import pytest
from notebooks import tool
from runs import ROOT

from entrypoint.jupyter_files import program, put_opening

pytestmark = pytest.mark.slow
METRICS = [{"step": step, "steps": 40, "loss": 5 - step / 20, "lr": 0.1} for step in range(0, 41, 10)]
RUNS = {
    "finished": {
        "metrics.jsonl": METRICS,
        "validation.jsonl": [{"step": 40, "validation_loss": 3.25}],
        "exit.json": {"exit_code": 0, "text": "done"},
        "step": "40\n",
    },
    "killed in the middle of a line": {"metrics.jsonl": [*METRICS[:3], '{"step": 3']},
    "resumed": {"metrics.jsonl": [*METRICS[:3], {"step": 10, "steps": 40, "loss": 9.0}, *METRICS[2:]]},
    "one step": {"metrics.jsonl": METRICS[:1]},
    "no number": {"metrics.jsonl": [{"step": 1, "steps": 4, "loss": None}]},
    "own script <i>&": {},
    "long": {"metrics.jsonl": [{"step": step, "steps": 9000, "loss": 1.0} for step in range(9000)]},
}


def make_run(folder, files):
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    for name, content in files.items():
        if name.endswith(".jsonl"):
            content = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in content)
        elif not isinstance(content, str):
            content = json.dumps(content)
        (folder / name).write_text(content)


def execute(volume, monkeypatch):
    """The outputs of its cells by the cells' names: text, or HTML."""
    nbformat, nbclient = tool("nbformat"), tool("nbclient")
    monkeypatch.setenv("IPYTHONDIR", str(volume / ".ipython"))
    monkeypatch.delenv("TRAIN_SCRIPT", raising=False)
    notebook = nbformat.read(volume / put_opening(volume, program(volume)), as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(volume)}}).execute()
    return {
        cell["id"]: [output.get("text") or output["data"]["text/html"] for output in cell["outputs"]]
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    }


def test_without_a_run_it_says_so(tmp_path, monkeypatch):
    shown = execute(tmp_path, monkeypatch)
    assert "environment  one node" in shown["plan"][0]
    assert str(tmp_path) in shown["plan"][0]
    assert shown["runs"] == ["There is no run on this volume yet."]
    assert shown["curves"] == []


def test_every_run_has_a_row_and_a_curve_of_what_it_wrote(tmp_path, monkeypatch):
    for name, files in RUNS.items():
        make_run(tmp_path / "runs" / name, files)
    shown = execute(tmp_path, monkeypatch)
    assert shown["runs"][0].count("<tr>") == 1 + len(RUNS)
    assert re.search("<td>finished</td><td>finished</td><td>40</td><td>40</td><td>3.0000</td>", shown["runs"][0])
    assert "own script &lt;i&gt;&amp;" in shown["runs"][0]
    curves = {re.match("<b>(.*?)</b>", text)[1]: text for text in shown["curves"]}
    assert len(curves) == len(RUNS)
    assert {name for name, text in curves.items() if "<svg" not in text} == {"no number", "own script &lt;i&gt;&amp;"}
    assert curves["finished"].count("<circle") == 1
    points = {name: re.search('points="(.*?)"', text)[1].split() for name, text in curves.items() if "<svg" in text}
    assert {name: len(each) for name, each in points.items()} == {
        "finished": 5,
        "killed in the middle of a line": 3,
        "resumed": 5,
        "one step": 1,
        "long": 474,
    }
    assert points["resumed"][1] != points["finished"][1]  # the later 9.0 has taken the place of the earlier number


def test_its_code_is_formatted_and_has_no_output():
    notebook = json.loads((ROOT / "entrypoint" / "lab" / "opening.ipynb").read_text())
    assert not [cell for cell in notebook["cells"] if cell.get("outputs") or cell.get("execution_count")]
