"""Templates for Kubernetes: indexed Job, JobSet, Kubeflow Trainer v2 and PyTorchJob v1."""

from typing import Any

from entrypoint.errors import STOPPED, SettingError
from entrypoint.render_settings import PRIMARY_PORT, VOLUME, Settings
from entrypoint.render_text import Why, to_yaml

_FINAL = SettingError.exit_code
_CONTAINER = "train"
_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_RETRIES = 3  # of a whole job by its controller; attempts inside it are counted by TRAIN_RESTARTS


def job(settings: Settings) -> str:
    """One indexed Job, the headless Service that names its pods, and the claim that all of them mount."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(settings),
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
        "metadata": _metadata(settings),
        "spec": {
            **_job_spec(settings, backoff=_RETRIES * settings.nodes),
            "template": {
                "spec": {
                    "subdomain": Why(settings.name, f"with the Service's name node 0 is {primary}"),
                    **_pod(settings, _told(settings, primary)),
                }
            },
        },
    }
    note = "A Job cannot be changed: delete it before you apply another of its name."
    return to_yaml(_head(settings, "as an indexed Job", "job-name", note), _claim(settings), service, document)


def jobset(settings: Settings) -> str:
    """A JobSet of one replicated Job; its controller makes the Service, and starts all nodes again together."""
    primary = f"{settings.name}-node-0-0.{settings.name}"
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": _metadata(settings),
        "spec": {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": settings.name,
                "publishNotReadyAddresses": Why(True, "nodes look for each other before they are ready"),
            },
            "failurePolicy": _failure_policy(),
            "replicatedJobs": [
                {
                    "name": "node",
                    "replicas": 1,
                    "template": {
                        "spec": {
                            **_job_spec(settings, backoff=0),
                            "template": {"spec": _pod(settings, _told(settings, primary))},
                        }
                    },
                }
            ],
        },
    }
    return to_yaml(_head(settings, "as a JobSet", _JOBSET), _claim(settings), document)


def trainer(settings: Settings) -> str:
    """Kubeflow Trainer v2: the runtime, made once by an administrator, and a job that names it."""
    pod = _pod(settings, {}, container="node", sized=False)
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
                    "failurePolicy": _failure_policy(),
                    "replicatedJobs": [
                        {
                            "name": "node",
                            "template": {
                                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                                "spec": {
                                    "backoffLimit": 0,
                                    "podReplacementPolicy": "Failed",
                                    "podFailurePolicy": _pod_failure_policy("node"),
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
        "metadata": _metadata(settings),
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
                "resourcesPerNode": _resources(settings),
                "env": Why(
                    _env(settings.variables) + _secrets(settings),
                    "no PET_* here: the controller refuses a job that sets them; no command: the image has one",
                ),
            },
        },
    }
    note = "The runtime belongs to the whole cluster: an administrator makes it once, and jobs name it."
    return to_yaml(_head(settings, "with Kubeflow Trainer v2", _JOBSET, note), _claim(settings), runtime, document)


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
        "metadata": _metadata(settings),
        "spec": {
            "runPolicy": {
                "cleanPodPolicy": Why("None", "the first node that ends must not take the others' last checkpoint"),
                "backoffLimit": _RETRIES * settings.nodes,
            },
            **spec,
        },
    }
    head = _head(settings, "as a PyTorchJob (training operator 1.7 to 1.9)", "training.kubeflow.org/job-name")
    return to_yaml(head, _claim(settings), document)


def _replica(settings: Settings, replicas: int) -> dict[str, Any]:
    return {
        "replicas": replicas,
        "restartPolicy": Why(
            "ExitCode",
            f"128 and above is tried again ({STOPPED}: stopped, 137: killed), below is final ({_FINAL}: a setting)",
        ),
        # The operator finds its container by this name alone.
        "template": {"spec": _pod(settings, settings.variables, container="pytorch", restart=None)},
    }


def _processes(settings: Settings) -> str:
    return str(settings.gpus or "auto")


# ---- what they share ----


def _head(settings: Settings, what: str, selector: str, note: str = "") -> str:
    where = f" -n {settings.namespace}" if settings.namespace else ""
    return (
        f"{settings.title}, {what}.\n\n"
        f"  kubectl apply -f FILE{where}\n"
        f"  kubectl logs -f --prefix -l {selector}={settings.name}{where}\n\n{note}"
    )


def _metadata(settings: Settings, name: str | None = None) -> dict[str, Any]:
    return {"name": name or settings.name, "namespace": settings.namespace or None}


def _told(settings: Settings, primary: str) -> dict[str, str]:
    """The place of a node but for its rank, which an indexed Job tells by JOB_COMPLETION_INDEX."""
    if settings.nodes == 1:
        return settings.variables
    place = {"TRAIN_NODES": str(settings.nodes), "TRAIN_PRIMARY": f"{primary}:{PRIMARY_PORT}"}
    return settings.variables | place


def _claim_name(settings: Settings) -> str:
    return settings.volume or f"{settings.name}-workspace"


def _claim(settings: Settings) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(settings, _claim_name(settings)),
        "spec": {
            "accessModes": Why(
                ["ReadWriteMany"], "all nodes write one checkpoint, so the storage class must be able to do this"
            ),
            "storageClassName": settings.storage_class or None,
            "resources": {"requests": {"storage": f"{settings.storage}Gi"}},
        },
    }


def _job_spec(settings: Settings, backoff: int) -> dict[str, Any]:
    return {
        "completionMode": Why("Indexed", "each pod has a number, its node rank, and keeps it when it is replaced"),
        "completions": settings.nodes,
        "parallelism": settings.nodes,
        "backoffLimit": backoff,
        "podReplacementPolicy": Why("Failed", "a pod that still writes its checkpoint is not replaced yet"),
        "podFailurePolicy": _pod_failure_policy(_CONTAINER),
    }


def _pod_failure_policy(container: str) -> dict[str, Any]:
    def on_codes(action: str, *codes: int) -> dict[str, Any]:
        return {
            "action": action,
            "onExitCodes": {"containerName": container, "operator": "In", "values": list(codes)},
        }

    return {
        "rules": [
            Why(
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                "drained, preempted or evicted: replaced without counting against backoffLimit",
            ),
            Why(on_codes("Ignore", STOPPED), "stopped on request with its state saved: the same"),
            Why(on_codes("FailJob", _FINAL), "a setting is wrong: another try would read it again"),
        ]
    }


def _failure_policy() -> dict[str, Any]:
    return {
        "maxRestarts": Why(_RETRIES, "all nodes are made anew together"),
        "rules": Why(
            [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            "the rule FailJob below has struck: no restart",
        ),
    }


def _pod(
    settings: Settings,
    variables: dict[str, str],
    *,
    container: str = _CONTAINER,
    sized: bool = True,
    restart: str | None = "Never",
) -> dict[str, Any]:
    """The pod of one node. `sized`: with its resources, which a TrainJob brings itself."""
    return {
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": Why(settings.kill_after, "TRAIN_GRACE and 15 s: time for a last checkpoint"),
        "enableServiceLinks": Why(False, "a Service named `train` would set TRAIN_PORT, which is no setting of ours"),
        "automountServiceAccountToken": Why(False, "training never talks to the cluster's API"),
        "containers": [
            {
                "name": container,
                "image": settings.container_image,
                "env": (_env(variables) + _secrets(settings)) or None if sized else None,
                "resources": _resources(settings) if sized else None,
                "securityContext": _security(settings),
                "volumeMounts": [
                    {"name": "workspace", "mountPath": VOLUME},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": _claim_name(settings)}},
            Why(
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{settings.shm_gib}Gi"}},
                "else 64 MiB, and data loaders and NCCL die with a bus error; it counts against the memory limit",
            ),
        ],
    }


def _env(variables: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": text} for name, text in variables.items()]


def _secrets(settings: Settings) -> list[dict[str, Any]]:
    """By reference. Those that nobody asked for are optional: a pod starts without them."""
    names = settings.secrets or ("HF_TOKEN", "WANDB_API_KEY")
    names = tuple(name for name in names if name not in settings.variables)
    secret = {"name": f"{settings.name}-secrets", "optional": None if settings.secrets else True}
    return [{"name": name, "valueFrom": {"secretKeyRef": {**secret, "key": name}}} for name in names]


def _resources(settings: Settings) -> dict[str, Any]:
    amount = {
        "cpu": str(settings.cores),
        "memory": f"{settings.memory_gib + settings.shm_gib}Gi",
    }
    if settings.gpus:
        amount["nvidia.com/gpu"] = str(settings.gpus)
    if settings.rdma:
        amount[settings.rdma] = "1"
    why = f"{settings.memory_gib}Gi of working memory and {settings.shm_gib}Gi of /dev/shm"
    return {"limits": Why(amount, why), "requests": dict(amount)}


def _security(settings: Settings) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if settings.rdma:
        capabilities["add"] = Why(["IPC_LOCK"], "RDMA locks the memory that it reads")
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": capabilities,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
