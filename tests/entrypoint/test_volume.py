"""Which folder is the volume, and what a trial of it means."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.facts import Volume
from entrypoint.volume import Trial, check_clock, check_place, check_trial, choose_volume

GIB = 1 << 30
VAST = {"VAST_CONTAINERLABEL": "C.1234"}
FINE = Trial(
    "/workspace",
    user_id=0,
    owner=0,
    total_bytes=1000 * GIB,
    free_bytes=500 * GIB,
    free_files=10**6,
    read_only=False,
    intact=True,
    replaces=True,
    lock="works",
    write_seconds=0.004,
    clock_offset=0.01,
)


@pytest.mark.parametrize(
    ("wanted", "variables", "path", "source"),
    [
        (None, {}, "/workspace", "the default"),
        ("/data", {"RP_WORKSPACE": "/runpod-volume"}, "/data", "TRAIN_VOLUME"),
        (None, {"RP_WORKSPACE": "/runpod-volume"}, "/runpod-volume", "RP_WORKSPACE"),
        (None, {"RP_WORKSPACE": ' "/runpod-volume" '}, "/runpod-volume", "RP_WORKSPACE"),  # as a form leaves it
        (None, {"RP_WORKSPACE": ""}, "/workspace", "the default"),
        (None, {"RP_WORKSPACE": "workspace"}, "/workspace", "the default"),  # relative to what?
        (None, {"RP_WORKSPACE": "/"}, "/workspace", "the default"),
        (None, {"WORKSPACE": "/data", **VAST}, "/data", "WORKSPACE"),
        (None, {"DATA_DIRECTORY": "/data/", **VAST}, "/data", "DATA_DIRECTORY"),
        (None, {"WORKSPACE": "/var/lib/jenkins/job"}, "/workspace", "the default"),  # a Jenkins agent's
        (None, {"DATA_DIRECTORY": "/srv/data"}, "/workspace", "the default"),
        (None, {"RP_WORKSPACE": "/a", "WORKSPACE": "/b", **VAST}, "/a", "RP_WORKSPACE"),
    ],
)
def test_the_volume_is_named_by_a_person_or_else_by_the_platform(wanted, variables, path, source):
    assert choose_volume(Path(wanted) if wanted else None, variables) == (Path(path), source)


def found(trial: Trial, name: str, checkpoint: int | None = 10 * GIB, keep: int = 2):
    matching = [check for check in check_trial(trial, checkpoint_bytes=checkpoint, keep=keep) if check.name == name]
    assert len(matching) <= 1
    return matching[0] if matching else None


@pytest.mark.parametrize(
    ("changes", "name", "level", "words"),
    [
        ({}, "volume.writable", "ok", "written, synced"),
        ({}, "volume.space", "ok", "about 10 GiB"),
        ({"free_bytes": 20 * GIB}, "volume.space", "warn", "20 GiB free"),  # two kept, and a third is written
        ({"free_bytes": 9 * GIB}, "volume.space", "stop", "9 GiB free"),
        ({"free_files": 400}, "volume.files", "warn", "400 more files"),
        ({"free_files": 7}, "volume.files", "stop", "7 more files"),
        ({"replaces": False}, "volume.rename", "stop", "half of one"),
        ({"lock": "keeps nobody out"}, "volume.lock", "warn", "keeps nobody out"),
        ({"lock": "none", "lock_error": "No locks available"}, "volume.lock", "warn", "No locks available"),
        ({"intact": False}, "volume.intact", "stop", "other bytes"),
        ({"owner": 65534}, "volume.owner", "ok", "belong to user 65534"),
        ({"write_bytes_per_second": 5e6}, "volume.speed", "warn", "36 minutes"),
        ({"write_bytes_per_second": 500e6, "read_bytes_per_second": 1e9}, "volume.speed", "ok", "reads 954 MiB/s"),
        ({"failed": "write", "errno": "EROFS", "error": "Read-only"}, "volume.writable", "stop", "EROFS"),
        ({"failed": "write", "errno": "EDQUOT", "error": "Quota"}, "volume.writable", "stop", "EDQUOT"),
        ({"failed": "lock", "errno": "EIO", "error": "Input/output"}, "volume.writable", "stop", "lock failed"),
        ({"hung": "rename", "limit": 8.0}, "volume.answers", "stop", "'rename' was not done after 8 s"),
    ],
)
def test_a_trial_is_judged(changes, name, level, words):
    check = found(replace(FINE, **changes), name)
    assert check.level == level
    assert words in check.text
    assert bool(check.fix) == (level in ("warn", "stop"))


def test_a_file_system_without_inodes_is_not_full():
    assert found(replace(FINE, free_files=None), "volume.files") is None


def test_an_unknown_checkpoint_is_said_to_be_unknown():
    check = found(FINE, "volume.space", checkpoint=None)
    assert (check.level, "not known" in check.text) == ("ok", True)


def test_root_squash_is_understood_only_for_root():
    closed = {"failed": "write", "errno": "EACCES", "error": "Permission denied"}
    assert "root squash" in found(replace(FINE, **closed), "volume.writable").fix
    assert "root squash" not in found(replace(FINE, **closed, user_id=1000), "volume.writable").fix


def test_the_plan_knows_root_squash_too():
    (closed,) = [
        check
        for check in check_place(place(writable=False), container=None, must_be_shared=False, user_id=0)
        if check.level == "stop"
    ]
    assert "root squash" in closed.fix


def test_nothing_changes_owners_or_advises_it():
    """rt-11: where root is squashed a chown fails, and a start that runs one dies on a volume that works."""
    root = Path(__file__).parents[2]
    files = [root / "Dockerfile", *(path for part in ("entrypoint", "image") for path in (root / part).rglob("*"))]
    texts = {path.name: path.read_text() for path in files if path.is_file() and path.suffix in ("", ".py", ".sh")}
    assert {"Dockerfile", "volume.py", "product.sh", "roundhouse"} <= texts.keys()
    assert [name for name, text in texts.items() if "chown" in text] == []


def place(**changes) -> Volume:
    usual = Volume("/workspace", True, True, "nfs4", True, 10 * GIB, 5 * GIB, "/workspace")
    return replace(usual, **changes)


@pytest.mark.parametrize(
    ("volume", "container", "must_be_shared", "expected"),
    [
        (place(), "docker", True, {"volume.mount": "ok"}),
        (place(mounted=False, filesystem="overlay", mount_point="/"), "docker", False, {"volume.mount": "warn"}),
        (place(mounted=False, filesystem="overlay", mount_point="/"), "docker", True, {"volume.mount": "stop"}),
        (place(mounted=False, filesystem="ext4", mount_point="/"), None, False, {"volume.mount": "ok"}),
        (place(exists=False, mounted=False), "docker", True, {"volume.mount": "stop"}),
        (place(exists=False, mounted=False), "docker", False, {}),
        (place(exists=False, mounted=True), "docker", True, {}),  # a folder to be made on the shared mount
        (place(filesystem="tmpfs"), "docker", False, {"volume.mount": "warn"}),
        (place(filesystem="tmpfs"), None, True, {"volume.mount": "stop"}),
        (place(writable=False), None, False, {"volume.writable": "stop", "volume.mount": "ok"}),
        (place(exists=None, writable=None), None, True, {"volume.answers": "stop"}),
    ],
)
def test_several_nodes_never_fall_back_to_a_disk_of_their_own(volume, container, must_be_shared, expected):
    checks = check_place(volume, container=container, must_be_shared=must_be_shared)
    assert {check.name: check.level for check in checks} == expected


@pytest.mark.parametrize(
    ("offset", "kept", "level", "words"),
    [
        (0.02, True, "ok", "within 2 s of the volume's; the kernel says it is kept in time"),
        (45.0, True, "warn", "45.0 s behind the one"),
        (-3600.0, None, "warn", "3600.0 s ahead of the one"),
        (None, False, "ok", "nothing keeps it in time"),
        (None, None, "n/a", "nothing here to compare"),
    ],
)
def test_what_can_be_told_of_the_clock(offset, kept, level, words):
    check = check_clock(replace(FINE, clock_offset=offset), kept)
    assert check.level == level
    assert words in check.text
