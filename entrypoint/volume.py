"""The shared volume: which folder it is, and what facts and a trial of it mean. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from entrypoint.facts import Facts, Volume
from entrypoint.reasons import Check, Level
from entrypoint.values import clean

DEFAULT_VOLUME = Path("/workspace")

# The platforms' own names for it, in order of trust: (name, variables one of which must be there as well). WORKSPACE
# and DATA_DIRECTORY are words that others use too: a Jenkins agent sets WORKSPACE to the folder of its job.
NAMES = (
    ("RP_WORKSPACE", ()),  # Runpod's own images
    ("WORKSPACE", ("VAST_CONTAINERLABEL", "VAST_TCP_PORT_22", "CONTAINER_API_KEY")),  # Vast's
    ("DATA_DIRECTORY", ("VAST_CONTAINERLABEL", "VAST_TCP_PORT_22", "CONTAINER_API_KEY")),
)
_IN_MEMORY = ("tmpfs", "ramfs")
_NO_PERMISSION = ("EACCES", "EPERM")
_CLOCK_SECONDS = 2.0  # certificates, make and log lines begin to mislead
_FEW_FILES = 1000


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of writing to a folder (trial.py); None: not reached."""

    path: str  # the volume
    place: str | None = None  # where it was tried, if not there: the nearest folder above it that exists
    failed: str | None = None  # the step that was refused: "look", "write", "rename" …
    errno: str | None = None  # "EACCES"
    error: str | None = None
    hung: str | None = None  # the step that did not come back
    limit: float | None = None  # after which it was left
    user_id: int | None = None
    owner: int | None = None  # of a file that was made
    total_bytes: int | None = None
    free_bytes: int | None = None
    free_files: int | None = None  # inodes; None: the file system does not count them
    read_only: bool | None = None
    intact: bool | None = None  # it read back what it wrote
    replaces: bool | None = None  # a reader sees the old file or the new one
    lock: str | None = None  # "works", "keeps nobody out", "none"
    lock_error: str | None = None
    write_seconds: float | None = None  # of a small file, with fsync
    write_bytes_per_second: float | None = None
    read_bytes_per_second: float | None = None
    clock_offset: float | None = None  # stamp of a new file less this machine's clock, seconds

    @property
    def where(self) -> str:
        """The volume's path, with the folder that was tried for it."""
        return self.path if self.place is None else f"{self.path} (tried in {self.place}, which exists)"


def choose_volume(wanted: Path | None, variables: Mapping[str, str]) -> tuple[Path, str]:
    """The folder that should be the volume, and the name that told: TRAIN_VOLUME, a platform's name, or the default."""
    if wanted is not None:
        return wanted, "TRAIN_VOLUME"
    for name, marks in NAMES:
        value = clean(variables.get(name, ""))
        if value.startswith("/") and value != "/" and (not marks or any(variables.get(mark) for mark in marks)):
            return Path(value), name
    return DEFAULT_VOLUME, "the default"


def check_place(
    volume: Volume, *, container: str | None, must_be_shared: bool, user_id: int | None = None
) -> Iterator[Check]:
    """What can be said of the volume without writing: it answers, is a mount, and may be written by its mode.

    `must_be_shared`: other nodes need it too, and nobody named this very folder (then the roll call shows who sees it).
    """
    where = {"path": volume.path, "mount": volume.mount_point, "filesystem": volume.filesystem}
    if volume.exists is None:
        yield Check(
            "volume.answers",
            "stop",
            f"{volume.path} does not answer",
            "is its server gone, or the path closed to this user? Mount it again, or name another with TRAIN_VOLUME",
            where,
        )
        return
    if volume.exists is False and must_be_shared and container is not None and not volume.mounted:
        yield Check(
            "volume.mount",
            "stop",
            f"{volume.path} does not exist here, and would become a folder that the other nodes do not see",
            "mount the volume that all nodes share there, name it with TRAIN_VOLUME, or let us mount it (TRAIN_MOUNT)",
            where,
        )
    if volume.exists and volume.writable is False:
        yield Check(
            "volume.writable",
            "stop",
            f"{volume.path} is not writable",
            f"mount it read-write, if it is not; else {_closed_to(user_id)}",
            where,
        )
    if volume.exists and volume.mounted is False and container is not None:
        yield _not_a_mount(volume, where, must_be_shared=must_be_shared)
    elif volume.exists and in_memory(volume.filesystem):
        yield Check(
            "volume.mount",
            "stop" if must_be_shared else "warn",
            f"{volume.path} lies in this machine's memory ({volume.filesystem}): it is lost with it",
            "mount a volume there",
            where,
        )
    elif volume.exists:
        kind = volume.filesystem or "unknown file system"
        yield Check("volume.mount", "ok", f"{volume.path} ({kind} at {volume.mount_point or '?'})", value=where)


