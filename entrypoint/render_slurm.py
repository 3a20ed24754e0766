"""Templates for Slurm: a batch script for a checkout, for pyxis, and for Apptainer."""

import shlex

from entrypoint.render_settings import VOLUME, Settings
from entrypoint.render_text import comment, exports, quote

_MARGIN = 120  # Slurm looks at the clock once a minute, so a signal may come that much earlier or later


def checkout(settings: Settings) -> str:
    """No container: the entrypoint of a checkout on a shared file system."""
    here = quote(settings.checkout)
    start = f"--chdir={here} {here}/.venv/bin/python -m entrypoint train"
    return _script(settings, "", "", start, volume=_volume(settings))


def pyxis(settings: Settings) -> str:
    """NVIDIA's pyxis and enroot: srun brings the container."""
    registry, _, path = settings.container_image.partition("/")
    image = f"{registry}#{path}" if "." in registry else settings.container_image
    names = ",".join((*settings.variables, "TRAIN_VOLUME", *settings.secrets))
    start = (
        f"--container-image={shlex.quote(image)} \\\n"
        f"  --container-mounts={quote(_volume(settings))}:{VOLUME} --no-container-mount-home \\\n"
        f"  --container-env={names} \\\n"
        "  roundhouse train"
    )
    why = (
        "pyxis does not run the image's entrypoint, so the command is given. Variables that the image sets would beat "
        "the job's, but for those in --container-env."
    )
    return _script(settings, why, "", start, volume=VOLUME)


def apptainer(settings: Settings) -> str:
    """Apptainer (Singularity): srun starts the container's command on each node."""
    start = (
        f"apptainer exec {'--nv ' if settings.gpus else ''}--bind {quote(_volume(settings))}:{VOLUME} "
        f"--pwd {VOLUME} \\\n"
        f"  {quote(settings.sif)} roundhouse train"
    )
    why = (
        "Make the image a file once, not on each node:\n"
        f"  apptainer pull {settings.sif} docker://{settings.container_image}\n"
        "Apptainer does not run the image's entrypoint, so the command is given. It mounts your home folder and keeps "
        "your variables: packages in ~/.local and a PYTHONPATH would come before the image's own."
    )
    before = "export PYTHONNOUSERSITE=1\nunset PYTHONPATH PYTHONHOME VIRTUAL_ENV\n"
    return _script(settings, why, before, start, volume=VOLUME)


def _volume(settings: Settings) -> str:
    return settings.volume or "$HOME/workspace"


def _script(settings: Settings, why: str, before: str, start: str, *, volume: str) -> str:
    where = (_MARGIN + settings.kill_after, settings.kill_after)
    lines = [
        f"--job-name={settings.name}",
        f"--nodes={settings.nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={settings.gpus}" if settings.gpus else "",
        "--exclusive",
        "--mem=0",
        f"--time={settings.time}",
        f"--partition={settings.partition}" if settings.partition else "",
        f"--account={settings.account}" if settings.account else "",
        "--output=%x-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{where[0]}",
    ]
    secrets = "".join(
        f': "${{{name}:?export it before sbatch}}"\n' for name in settings.secrets if name not in settings.variables
    )
    variables = exports(settings.variables) + f"export TRAIN_VOLUME={quote(volume)}\n"
    return (
        "#!/usr/bin/env bash\n"
        + "".join(f"#SBATCH {line}\n" for line in lines if line)
        + comment(
            f"\n{settings.title}. One task a node: our launcher starts the processes.\n"
            "  sbatch FILE; tail -f NAME-JOB.out\n"
            "  scancel --batch --signal=TERM JOB   # save and end; USR1: save, and queue the job again\n\n"
            "`scancel JOB` alone kills after KillWait (`scontrol show config`; 30 s as Slurm comes), however long the "
            "grace is." + (f"\n\n{why}\n" if why else "\n")
        )
        + "set -Eeuo pipefail\n\n"
        + variables
        + secrets
        + before
        + _BODY.format(
            start=start,
            margin=where[0],
            grace=settings.kill_after,
        )
    )


# scancel and not `kill` of srun: a SIGTERM to srun itself ends the step by force.
_BODY = """
near_limit=
# It fails where Slurm is ending the job: then Slurm itself has signalled the step.
# shellcheck disable=SC2329 # called by the traps
stop_step() {{ signalled=1; scancel --quiet --signal=TERM "$SLURM_JOB_ID" || :; }}
# {margin} s before the limit: {grace} s for the last checkpoint, and Slurm's clock, which is up to a minute off.
trap 'near_limit=1; stop_step' USR1
trap stop_step TERM

# --kill-on-bad-exit=0, --wait=0: a node that ends early, with whatever code, must not take the others' last checkpoint.
# --cpus-per-task: without it the one task of a node gets one core.
srun --label --kill-on-bad-exit=0 --wait=0 --cpus-per-task="${{SLURM_CPUS_ON_NODE:?this is for sbatch}}" \\
  {start} &
step=$!

# A signal ends `wait`, not the step: its code is the one of a wait that no signal has ended.
while
  signalled=
  code=0
  wait "$step" || code=$?
  [[ -n $signalled ]]
do :; done

# 143: its state is saved. 137: it was not in time, or a node was lost; an older checkpoint is there to go on from.
if [[ -n $near_limit && $code -ge 128 ]]; then
  echo "stopped before the time limit: the same job is queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
