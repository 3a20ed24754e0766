"""Templates for clouds that rent containers, and for what starts containers on many clouds."""

import shlex

from entrypoint.errors import STOPPED
from entrypoint.render_settings import PORTS, VOLUME, Settings
from entrypoint.render_text import NULL, Why, to_json, to_yaml

_PORTS = [f"{PORTS[0]}/http", f"{PORTS[1]}/tcp"]
_RUNPOD_H100 = "NVIDIA H100 80GB HBM3"
_PLACEHOLDER = "NETWORK_VOLUME_ID"


# ---- Runpod ----


def runpod_pod(settings: Settings) -> str:
    """Body of POST https://rest.runpod.io/v1/templates."""
    return to_json(
        {
            "name": settings.name,
            "imageName": settings.container_image,
            "category": "NVIDIA" if settings.gpus else "CPU",
            "isServerless": False,
            "isPublic": False,
            "containerDiskInGb": settings.disk,
            "volumeInGb": settings.storage,
            "volumeMountPath": VOLUME,
            "ports": _PORTS,
            "env": settings.variables | _runpod_secrets(settings),
            "readme": readme(settings),
        }
    )


def runpod_cluster(settings: Settings) -> str:
    """Body of POST https://api.runpod.io/v2/clusters."""
    mount = {"volumeId": settings.volume or _PLACEHOLDER, "path": VOLUME}
    return to_json(
        {
            "name": settings.name,
            "type": "TRAINING",
            "compute": {
                "gpuTypeId": settings.gpu_type or _RUNPOD_H100,
                "gpuCountPerPod": settings.gpus,
                "podCount": settings.nodes,
            },
            "dataCenterIds": [settings.data_center] if settings.data_center else None,
            "image": settings.container_image,
            "disk": settings.disk,
            "ports": _PORTS,
            "env": settings.variables | _runpod_secrets(settings),
            "mounts": {"network": [mount]},
            "startSsh": True,
            "startJupyter": True,
        }
    )


def _runpod_secrets(settings: Settings) -> dict[str, str]:
    return {name: f"{{{{ RUNPOD_SECRET_{name} }}}}" for name in settings.secrets}


def readme(settings: Settings) -> str:
    """What a person reads who selects the template."""
    return f"""\
# Roundhouse

Trains a script on all GPUs of a pod, or of all pods of a cluster, without editing it.

| variable | meaning |
|---|---|
| `TRAIN_SCRIPT` | `ddp`, `fsdp`, `zero`, `hf`, or the path of a script of yours under {VOLUME}; empty: no training |
| `TRAIN_ARGS` | its arguments |
| `TRAIN_RUN` | name of the run; its folder is {VOLUME}/runs/NAME |
| `TRAIN_ON_EXIT` | `stop`: the pod is stopped when training has finished; its volume disk still costs. Else it stays |
| `PUBLIC_KEY` | ssh keys; set by Runpod from your account |
| `JUPYTER_PASSWORD` | JupyterLab on port {PORTS[0]}, with TensorBoard behind it; without one it does not start |

Logs of the training are the pod's logs. `roundhouse status` in a terminal says how it is, `roundhouse attach` shows it.
What should outlive the pod belongs into {VOLUME}, best on a network volume. Start it again with the same `TRAIN_RUN`
and it goes on from the newest complete checkpoint. A cluster wants a network volume: all pods write one checkpoint.

Secrets: `HF_TOKEN` with the value `{{{{ RUNPOD_SECRET_HF_TOKEN }}}}` takes it from your account.
"""


# ---- Vast.ai ----


def vast(settings: Settings) -> str:
    """Body of PUT https://console.vast.ai/api/v0/asks/OFFER/; the same onstart goes into the form of a template."""
    flags = [f"-e {name}={shlex.quote(text)}" for name, text in settings.variables.items()]
    return to_json(
        {
            "label": settings.name,
            "image": settings.container_image,
            "disk": settings.disk,
            "runtype": "ssh_direct",
            "env": " ".join([*flags, f"-p {PORTS[0]}:{PORTS[0]}"]),
            "onstart": vast_onstart(settings),
        }
    )


