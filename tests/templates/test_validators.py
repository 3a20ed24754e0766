"""Each template before the platform's own validator, and each validator before a mistake."""

import copy
import functools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from template_cases import CASES, documents, render

from entrypoint.render import PLATFORMS, ready_made
from entrypoint.render_settings import GROUPS

ROOT = Path(__file__).resolve().parents[2]
VALIDATORS = ROOT / ".validators"  # `make templates` makes it
needs_validators = pytest.mark.skipif(
    not (VALIDATORS / "ready").exists(), reason="no .validators: `make templates` sets them up"
)

CORE = ("Job", "Service", "PersistentVolumeClaim")


def kind_of(platform: str, document: Any) -> str:
    if platform in ("skypilot", "dstack"):
        return platform
    return {"PyTorchJob": "pytorchjob"}.get(document["kind"], "kubernetes" if document["kind"] in CORE else "kubeflow")


CHECKED = (*GROUPS["Kubernetes"], "skypilot", "dstack")
KINDS = ("kubernetes", "kubeflow", "pytorchjob", "skypilot", "dstack", "shellcheck")


@functools.cache
def asked() -> tuple[tuple[str, str, Any], ...]:
    """(validator, name, document) of everything that has a validator here."""
    found: list[tuple[str, str, Any]] = []
    for platform, name, given in CASES:
        if platform in CHECKED:
            found += [(kind_of(platform, each), f"{platform}, {name}", each) for each in documents(platform, given)]
        elif (text := render(platform, given)).startswith("#!"):
            found.append(("shellcheck", f"{platform}, {name}", text))
    found += [("shellcheck", path, text) for path, text in ready_made().items() if text.startswith("#!")]
    return tuple(found)


def changed(platform: str, path: str, value: Any, number: int = -1) -> Any:
    """A template with one thing wrong in it."""
    document = copy.deepcopy(documents(platform, {})[number])
    *parts, last = path.split(".")
    place = document
    for part in parts:
        place = place[int(part) if part.isdigit() else part]
    place[last] = value
    return document


_POD = "spec.template.spec"
_NODE = "spec.replicatedJobs.0.template.spec"
_WORKER = "spec.pytorchReplicaSpecs.Worker.template.spec"
MISTAKES = (
    ("kubernetes", "kubernetes", f"{_POD}.containers.0.volumeMount", []),
    ("kubernetes", "kubernetes", "spec.completions", "2"),
    ("kubernetes", "kubernetes", "spec.publishNotReadyAddress", True, 1),
    ("kubeflow", "jobset", "spec.network.subDomain", "x"),
    ("kubeflow", "jobset", f"{_NODE}.template.spec.containers.0.volumeMount", []),
    ("kubeflow", "jobset", f"{_NODE}.podFailurePolicy.rules.1.onExitCodes.values", ["143"]),
    ("kubeflow", "kubeflow-trainer", "spec.trainer.numProcPerNode", "8"),
    ("kubeflow", "kubeflow-trainer", "spec.trainer.numNode", 2),
    ("kubeflow", "kubeflow-trainer", "spec.mlPolicy.torch.numProcPerNode", 8, 1),  # gone since v2.3
    ("pytorchjob", "pytorchjob", "spec.runPolicy.cleanPodPolic", "None"),
    ("pytorchjob", "pytorchjob", "spec.pytorchReplicaSpecs.Worker.restartPolicy", "Sometimes"),
    ("pytorchjob", "pytorchjob", f"{_WORKER}.terminationGracePeriodSeconds", "a minute"),
    ("skypilot", "skypilot", "num_node", 2),
    ("skypilot", "skypilot", "resources.accelerator", "H100:8"),
    ("skypilot", "skypilot", "resources.job_recovery.recover_on_exit_codes", "143"),
    ("dstack", "dstack", "node", 2),
    ("dstack", "dstack", "resources.gpu", "H100:eight"),
    ("dstack", "dstack", "stop_criteria", "some-done"),
)


@functools.cache
def wrong() -> tuple[tuple[str, Any], ...]:
    """(validator, document with one mistake)."""
    found = tuple((kind, changed(*mistake)) for kind, *mistake in MISTAKES)
    return (*found, ("shellcheck", "#!/usr/bin/env bash\ncd $somewhere\n"))


@functools.cache
def verdicts(kind: str) -> list[str | None]:
    """What this validator says to all good templates and then to all wrong ones: one process, for it starts slowly."""
    documents = [document for each, _, document in asked() if each == kind]
    documents += [document for each, document in wrong() if each == kind]
    done = subprocess.run(
        [VALIDATORS / "bin" / "python", Path(__file__).with_name("validate.py"), kind],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_validators
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_platforms_own_validator_takes_every_template(kind):
    names = [name for each, name, _ in asked() if each == kind]
    refused = {name: said for name, said in zip(names, verdicts(kind), strict=False) if said}
    assert refused == {}


@needs_validators
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_validator_refuses_what_is_wrong(kind):
    mistakes = [document for each, document in wrong() if each == kind]
    assert mistakes
    said = verdicts(kind)[-len(mistakes) :]
    passed = [document for document, verdict in zip(mistakes, said, strict=True) if verdict is None]
    assert passed == []


# ---- Docker Compose ----


@functools.cache
def compose_is_here() -> bool:
    if shutil.which("docker") is None:
        return False
    return not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode


needs_compose = pytest.mark.skipif(not compose_is_here(), reason="no `docker compose` on this machine")


def compose_config(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "compose.yaml").write_text(text)
    command = ["docker", "compose", "--profile", "gpu", "-f", "compose.yaml", "config"]
    environment = os.environ | {"HF_TOKEN": "a", "OTHER_TOKEN": "b"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)


@needs_compose
@pytest.mark.parametrize(("name", "given"), [(name, given) for platform, name, given in CASES if platform == "compose"])
def test_docker_compose_takes_the_file_and_reads_what_was_meant(tmp_path, name, given):
    done = compose_config(render("compose", given), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARN" not in done.stderr.upper()
    services = yaml.safe_load(done.stdout)["services"]
    for service in services.values():
        assert service["environment"]["TRAIN_SCRIPT"].replace("$$", "$") == given.get("script", "ddp")
        assert service["environment"].get("TRAIN_ARGS", "").replace("$$", "$") == given.get("args", "")
        assert int(service["shm_size"]) >= 2 * 2**30


@needs_compose
def test_docker_compose_refuses_a_misspelt_key(tmp_path):
    assert compose_config(render("compose").replace("shm_size", "shmsize"), tmp_path).returncode != 0


def test_each_platform_with_a_validator_is_asked():
    checked = {name.split(",")[0] for _, name, _ in asked()} | {"compose"}
    # Runpod, Vast.ai and VRAMfarm publish none: docs/templates.md says what stands in.
    assert PLATFORMS.keys() - checked == {"runpod-pod", "runpod-cluster", "vast", "vramfarm"}
