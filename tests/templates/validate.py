"""Asks the platforms' own validators: `python validate.py KIND < documents.json > verdicts.json`, in their environment.

A verdict is null, or what the validator said. Each takes a document as data, as its YAML is read.
"""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import yaml


def kubernetes(document: dict[str, Any]) -> None:
    import kubernetes_validate

    # Without strict an unknown field passes.
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def _pod(spec: dict[str, Any]) -> None:
    kubernetes({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})


def _jobs_of(set_spec: dict[str, Any]) -> None:
    for replicated in set_spec["replicatedJobs"]:
        template = replicated["template"]
        kubernetes(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"} | template.get("metadata", {})}
            | {"spec": template["spec"]}
        )


def _same(document: dict[str, Any], back: dict[str, Any]) -> None:
    """The models drop what they do not know, silently."""
    if document != back:
        lost = set(_paths(document)) ^ set(_paths(back))
        raise ValueError(f"not the same after a round trip: {sorted(lost)[:5]}")


def _paths(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict):
        return [found for key, each in value.items() for found in _paths(each, f"{path}.{key}")] or [path + "{}"]
    if isinstance(value, list):
        return [found for index, each in enumerate(value) for found in _paths(each, f"{path}[{index}]")]
    return [f"{path}={value!r}"]


def kubeflow(document: dict[str, Any]) -> None:
    """JobSet, ClusterTrainingRuntime and TrainJob; what is core Kubernetes inside them by its own schema."""
    from kubeflow_trainer_api import models

    model = {
        "JobSet": models.JobsetV1alpha2JobSet,
        "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }[document["kind"]]
    _same(document, model.from_dict(document).to_dict())
    if document["kind"] == "JobSet":
        _jobs_of(document["spec"])
    elif document["kind"] == "ClusterTrainingRuntime":
        _jobs_of(document["spec"]["template"]["spec"])
    else:
        given = document["spec"]["trainer"]
        container = {"name": "node", "image": given["image"], "env": given["env"]}
        _pod({"containers": [container | {"resources": given["resourcesPerNode"]}]})


def pytorchjob(document: dict[str, Any]) -> None:
    from kubeflow.training.api_client import ApiClient

    client = ApiClient()
    answer = type("Answer", (), {"data": json.dumps(document)})()
    read = client.deserialize(answer, "KubeflowOrgV1PyTorchJob")
    _same(document, client.sanitize_for_serialization(read))
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        if replica["restartPolicy"] not in ("Always", "OnFailure", "Never", "ExitCode"):
            raise ValueError(f"restartPolicy {replica['restartPolicy']}")
        _pod(replica["template"]["spec"])


def skypilot(document: dict[str, Any]) -> None:
    import sky

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(document, file)
        file.flush()
        task = sky.Task.from_yaml(file.name)
    (resources,) = task.resources
    if document["num_nodes"] != task.num_nodes or "exec roundhouse" not in (task.run or ""):
        raise ValueError(f"read as {task.num_nodes} nodes, {task.run!r}")
    asked = document["resources"].get("accelerators")
    if asked and resources.accelerators != {asked.partition(":")[0]: int(asked.partition(":")[2])}:
        raise ValueError(f"read as {resources.accelerators}")


def dstack(document: dict[str, Any]) -> None:
    from dstack._internal.core.models.configurations import parse_run_configuration

    task = parse_run_configuration(document)
    if task.nodes != document["nodes"]:
        raise ValueError(f"read as {task.nodes} nodes")


def shellcheck(text: str) -> None:
    import subprocess

    tool = os.path.join(os.path.dirname(sys.executable), "shellcheck")
    # SC2016 wonders at a $ in single quotes: there it is text of the user's that no shell may expand.
    done = subprocess.run([tool, "--exclude=SC2016", "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stdout)


KINDS: dict[str, Callable[[Any], None]] = {
    each.__name__: each for each in (kubernetes, kubeflow, pytorchjob, skypilot, dstack, shellcheck)
}


def main() -> None:
    check, verdicts = KINDS[sys.argv[1]], []
    with tempfile.TemporaryDirectory() as home, contextlib.redirect_stdout(sys.stderr):
        os.environ.update(HOME=home, SKYPILOT_DISABLE_USAGE_COLLECTION="1")
        for document in json.load(sys.stdin):
            try:
                check(document)
                verdicts.append(None)
            except Exception as error:
                verdicts.append(f"{type(error).__name__}: {error}"[:2000])
    json.dump(verdicts, sys.stdout)


if __name__ == "__main__":
    main()
