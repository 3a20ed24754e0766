"""What the templates for Kubernetes share: the pod of a node, its claim, and which ends of it are tried again."""

from typing import Any

from entrypoint.errors import STOPPED, SettingError
from entrypoint.render_settings import PRIMARY_PORT, VOLUME, Settings
from entrypoint.render_text import Why

FINAL = SettingError.exit_code
CONTAINER = "train"
RETRIES = 3  # of a whole job by its controller; attempts inside it are counted by TRAIN_RESTARTS


def header(settings: Settings, what: str, selector: str, note: str = "") -> str:
    """Comment at the top: what runs, and how it is started and watched."""
    where = f" -n {settings.namespace}" if settings.namespace else ""
    return (
        f"{settings.title}, {what}.\n\n"
        f"  kubectl apply -f FILE{where}\n"
        f"  kubectl logs -f --prefix -l {selector}={settings.name}{where}\n\n{note}"
    )


def metadata(settings: Settings, name: str | None = None) -> dict[str, Any]:
    """The name, and the namespace where one is given."""
    return {"name": name or settings.name, "namespace": settings.namespace or None}


def place(settings: Settings, primary: str) -> dict[str, str]:
    """The place of a node but for its rank, which an indexed Job tells by JOB_COMPLETION_INDEX."""
    if settings.nodes == 1:
        return settings.variables
    numbers = {"TRAIN_NODES": str(settings.nodes), "TRAIN_PRIMARY": f"{primary}:{PRIMARY_PORT}"}
    return settings.variables | numbers


def _claim_name(settings: Settings) -> str:
    return settings.volume or f"{settings.name}-workspace"


def claim(settings: Settings) -> dict[str, Any]:
    """The volume that every node mounts."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(settings, _claim_name(settings)),
        "spec": {
            "accessModes": Why(
                ["ReadWriteMany"], "all nodes write one checkpoint, so the storage class must be able to do this"
            ),
            "storageClassName": settings.storage_class or None,
            "resources": {"requests": {"storage": f"{settings.storage}Gi"}},
        },
    }


def job_spec(settings: Settings, backoff: int) -> dict[str, Any]:
    """What an indexed Job is told, but for its pod."""
    return {
        "completionMode": Why("Indexed", "each pod has a number, its node rank, and keeps it when it is replaced"),
        "completions": settings.nodes,
        "parallelism": settings.nodes,
        "backoffLimit": backoff,
        "podReplacementPolicy": Why("Failed", "a pod that still writes its checkpoint is not replaced yet"),
        "podFailurePolicy": pod_failure_policy(CONTAINER),
    }


def pod_failure_policy(container: str) -> dict[str, Any]:
    """Rules of a Job by exit code and by why its pod ended."""

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
            Why(on_codes("FailJob", FINAL), "a setting is wrong: another try would read it again"),
        ]
    }


def failure_policy() -> dict[str, Any]:
    """The rule of a JobSet."""
    return {
        "maxRestarts": Why(RETRIES, "all nodes are made anew together"),
        "rules": Why(
            [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            "the rule FailJob below has struck: no restart",
        ),
    }


def pod_spec(
    settings: Settings,
    variables: dict[str, str],
    *,
    container: str = CONTAINER,
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
                "env": (env_list(variables) + secret_list(settings)) or None if sized else None,
                "resources": resources(settings) if sized else None,
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


def env_list(variables: dict[str, str]) -> list[dict[str, Any]]:
    """Variables as a container lists them."""
    return [{"name": name, "value": text} for name, text in variables.items()]


def secret_list(settings: Settings) -> list[dict[str, Any]]:
    """By reference. Those that nobody asked for are optional: a pod starts without them."""
    names = settings.secrets or ("HF_TOKEN", "WANDB_API_KEY")
    names = tuple(name for name in names if name not in settings.variables)
    secret = {"name": f"{settings.name}-secrets", "optional": None if settings.secrets else True}
    return [{"name": name, "valueFrom": {"secretKeyRef": {**secret, "key": name}}} for name in names]


def resources(settings: Settings) -> dict[str, Any]:
    """Limits and equal requests of one node."""
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
