"""TRAIN_MOUNT: what it means, the command line, and what refuses it."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import replay_facts
from entrypoint.errors import SettingError
from entrypoint.mount import check_mount, mount_command, parse_mount, refuse_unshared

MACHINES = Path(__file__).resolve().parents[1] / "machines"
W = Path("/workspace")


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("nfs://10.0.0.5/export", "mount -t nfs 10.0.0.5:/export /workspace"),
        ("nfs://nas.local/", "mount -t nfs nas.local:/ /workspace"),
        ("nfs4://nas/vol/a", "mount -t nfs4 nas:/vol/a /workspace"),
        ("nfs://nas:12049/vol", "mount -t nfs -o port=12049 nas:/vol /workspace"),
        ("nfs://nas/vol?vers=4.1,nconnect=8", "mount -t nfs -o vers=4.1,nconnect=8 nas:/vol /workspace"),
        ("nfs://nas/vol?vers=4.1&hard", "mount -t nfs -o vers=4.1,hard nas:/vol /workspace"),
        ("nfs://[fd00::5]/vol", "mount -t nfs [fd00::5]:/vol /workspace"),
        ("10.0.0.5:/export", "mount -t nfs 10.0.0.5:/export /workspace"),
        (
            "fs-1.efs.eu-west-1.amazonaws.com:/?vers=4.1",
            "mount -t nfs -o vers=4.1 fs-1.efs.eu-west-1.amazonaws.com:/ /workspace",
        ),
        ("[fd00::5]:/vol?ro", "mount -t nfs -o ro [fd00::5]:/vol /workspace"),
        ("/dev/sdb1", "mount /dev/sdb1 /workspace"),
        ("/dev/disk/by-id/x?noatime,ro", "mount -o noatime,ro /dev/disk/by-id/x /workspace"),
        ("/images/data.img", "mount -o loop /images/data.img /workspace"),
        ("/images/data.img?ro", "mount -o ro,loop /images/data.img /workspace"),
    ],
)
def test_a_wish_becomes_a_command(text, command):
    assert " ".join(mount_command(parse_mount(text), W)) == command


@pytest.mark.parametrize(
    "text",
    [
        *("nfs://nas", "nas", "s3://bucket/x", "", "nas:vol", "nfs:///vol", "https://nas/vol"),
        *("nfs://nas/vol?", "nfs://nas/vol?vers=4.1 -o x", "nfs://nas/vol?a;b", "nfs://nas/a b", "//server/share"),
    ],
)
def test_what_is_no_mount_is_refused_and_quoted(text):
    with pytest.raises(SettingError, match="TRAIN_MOUNT=") as refused:
        parse_mount(text)
    assert repr(text) in refused.value.problem
    assert refused.value.fix


@pytest.mark.parametrize(
    ("text", "nodes", "refused"),
    [
        ("nfs://nas/vol", 8, False),
        ("/dev/sdb1", 1, False),
        ("/dev/sdb1", 2, True),
        ("/dev/sdb1?ro", 2, False),
        ("/images/x.img", 2, True),
    ],
)
def test_a_disk_is_not_mounted_by_several_nodes(text, nodes, refused):
    if refused:
        with pytest.raises(SettingError, match=f"{nodes} nodes"):
            refuse_unshared(parse_mount(text), nodes)
    else:
        refuse_unshared(parse_mount(text), nodes)


LAPTOP = replay_facts(MACHINES / "laptop")


@pytest.mark.parametrize(
    ("capabilities", "mount_point", "level", "words"),
    [
        (0x1FFFFFFFFFF, "/", "ok", "will be mounted"),
        (None, "/", "ok", "will be mounted"),  # not known: mount will tell
        (0xA80425FB, "/", "stop", "CAP_SYS_ADMIN"),  # Docker's default set
        (0xA80425FB, "/workspace", "ok", "is a mount already"),
    ],
)
def test_the_plan_says_whether_it_can_be_mounted(capabilities, mount_point, level, words):
    facts = replace(
        LAPTOP, capabilities=capabilities, volume=replace(LAPTOP.volume, exists=True, mount_point=mount_point)
    )
    check = check_mount("nfs://nas/vol", facts, W)
    assert check.level == level
    assert words in check.text
    assert bool(check.fix) == (level == "stop")


def test_without_a_wish_there_is_nothing_to_say():
    assert check_mount(None, LAPTOP, W) is None