def _not_a_mount(volume: Volume, where: object, *, must_be_shared: bool) -> Check:
    if must_be_shared:
        return Check(
            "volume.mount",
            "stop",
            f"{volume.path} is this container's own disk, which the other nodes do not see",
            "mount the volume that all nodes share there, name it with TRAIN_VOLUME, or let us mount it (TRAIN_MOUNT)",
            where,
        )
    return Check(
        "volume.mount",
        "warn",
        f"{volume.path} is not a mount: what is written there is lost with the container",
        "mount a volume there",
        where,
    )


def check_trial(trial: Trial, *, checkpoint_bytes: int | None, keep: int = 2) -> Iterator[Check]:
    """What a trial means; `checkpoint_bytes` of one checkpoint (None: not known), of which `keep` stay."""
    if trial.hung:
        yield Check(
            "volume.answers",
            "stop",
            f"{trial.where} did not answer: {trial.hung!r} was not done after {trial.limit:g} s",
            "is its server gone or overloaded? Mount it again, or name another with TRAIN_VOLUME",
            trial.hung,
        )
        return
    if trial.failed:
        yield _refused(trial)
        return
    if trial.intact is False:
        yield Check("volume.intact", "stop", f"{trial.where} reads other bytes than were written", "use another volume")
    yield from _room(trial, checkpoint_bytes, keep)
    yield Check("volume.writable", "ok", "written, synced, renamed, read back and deleted", value=trial.write_seconds)
    yield _replaces(trial)
    yield _lock(trial)
    yield from _owner(trial)
    yield from _speed(trial, checkpoint_bytes)


def _refused(trial: Trial) -> Check:
    free = "" if trial.free_bytes is None else f"; {size(trial.free_bytes)} free"
    files = "" if trial.free_files is None else f", {trial.free_files:,} files"
    text = f"{trial.where}: {trial.failed} failed ({trial.errno}: {trial.error}){free}{files}"
    if trial.errno == "EROFS" or trial.read_only:
        fix = "it is mounted read-only: mount it read-write"
    elif trial.errno == "ENOSPC":
        full = "no more files can be made: delete small ones" if trial.free_files == 0 else "delete old runs"
        fix = f"it is full ({full}), or take a larger volume"
    elif trial.errno == "EDQUOT":
        fix = "your quota on it is used up: delete old runs, or ask for more"
    elif trial.errno in _NO_PERMISSION:
        fix = _closed_to(trial.user_id)
    else:
        fix = "look at the mount and its server, or name another volume with TRAIN_VOLUME"
    return Check("volume.writable", "stop", text, fix, trial.errno)


def _closed_to(user_id: int | None) -> str:
    if user_id == 0:
        return (
            "root may not write there: the server maps root to nobody (root squash), or the container's root has no "
            "CAP_DAC_OVERRIDE. Run as the user who owns the folder (docker run --user), or open the folder on the "
            "server; nothing here changes owners"
        )
    user = "this user" if user_id is None else f"user {user_id}"
    return f"run as its owner, or let {user} write there (on the server, if it is one)"


def _room(trial: Trial, checkpoint_bytes: int | None, keep: int) -> Iterator[Check]:
    if trial.free_files is not None and trial.free_files < _FEW_FILES:
        text = f"{trial.where} has room for {trial.free_files:,} more files (inodes)"
        # A run has some 30 files before its first checkpoint.
        few: Level = "stop" if trial.free_files < 100 else "warn"
        yield Check("volume.files", few, text, "delete small files, or take another volume", trial.free_files)
    if trial.free_bytes is None:
        return
    free = f"{size(trial.free_bytes)} free of {size(trial.total_bytes)}"
    level: Level
    if checkpoint_bytes is None:
        level = "warn" if trial.free_bytes < 1 << 30 else "ok"
        fix = "delete old runs, or take a larger volume" if level == "warn" else ""
        text = f"{free}; a checkpoint's size is not known"
        yield Check("volume.space", level, _named(trial, text, level), fix, trial.free_bytes)
        return
    # While a checkpoint is written, those that are kept are still there.
    needed = (keep + 1) * checkpoint_bytes
    text = f"{free}; a checkpoint takes about {size(checkpoint_bytes)}, and {keep} are kept while the next is written"
    level = "stop" if trial.free_bytes < checkpoint_bytes else "warn" if trial.free_bytes < needed else "ok"
    fix = f"free {size(needed - trial.free_bytes)}, take a larger volume, or a smaller --keep" if level != "ok" else ""
    yield Check("volume.space", level, _named(trial, text, level), fix, trial.free_bytes)


