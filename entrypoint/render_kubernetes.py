"""Templates for Kubernetes: indexed Job, JobSet, Kubeflow Trainer v2 and PyTorchJob v1."""

from typing import Any

from entrypoint.errors import STOPPED
from entrypoint.render_pod import (
    FINAL,
    RETRIES,
    claim,
    env_list,
    failure_policy,
    header,
    job_spec,
    metadata,
    place,
    pod_failure_policy,
    pod_spec,
    resources,
    secret_list,
)
from entrypoint.render_settings import PRIMARY_PORT, Settings
from entrypoint.render_text import Why, to_yaml

_JOBSET = "jobset.sigs.k8s.io/jobset-name"


def job(settings: Settings) -> str:
    """One indexed Job, the headless Service that names its pods, and the claim that all of them mount."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(settings),
        "spec": {
            "clusterIP": Why("None", "headless: each pod gets a name of its own, node 0's is TRAIN_PRIMARY"),
            "publishNotReadyAddresses": Why(True, "nodes look for each other before they are ready"),
            "selector": {"job-name": settings.name},
            "ports": [{"name": "primary", "port": PRIMARY_PORT}],
        },
    }
    primary = f"{settings.name}-0.{settings.name}"
    document = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(settings),
        "spec": {
            **job_spec(settings, backoff=RETRIES * settings.nodes),
            "template": {
                "spec": {
                    "subdomain": Why(settings.name, f"with the Service's name node 0 is {primary}"),
                    **pod_spec(settings, place(settings, primary)),
                }
            },
        },
    }
    note = "A Job cannot be changed: delete it before you apply another of its name."
    return to_yaml(header(settings, "as an indexed Job", "job-name", note), claim(settings), service, document)


def jobset(settings: Settings) -> str:
    """A JobSet of one replicated Job; its controller makes the Service, and starts all nodes again together."""
    primary = f"{settings.name}-node-0-0.{settings.name}"
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata(settings),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": settings.name,
                "publishNotReadyAddresses": Why(True, "nodes look for each other before they are ready"),
            },
            "failurePolicy": failure_policy(),
            "replicatedJobs": [
                {
                    "name": "node",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            **job_spec(settings, backoff=0),
                            "template": {"spec": pod_spec(settings, place(settings, primary))},
                        }
                    },
                }
            ],
        },
    }
    return to_yaml(header(settings, "as a JobSet", _JOBSET), claim(settings), document)


def trainer(settings: Settings) -> str:
    """Kubeflow Trainer v2: the runtime, made once by an administrator, and a job that names it."""
    pod = pod_spec(settings, {}, container="node", sized=False)
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": settings.name,
            "labels": {"trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {
            "mlPolicy": {
                "numNodes": 1,
                "torch": Why({}, "this makes the controller set PET_*, from which each node learns its place"),
            },
            "template": {
                "spec": {
                    "failurePolicy": failure_policy(),
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                                "spec": {
                                    "backoffLimit": 0,
                                    "podReplacementPolicy": "Failed",
                                    "podFailurePolicy": pod_failure_policy("node"),
                                    "template": {"spec": pod},
                                },
                            },
                        }
                    ],
                }
            },
        },
    }
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(settings),
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": settings.name,
            },
            "trainer": {
                "image": settings.container_image,
                "numNodes": settings.nodes,
                "numProcPerNode": Why(settings.gpus or None, "a number, not a text: the API refuses '8'"),
                "resourcesPerNode": resources(settings),
                "env": Why(
                    env_list(settings.variables) + secret_list(settings),
                    "no PET_* here: the controller refuses a job that sets them; no command: the image has one",
                ),
            },
        },
    }
    note = "The runtime belongs to the whole cluster: an administrator makes it once, and jobs name it."
    return to_yaml(header(settings, "with Kubeflow Trainer v2", _JOBSET, note), claim(settings), runtime, document)


def pytorchjob(settings: Settings) -> str:
    """Kubeflow v1 with a master and workers: the number of nodes is fixed."""
    replicas = {"Master": _replica(settings, 1)}
    if settings.nodes > 1:
        replicas["Worker"] = _replica(settings, settings.nodes - 1)
    return _pytorchjob(settings, {"nprocPerNode": _processes(settings), "pytorchReplicaSpecs": replicas})


def pytorchjob_elastic(settings: Settings) -> str:
    """Kubeflow v1 with a range of nodes: ranks are given by arrival."""
    least = min(settings.min_nodes, settings.nodes)
    spec = {
        "elasticPolicy": {"minReplicas": least, "maxReplicas": settings.nodes, "rdzvBackend": "c10d"},
        "nprocPerNode": Why(_processes(settings), "not elasticPolicy.nProcPerNode, which 1.7 has deprecated"),
        "pytorchReplicaSpecs": {
            "Worker": Why(_replica(settings, settings.nodes), "no Master: the rendezvous decides who is node 0")
        },
    }
    return _pytorchjob(settings, spec)


def _pytorchjob(settings: Settings, spec: dict[str, Any]) -> str:
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(settings),
        "spec": {
            "runPolicy": {
                "cleanPodPolicy": Why("None", "the first node that ends must not take the others' last checkpoint"),
                "backoffLimit": RETRIES * settings.nodes,
            },
            **spec,
        },
    }
    head = header(settings, "as a PyTorchJob (training operator 1.7 to 1.9)", "training.kubeflow.org/job-name")
    return to_yaml(head, claim(settings), document)


def _replica(settings: Settings, replicas: int) -> dict[str, Any]:
    return {
        "replicas": replicas,
        "restartPolicy": Why(
            "ExitCode",
            f"128 and above is tried again ({STOPPED}: stopped, 137: killed), below is final ({FINAL}: a setting)",
        ),
        # The operator finds its container by this name alone.
        "template": {"spec": pod_spec(settings, settings.variables, container="pytorch", restart=None)},
    }


def _processes(settings: Settings) -> str:
    return str(settings.gpus or "auto")
