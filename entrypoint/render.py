"""`roundhouse render PLATFORM`: one set of settings → the template of any platform. Pure: text in, text out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from entrypoint import render_clouds as clouds
from entrypoint import render_deepspeed as deepspeed
from entrypoint import render_docker as docker
from entrypoint import render_kubernetes as kubernetes
from entrypoint import render_slurm as slurm
from entrypoint.errors import SettingError
from entrypoint.render_settings import KEYS, Settings, nearest, read_settings


@dataclass(frozen=True, slots=True)
class Platform:
    """One platform: what it is, the function that writes its template, and the file of its ready-made default."""

    title: str
    render: Callable[[Settings], str]
    file: str
    nodes: tuple[int, int] = (1, 4096)  # fewest and most
    gpus: tuple[int, int] = (0, 64)
    defaults: Settings = field(default_factory=Settings)


_TWO = Settings(nodes=2)
_ONE_NODE = (1, 1)

PLATFORMS: dict[str, Platform] = {
    "runpod-pod": Platform("Runpod: body of a pod template", clouds.runpod_pod, "runpod/pod-template.json", _ONE_NODE),
    "runpod-cluster": Platform(
        "Runpod: body of a cluster", clouds.runpod_cluster, "runpod/cluster.json", (2, 250), (1, 64), _TWO
    ),
    "vast": Platform("Vast.ai: body of an instance", clouds.vast, "vast/instance.json", _ONE_NODE, (1, 64)),
    "vramfarm": Platform(
        "VRAMfarm: what to enter for your own image", clouds.vramfarm, "vramfarm/form.md", _ONE_NODE, (1, 64)
    ),
    "vm": Platform("a virtual machine with Docker (DeployGPU …)", docker.vm, "vm/run.sh"),
    "compose": Platform("Docker Compose", docker.compose, "compose/compose.yaml", defaults=Settings(script="ddp")),
    "kubernetes": Platform("Kubernetes: indexed Job", kubernetes.job, "kubernetes/job.yaml", defaults=_TWO),
    "jobset": Platform("Kubernetes: JobSet", kubernetes.jobset, "kubernetes/jobset.yaml", defaults=_TWO),
    "kubeflow-trainer": Platform(
        "Kubeflow Trainer v2: runtime and TrainJob", kubernetes.trainer, "kubeflow/trainjob.yaml", defaults=_TWO
    ),
    "pytorchjob": Platform("Kubeflow v1: PyTorchJob", kubernetes.pytorchjob, "kubeflow/pytorchjob.yaml", defaults=_TWO),
    "pytorchjob-elastic": Platform(
        "Kubeflow v1: PyTorchJob that may shrink",
        kubernetes.pytorchjob_elastic,
        "kubeflow/pytorchjob-elastic.yaml",
        defaults=_TWO,
    ),
    "slurm": Platform("Slurm, a checkout without container", slurm.checkout, "slurm/train.sbatch", defaults=_TWO),
    "slurm-pyxis": Platform("Slurm with pyxis", slurm.pyxis, "slurm/pyxis.sbatch", defaults=_TWO),
    "slurm-apptainer": Platform("Slurm with Apptainer", slurm.apptainer, "slurm/apptainer.sbatch", defaults=_TWO),
    "skypilot": Platform("SkyPilot", clouds.skypilot, "skypilot/task.yaml", defaults=_TWO),
    "dstack": Platform("dstack", clouds.dstack, "dstack/task.dstack.yml", defaults=_TWO),
}


def render(platform: str, given: Mapping[str, str] | None = None) -> str:
    """The template of `platform` with the `key=value` pairs in `given`; SettingError for what it cannot be."""
    row = PLATFORMS.get(platform)
    if row is None:
        raise SettingError(f"{platform!r} is no platform", fix=nearest(platform, list(PLATFORMS)))
    settings = read_settings(platform, given or {}, row.defaults)
    _refuse(platform, "nodes", settings.nodes, row.nodes)
    _refuse(platform, "gpus", settings.gpus, row.gpus)
    return row.render(settings)


def read_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """`key=value` words of a command line."""
    found: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or key in found:
            problem = f"--set {key} is given twice" if equals else f"--set {pair!r} is no key=value"
            raise SettingError(problem, fix="as in --set grace=120; `render list` has the keys")
        found[key] = text
    return found


def ready_made_only(given: Mapping[str, str]) -> dict[str, str]:
    """The ready-made files, which have no settings."""
    if given:
        raise SettingError(f"`all` takes no settings, but {', '.join(given)}", fix="render one platform with them")
    return ready_made()


def _refuse(platform: str, key: str, value: int, allowed: tuple[int, int]) -> None:
    least, most = allowed
    if least <= value <= most:
        return
    if value < least:
        fix = f"--{key} {least} or more" + ("; runpod-pod for one" if platform == "runpod-cluster" else "")
    else:
        fix = f"--{key} {most}" + ("; it gives its machines no common network" if key == "nodes" and most == 1 else "")
    raise SettingError(f"{key}={value} cannot be with {platform}", fix=fix)


def ready_made() -> dict[str, str]:
    """Path under templates/ → text of each file that comes ready-made."""
    files = {row.file: row.render(row.defaults) for row in PLATFORMS.values()}
    files["compose/two-nodes.yaml"] = docker.compose(replace(PLATFORMS["compose"].defaults, nodes=2, gpus=0))
    files["runpod/README.md"] = clouds.readme(Settings())
    files["vast/onstart.sh"] = clouds.vast_onstart(Settings())
    return files | deepspeed.files()


def listing() -> str:
    """Platforms and keys as `render list` and `render --help` print them."""
    width = max(map(len, (*PLATFORMS, *KEYS)))
    platforms = [f"  {name:<{width}}  {row.title}" for name, row in PLATFORMS.items()]
    keys = [f"  {name:<{width}}  {_meaning(name)}" for name in KEYS]
    return "\n".join(
        [
            *("platforms", *platforms, f"  {'all':<{width}}  every ready-made file, into the folder of -o", ""),
            *("keys, as in --set key=value", *keys),
            f"  {'env.NAME':<{width}}  a variable for the training, as in env.NCCL_DEBUG=INFO",
        ]
    )


def _meaning(name: str) -> str:
    meaning, default = str(KEYS[name].metadata["meaning"]), Settings.default(name)
    shown = f" [{default}]" if default not in ("", (), 0) else ""
    some = KEYS[name].metadata["only"]
    return meaning + shown + (f" ({', '.join(some)})" if some else "")
