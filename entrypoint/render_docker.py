"""Templates for a Docker engine: Compose, and a plain virtual machine."""

import shlex
from dataclasses import replace
from typing import Any

from entrypoint.render_settings import PORTS, PRIMARY_PORT, VOLUME, Settings
from entrypoint.render_text import Why, comment, quote, to_yaml

_STACK = 64 * 2**20  # bytes; what NVIDIA's own images ask for


def compose(settings: Settings) -> str:
    """One node on the CPU or, with `--profile gpu`, on GPUs; several nodes as so many containers on two networks."""
    return _one_node(settings) if settings.nodes == 1 else _several_nodes(settings)


def _one_node(settings: Settings) -> str:
    cpu, gpu = replace(settings, gpus=0), replace(settings, gpus=settings.gpus or 8)
    document = {
        "name": settings.name,
        "services": {
            "cpu": _service(cpu),
            "gpu": {
                "profiles": ["gpu"],
                **_service(gpu),
                "ulimits": Why(
                    {"memlock": -1, "stack": _STACK}, "RDMA locks memory; not for cpu: some engines refuse it"
                ),
                "deploy": {
                    "resources": {
                        "reservations": {
                            "devices": [{"driver": "nvidia", "count": gpu.gpus, "capabilities": ["gpu"]}],
                        }
                    }
                },
            },
        },
        "volumes": {"workspace": _volume(settings)},
    }
    head = (
        f"`{settings.script}` on one machine, in the foreground.\n\n"
        "  docker compose up cpu\n  docker compose --profile gpu up gpu\n\n"
        "Stop it with Ctrl-C or `docker compose stop`: the state is saved, and `up` goes on from there."
    )
    return to_yaml(head, document)


def _several_nodes(settings: Settings) -> str:
    names = [f"node{rank}" for rank in range(settings.nodes)]
    primary = f"{names[0]}.fabric:{PRIMARY_PORT}"
    services = {}
    for rank, name in enumerate(names):
        place = {"TRAIN_NODES": str(settings.nodes), "TRAIN_NODE_RANK": str(rank), "TRAIN_PRIMARY": primary}
        service = _service(settings, place, ports=rank == 0)
        service["hostname"] = name
        service["restart"] = Why(
            "on-failure:3", "a container that was killed comes back and joins; a wrong setting is not tried for ever"
        )
        service["networks"] = {
            "front": {},
            "fabric": {"aliases": Why([f"{name}.fabric"], "a name on this network only; `node0` is on both")},
        }
        if settings.gpus:
            service["ulimits"] = {"memlock": -1, "stack": _STACK}
            device = {"driver": "nvidia", "count": settings.gpus, "capabilities": ["gpu"]}
            service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
        services[name] = service
    document = {
        "name": settings.name,
        "services": services,
        "networks": {
            "front": {},
            "fabric": Why({"internal": True}, "between the nodes alone, as a cluster's fast network"),
        },
        "volumes": {"workspace": _volume(settings)},
    }
    head = (
        f"`{settings.script}` on {settings.nodes} nodes of one machine: the run of a cluster, with each node a "
        "container on two networks.\n\n  docker compose up"
    )
    return to_yaml(head, document)


def _volume(settings: Settings) -> dict[str, Any]:
    if not settings.volume:
        return {}
    bind = {"type": "none", "o": "bind", "device": settings.volume}
    return {"driver": "local", "driver_opts": bind}


def _service(settings: Settings, place: dict[str, str] | None = None, *, ports: bool = True) -> dict[str, Any]:
    secrets = {
        name: Why(f"${{{name}:?set it in your shell or in .env}}", "not written here") for name in settings.secrets
    }
    environment = {name: _literal(text) for name, text in (settings.variables | (place or {})).items()}
    return {
        "image": settings.container_image,
        "environment": environment | secrets,
        "shm_size": Why(f"{settings.shm_gib}gb", "of the running container; under `build` it would do nothing"),
        "stop_grace_period": Why(f"{settings.kill_after}s", "TRAIN_GRACE and 15 s; the default of 10 s is too short"),
        "ports": [f"127.0.0.1:{PORTS[0]}:{PORTS[0]}"] if ports else None,
        "volumes": [f"workspace:{VOLUME}"],
    }


def _literal(text: str) -> str:
    return text.replace("$", "$$")  # compose would put a variable of its own there


def vm(settings: Settings) -> str:
    """`docker run` on a machine with Docker and NVIDIA's container toolkit; on several, the same script on each."""
    several = settings.nodes > 1
    words = [
        "docker run --rm --name " + settings.name,
        "--gpus all" if settings.gpus else "",
        "--network host" if several else f"--publish 127.0.0.1:{PORTS[0]}:{PORTS[0]}",
        f"--shm-size {settings.shm_gib}g",
        f"--ulimit memlock=-1 --ulimit stack={_STACK}" if settings.gpus else "",
        f"--stop-timeout {settings.kill_after}",
        f'--mount type=bind,source="$volume",target={VOLUME}',
        *(f"--env {name}={shlex.quote(text)}" for name, text in settings.variables.items()),
        *(f"--env {name}" for name in settings.secrets),
        f'--env TRAIN_NODES={settings.nodes} --env "TRAIN_NODE_RANK=$rank" --env "TRAIN_PRIMARY=$primary"'
        if several
        else "",
        settings.container_image,
    ]
    command = " \\\n  ".join(word for word in words if word)
    place = (
        "rank=${1:?give the number of this machine, from 0, and the address of machine 0}\n"
        f"primary=${{2:?give the address of machine 0}}:{PRIMARY_PORT}\n"
        if several
        else ""
    )
    secrets = "".join(f': "${{{name}:?export it first}}"\n' for name in settings.secrets)
    usage = "  bash FILE RANK ADDRESS-OF-MACHINE-0   # on each" if several else "  bash FILE   # in tmux, or with nohup"
    return (
        "#!/usr/bin/env bash\n"
        + comment(
            f"\n{settings.title}, in Docker.\n\n{usage}\n\n"
            "/dev/shm has 64 MiB by default: data loaders and NCCL would die with a bus error. "
            "`docker stop` gives 10 s by default: too short for a last checkpoint. JupyterLab, where a password is "
            f"set, is on 127.0.0.1 only: `ssh -L {PORTS[0]}:localhost:{PORTS[0]} MACHINE`."
            + (" All machines mount the same folder." if several else "")
        )
        + "set -Eeuo pipefail\n"
        + place
        + secrets
        + f"volume={quote(settings.volume or '$HOME/workspace')}\n"
        + 'mkdir -p "$volume"\n\n'
        + f"exec {command}\n"
    )
