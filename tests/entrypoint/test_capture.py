"""A captured machine replays to the same facts, and carries nothing that it should not."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import capture, main, replay, replay_facts
from entrypoint.probe_machine import THIS_MACHINE

MACHINES = Path(__file__).parents[1] / "machines"


@pytest.mark.parametrize("name", sorted(folder.name for folder in MACHINES.iterdir() if folder.is_dir()))
def test_a_capture_of_a_replay_is_the_same_machine(name: str, tmp_path: Path) -> None:
    facts = replay_facts(MACHINES / name)
    targets = [target for target, _source in facts.routes]
    captured = capture(tmp_path / name, Path(facts.volume.path), targets, replay(MACHINES / name))
    assert captured == facts
    assert replay_facts(tmp_path / name) == facts


def test_this_machine_can_be_captured(tmp_path: Path) -> None:
    # Free space and interfaces may change between two looks; this directory's is asked once.
    links, directory = THIS_MACHINE.links(), THIS_MACHINE.directory(str(tmp_path))
    machine = replace(THIS_MACHINE, links=lambda: links, directory=lambda _path: directory)
    assert capture(tmp_path / "copy", tmp_path, ["127.0.0.1"], machine) == replay_facts(tmp_path / "copy")


def test_mount_sources_and_options_stay_at_home(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    line = "40 28 0:50 / /workspace rw - cifs //server/share rw,username=ada"
    (root / "proc/self/mountinfo").write_text(f"{line}\n35 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu")
    machine = replace(THIS_MACHINE, files=replace(THIS_MACHINE.files, root=root))
    capture(tmp_path / "copy", Path("/workspace"), machine=machine)
    copied = (tmp_path / "copy/proc/self/mountinfo").read_text().splitlines()
    assert copied == [
        "40 28 0:50 / /workspace rw - cifs - -",
        "35 24 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
    ]


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 78
    assert str(tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_it_says_how_to_be_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "entrypoint.capture DIR" in capsys.readouterr().err