def vast_onstart(settings: Settings) -> str:
    """The ssh and Jupyter modes put their own entrypoint in the place of the image's, and then run this."""
    return (
        "#!/bin/bash\n"
        "# Vast.ai's ssh mode replaces the image's entrypoint: this starts it. -s: tini is not process 1 here.\n"
        "# Tokens (HF_TOKEN ...) belong into the variables of your account, not into a template.\n"
        f"mkdir -p {VOLUME} && cd {VOLUME} || exit\n"
        "exec tini -s -g -- roundhouse up\n"
    )


# ---- SkyPilot and dstack: they replace the entrypoint, so the command is given ----


def skypilot(settings: Settings) -> str:
    """A task for `sky launch` or `sky jobs launch`."""
    accelerators = f"{settings.gpu_type or 'H100'}:{settings.gpus}" if settings.gpus else None
    document = {
        "name": settings.name,
        "resources": {
            "accelerators": accelerators,
            "cpus": None if settings.gpus else "4+",
            "disk_size": max(settings.disk, 50),
            "image_id": f"docker:{settings.container_image}",
            "job_recovery": {
                "recover_on_exit_codes": Why([STOPPED], "stopped with its state saved; other codes are final")
            },
        },
        "num_nodes": settings.nodes,
        "volumes": Why(
            {VOLUME: settings.volume or f"{settings.name}-workspace"},
            "made by `sky volumes apply`; all nodes write one checkpoint, so all of them must mount it",
        ),
        "envs": settings.variables,
        "secrets": Why(dict.fromkeys(settings.secrets, NULL), "given by `--secret NAME`") if settings.secrets else None,
        "run": Why(
            "exec roundhouse train\n",
            "not in setup: only here does SkyPilot say which node this is; exec: its signals reach the launcher",
        ),
    }
    head = f"{settings.title}, with SkyPilot.\n\n  sky jobs launch FILE"
    return to_yaml(head, document)


def dstack(settings: Settings) -> str:
    """A task for `dstack apply`."""
    several = settings.nodes > 1
    volume = settings.volume or ("/mnt/workspace" if several else f"{settings.name}-workspace")
    environment = settings.variables | {name: f"${{{{ secrets.{name} }}}}" for name in settings.secrets}
    document = {
        "type": "task",
        "name": settings.name,
        "nodes": settings.nodes,
        "image": settings.container_image,
        "env": environment,
        "commands": Why(["exec roundhouse train"], "dstack replaces the image's entrypoint"),
        "volumes": Why(
            [f"{volume}:{VOLUME}"],
            "a folder of the instances, on a file system that all share" if several else "made by `dstack apply`",
        ),
        "resources": {
            "gpu": f"{settings.gpu_type or 'H100'}:{settings.gpus}" if settings.gpus else 0,
            "shm_size": f"{settings.shm_gib}GB",
            "disk": f"{max(settings.disk, 50)}GB..",
        },
        "stop_duration": Why(f"{settings.kill_after}s", "TRAIN_GRACE and 15 s, before the container is killed"),
        "stop_criteria": Why("all-done", "node 0's end must not take the others' last checkpoint") if several else None,
        "retry": Why(
            {"on_events": ["interruption"], "duration": "1d"},
            "a lost instance; not `error`: a wrong setting would be tried again",
        ),
    }
    head = f"{settings.title}, with dstack.\n\n  dstack apply -f FILE"
    return to_yaml(head, document)


# ---- VRAMfarm ----


def vramfarm(settings: Settings) -> str:
    """What to enter in its form for your own Docker image; it has no file format of its own."""
    lines = "".join(f"{name}={text}\n" for name, text in settings.variables.items())
    return f"""\
# `{settings.script}` on VRAMfarm

In the server catalogue set "Cards per machine" to {settings.gpus}, choose a machine with SXM cards and with at least as
much RAM as VRAM, and launch it with your own Docker image:

| field | value |
|---|---|
| Docker image | `{settings.container_image}` |
| command | none: the image has one |
| ports | {PORTS[0]} (JupyterLab, TensorBoard behind it), {PORTS[1]} (ssh) |
| cards (`count` in the API) | {settings.gpus} |

Environment, one a line; add `PUBLIC_KEY` (your ssh key) and `JUPYTER_PASSWORD`:

```
{lines}```

- Servers with an image of your own are not stopped when they are idle: stop this one when the run has ended.
- The disk is deleted when the server stops unless {VOLUME} is saved. Copy checkpoints off for runs of more than a day.
- `roundhouse status` says how the run is; `nvidia-smi topo -m` in the first minutes whether the cards have NVLink.
"""