def _named(trial: Trial, text: str, level: Level) -> str:
    """With the volume's path where the sentence stands alone, as an error does."""
    return text if level == "ok" else f"{trial.where}: {text}"


def _replaces(trial: Trial) -> Check:
    if trial.replaces:
        return Check("volume.rename", "ok", "a file is replaced at once", value=True)
    return Check(
        "volume.rename",
        "stop",
        f"{trial.where}: a reader saw no file, or half of one, while it was replaced",
        "this file system renames by copying (object storage behind FUSE?): checkpoints there can be cut; use another",
        trial.replaces,
    )


def _lock(trial: Trial) -> Check:
    if trial.lock == "works":
        return Check("volume.lock", "ok", "flock keeps others out", value="works")
    why = f" ({trial.lock_error})" if trial.lock_error else ""
    return Check(
        "volume.lock",
        "warn",
        f"{trial.where}: flock {'does not work' if trial.lock == 'none' else 'keeps nobody out'}{why}",
        "a second start of one run is then told by a heartbeat, after 15 s; do not let two nodes download into one "
        "cache; NFS wants its lock service (no `nolock`), Lustre `-o flock`",
        trial.lock,
    )


def _owner(trial: Trial) -> Iterator[Check]:
    if trial.owner is not None and trial.owner != trial.user_id:
        text = f"files made by user {trial.user_id} belong to user {trial.owner} (the server maps users)"
        yield Check("volume.owner", "ok", text, value=trial.owner)


def _speed(trial: Trial, checkpoint_bytes: int | None) -> Iterator[Check]:
    if not trial.write_bytes_per_second:
        return
    write = trial.write_bytes_per_second
    value = {"write": write, "read": trial.read_bytes_per_second, "small_file_seconds": trial.write_seconds}
    read = f", reads {size(trial.read_bytes_per_second)}/s" if trial.read_bytes_per_second else ""
    text = f"writes {size(write)}/s{read} (a short sample)"
    if checkpoint_bytes and checkpoint_bytes / write > 300:
        text += f": a checkpoint takes {checkpoint_bytes / write / 60:.0f} minutes"
        yield Check("volume.speed", "warn", text, "a faster volume, or a longer --save-every", value)
    elif write < 20e6:
        yield Check("volume.speed", "warn", text, "slow: expect long checkpoints; look at the network to it", value)
    else:
        yield Check("volume.speed", "ok", text, value=value)


def check_clock(trial: Trial | None, synchronized: bool | None) -> Check:
    """What can be told of this machine's clock: by the volume's server, and by the kernel. Nodes are compared later."""
    kept = {True: "the kernel says it is kept in time", False: "nothing keeps it in time", None: ""}[synchronized]
    offset = None if trial is None else trial.clock_offset
    if offset is not None and abs(offset) > _CLOCK_SECONDS:
        return Check(
            "clock.offset",
            "warn",
            f"this clock is {abs(offset):.1f} s {'behind' if offset > 0 else 'ahead of'} the one that stamps files on "
            "the volume",
            "set this machine's clock (chrony or ntp on the host); logs of several nodes will not line up",
            offset,
        )
    if offset is None:
        return Check("clock.offset", "ok" if kept else "n/a", kept or "nothing here to compare the clock with")
    text = f"within {_CLOCK_SECONDS:g} s of the volume's" + (f"; {kept}" if kept else "")
    return Check("clock.offset", "ok", text, value=offset)


def size(count: float | None) -> str:
    """Bytes as a person reads them.

    >>> size(3 * 2**30), size(1536), size(None)
    ('3 GiB', '1.5 KiB', 'unknown')
    """
    if count is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB" if count < 1024 else f"{count:,.0f} TiB"


def shares_disk(facts: Facts) -> bool:
    """Whether the volume outlives this container, as far as its mounts tell."""
    return facts.volume.mounted is True and not in_memory(facts.volume.filesystem)


def in_memory(filesystem: str | None) -> bool:
    return filesystem in _IN_MEMORY
