"""Mounts the volume when TRAIN_MOUNT asks for it: once, and never over what is mounted there."""

import contextlib
import fcntl
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from entrypoint.errors import MachineError, SettingError
from entrypoint.mount import FIX_CAPABILITY, SYS_ADMIN, Mounting, cannot_mount, mount_command, parse_mount
from entrypoint.probe_machine import Files

MOUNT_SECONDS = 90.0  # mount.nfs itself tries for two minutes, silently


def mount_volume(
    text: str,
    volume: Path,
    variables: Mapping[str, str],
    say: Callable[[str], None],
    *,
    files: Files = Files(Path("/")),  # noqa: B008 (a frozen value)
    limit: float = MOUNT_SECONDS,
) -> None:
    """Mount what `text` (TRAIN_MOUNT) names at `volume`, unless something is mounted there.

    SettingError where the text or the device is wrong, MachineError where this machine cannot do it or the mount fails;
    a folder that was made for it is then removed again.
    """
    with _one_at_a_time(Path(variables.get("TMPDIR") or "/tmp")):
        _mount(text, volume, variables, say, files, limit)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Where a platform starts one of us for each process, the first mounts and the others find it mounted."""
    with open(folder / f"roundhouse-mount-{os.geteuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _mount(
    text: str,
    volume: Path,
    variables: Mapping[str, str],
    say: Callable[[str], None],
    files: Files,
    limit: float,
) -> None:
    mounting = parse_mount(text)
    point = os.path.realpath(volume)
    if (there := _mounted(files, point)) is not None:
        if there != mounting.source:
            say(f"{volume} is a mount of {there} already; TRAIN_MOUNT={text} is not mounted over it")
        return
    _refuse_missing(text, mounting)
    if not _capabilities(files) & SYS_ADMIN:
        raise MachineError(cannot_mount(text), fix=FIX_CAPABILITY)
    command = mount_command(mounting, volume)
    program = shutil.which(command[0], path=variables.get("PATH"))
    if program is None:
        raise MachineError("mount is not installed here", fix="apt-get install mount nfs-common, or mount it outside")
    say(f"mounting: {shlex.join(command)}")
    made = _make_folder(volume)
    try:
        _run((program, *command[1:]), variables, limit)
        if _mounted(files, point) is None:
            raise MachineError(
                f"{shlex.join(command)} said that it worked, and nothing is mounted", fix="mount it by hand"
            )
    except MachineError:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _mounted(files: Files, point: str) -> str | None:
    """The source of the mount at exactly this point, the newest of several; None: it is no mount point."""
    source = None
    for line in (files.read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(" "), right.split(" ")
        if len(before) > 4 and len(after) > 1 and before[4].replace("\\040", " ") == point:
            source = after[1]
    return source


def _capabilities(files: Files) -> int:
    for line in (files.read("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _refuse_missing(text: str, mounting: Mounting) -> None:
    if mounting.kind.startswith("nfs"):
        return
    try:
        mode = os.stat(mounting.source).st_mode
    except OSError as error:
        raise SettingError(
            f"TRAIN_MOUNT={text}: {mounting.source}: {error.strerror}",
            fix="give the container its device (docker run --device), or correct the path",
        ) from None
    if mounting.kind == "file" and not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        raise SettingError(
            f"TRAIN_MOUNT={text} is a folder", fix="a folder is not mounted: name it with TRAIN_VOLUME instead"
        )


def _make_folder(volume: Path) -> list[Path]:
    """The folders that had to be made, the deepest first."""
    missing = [each for each in (volume, *volume.parents) if not each.exists()]
    try:
        volume.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"{volume}: {error.strerror}", fix="make the folder in the image, or name another with TRAIN_VOLUME"
        ) from None
    return missing


def _run(command: tuple[str, ...], variables: Mapping[str, str], limit: float) -> None:
    shown = shlex.join(("mount", *command[1:]))
    try:
        done = subprocess.run(command, env=dict(variables), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{shown} did not end in {limit:g} s",
            fix="is the server's address right, and does its firewall let this machine in (NFS: TCP 2049)?",
        ) from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[:300] or f"exit code {done.returncode}"
        raise MachineError(f"{shown}: {words}", fix=_why(words))


def _why(words: str) -> str:
    low = words.lower()
    if "helper program" in low or "unknown filesystem type 'nfs" in low:
        return "apt-get install nfs-common; and the host's kernel must know NFS"
    if "permission" in low or "not permitted" in low or "access denied" in low:
        return f"the server must export it to this machine; in a container: {FIX_CAPABILITY}"
    return "mount it by hand to see more, or mount it outside of the container"
