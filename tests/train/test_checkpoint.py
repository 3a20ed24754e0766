"""A checkpoint is complete or it does not exist; the newest complete one is used; nothing good is deleted early."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
import checkpoint  # noqa: E402
import process_group  # noqa: E402


@pytest.fixture(scope="module", autouse=True)
def group():
    process_group.start({})
    yield
    process_group.stop()


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model, optimizer, seed):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))
    loss = model(x).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def save(folder, number, model, optimizer, about):
    return checkpoint.save(folder, number, lambda path: checkpoint.write_state(path, model, optimizer), about)


def saved(folder, steps):
    model, optimizer = make()
    for number in range(1, max(steps) + 1):
        step(model, optimizer, number)
        if number in steps:
            save(folder, number, model, optimizer, {"seed": 0})
    return model, optimizer


def test_a_resume_goes_on_exactly(tmp_path):
    model, optimizer = saved(tmp_path, [3])
    expected = [step(model, optimizer, seed) for seed in (4, 5, 6)]
    other, other_optimizer = make()
    checkpoint.read_state(checkpoint.newest(tmp_path).path, other, other_optimizer)
    assert [step(other, other_optimizer, seed) for seed in (4, 5, 6)] == expected


def test_a_resume_takes_the_weight_decay_that_it_is_given_now(tmp_path):
    saved(tmp_path, [3])
    model, _ = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.7)
    checkpoint.read_state(checkpoint.newest(tmp_path).path, model, optimizer)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.7]
    assert optimizer.state


def test_the_newest_is_the_highest_step_and_carries_what_was_said_of_it(tmp_path):
    saved(tmp_path, [2, 10, 9])
    found = checkpoint.newest(tmp_path)
    assert (found.step, found.about, found.damaged) == (10, {"seed": 0}, ())


def test_an_empty_folder_has_none(tmp_path):
    assert checkpoint.newest(tmp_path) is None
    assert checkpoint.newest(tmp_path / "never made") is None


@pytest.mark.parametrize(
    ("hurt", "said"),
    [
        (lambda path: (path / "manifest.json").unlink(), "manifest.json"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json"),
        (lambda path: (path / ".metadata").unlink(), ".metadata is missing"),
        (lambda path: (path / "__0_0.distcp").write_bytes(b"short"), "5 bytes instead of"),
        (lambda path: [child.unlink() for child in path.iterdir()], "manifest.json"),
    ],
)
def test_a_damaged_newest_one_is_named_and_the_one_before_is_used(tmp_path, hurt, said):
    saved(tmp_path, [1, 2])
    hurt(tmp_path / "step-2")
    found = checkpoint.newest(tmp_path)
    assert found.step == 1
    assert len(found.damaged) == 1
    assert said in found.damaged[0]
    assert "step-2" in found.damaged[0]


def test_a_save_that_was_killed_is_no_checkpoint_and_is_written_over(tmp_path, monkeypatch):
    model, optimizer = saved(tmp_path, [1])
    monkeypatch.setattr(checkpoint, "_commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 2, model, optimizer, {})
    monkeypatch.undo()
    assert checkpoint.newest(tmp_path).step == 1
    save(tmp_path, 2, model, optimizer, {})
    assert checkpoint.newest(tmp_path).step == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def test_a_damaged_one_is_replaced_when_its_step_comes_again(tmp_path):
    model, optimizer = saved(tmp_path, [1, 2])
    (tmp_path / "step-2" / ".metadata").unlink()
    save(tmp_path, 2, model, optimizer, {})
    assert checkpoint.newest(tmp_path).step == 2


def test_a_complete_one_is_not_written_again(tmp_path):
    model, optimizer = saved(tmp_path, [1])
    before = (tmp_path / "step-1" / "manifest.json").stat().st_mtime_ns
    save(tmp_path, 1, model, optimizer, {"other": 1})
    assert (tmp_path / "step-1" / "manifest.json").stat().st_mtime_ns == before


def test_the_manifest_names_every_file_with_its_size(tmp_path):
    saved(tmp_path, [1])
    files = json.loads((tmp_path / "step-1" / "manifest.json").read_text())["files"]
    there = {path.name: path.stat().st_size for path in (tmp_path / "step-1").iterdir() if path.name != "manifest.json"}
    assert files == there


def test_every_file_and_folder_is_on_the_disk_before_the_rename(tmp_path, monkeypatch):
    """fsync and rename are the real ones, noted in their order; the files are torch.save's, which syncs nothing."""
    done = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_rename(source, target):
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)

    def write(folder):
        (folder / "state" / "deep").mkdir(parents=True)
        torch.save(make()[0].state_dict(), folder / "state" / "deep" / "share.pt")
        (folder / "state" / "latest").write_text("state")

    checkpoint.save(tmp_path, 1, write, {})
    partial = tmp_path / "step-1.partial"
    names = ["state/deep/share.pt", "state/latest", "state/deep", "state", "manifest.json", ""]
    assert set(done[: done.index("rename")]) == {partial / name for name in names}
    assert done[-2:] == ["rename", tmp_path]
    assert done.index(partial / "manifest.json") > done.index(partial / "state/deep/share.pt")


@pytest.mark.parametrize(
    ("steps", "keep", "expected"),
    [
        ([], 2, []),
        ([100], 2, []),
        ([300, 100, 200], 2, [100]),
        ([1000, 200], 1, [200]),
    ],
)
def test_only_the_newest_are_kept(steps, keep, expected):
    assert checkpoint.to_delete(steps, keep) == expected


def test_pruning_leaves_what_is_being_written(tmp_path):
    saved(tmp_path, [1, 2, 3])
    (tmp_path / "step-4.partial").mkdir()
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3", "step-4.partial"]


def test_what_a_killed_run_was_writing_or_deleting_takes_no_room_from_the_next_save(tmp_path, monkeypatch):
    """A run that saves by the clock does not come to the same step again, which would write over it."""
    model, optimizer = saved(tmp_path, [1])
    for name in ("step-2.partial", "step-0.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard").write_bytes(bytes(100_000))

    def usage(folder):
        return type("Usage", (), {"free": 100_000 - sum(p.stat().st_size for p in tmp_path.rglob("shard"))})

    monkeypatch.setattr(checkpoint.shutil, "disk_usage", usage)
    save(tmp_path, 3, model, optimizer, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-3"]


def test_a_deletion_that_is_killed_leaves_nothing_that_looks_like_a_checkpoint(tmp_path, monkeypatch):
    model, optimizer = saved(tmp_path, [1, 2])
    monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(tmp_path, 1)
    monkeypatch.undo()
    assert checkpoint.newest(tmp_path).damaged == ()
    save(tmp_path, 3, model, optimizer, {})
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3"]


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_one_hiccup_is_retried_and_a_save_that_fails_twice_leaves_nothing(tmp_path, tries):
    saved(tmp_path, [1])
    calls = []

    def write(folder):
        calls.append(folder)
        (folder / "shard").write_bytes(bytes(100))
        if len(calls) < tries:
            raise OSError(5, "Input/output error")

    if tries < 3:
        checkpoint.save(tmp_path, 2, write, {})
        assert checkpoint.newest(tmp_path).step == 2
    else:
        with pytest.raises(checkpoint.NotSaved, match=r"step 2 was not saved.*Input/output error"):
            checkpoint.save(tmp_path, 2, write, {})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1"]


FAILS_TO_SAVE = """
import sys, pathlib
sys.path.insert(0, sys.argv[1])
import checkpoint, process_group
process_group.start()
folder = pathlib.Path(sys.argv[2])
try:
    checkpoint.save(folder, 2, lambda path: (path / "shard").write_text("all"), {})
except checkpoint.NotSaved as error:
    print(f"told: {error}\\n", end="", flush=True)
process_group.leave(0)
"""


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_told_on_all_ranks_and_nobody_hangs(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-2.partial").write_text("no folder")
    (tmp_path / "script.py").write_text(FAILS_TO_SAVE)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [tmp_path / "script.py", Path(checkpoint.__file__).parent, tmp_path / "checkpoints"]
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("told: step 2 was not saved") == 2, done.stdout + done.stderr


SAVES_SLOWLY = """
import datetime, os, pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import checkpoint, process_group
process_group.TIMEOUT = datetime.timedelta(seconds=4)
process_group.start()

def write(path):
    if os.environ["RANK"] == "0":
        time.sleep(10)
        (path / "all").write_text("of all")

print(f"saved {checkpoint.save(pathlib.Path(sys.argv[2]), 2, write, {}).name}\\n", end="", flush=True)
process_group.leave(0)
"""


@pytest.mark.slow
def test_ranks_wait_for_the_one_that_writes_for_all(tmp_path):
    (tmp_path / "script.py").write_text(SAVES_SLOWLY)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [tmp_path / "script.py", Path(checkpoint.__file__).parent, tmp_path / "checkpoints"]
    done = subprocess.run([*command, *script], capture_output=True, text=True, timeout=90)
    assert done.stdout.count("saved step-2") == 2, done.stdout + done.stderr


def test_a_volume_without_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    saved(tmp_path, [1])
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(checkpoint.NotSaved, match="1,000 bytes are free and step-1 takes"):
        checkpoint.save(tmp_path, 2, lambda folder: pytest.fail("written"), {})
    assert checkpoint.newest(tmp_path).step == 1


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_with_a_higher_number_does_not_push_good_ones_out(tmp_path, keep):
    saved(tmp_path, [1, 2, 3, 9])
    (tmp_path / "step-9" / ".metadata").unlink()
    checkpoint.prune(tmp_path, keep)
    assert {path.name for path in tmp_path.iterdir()} == {"step-9.damaged", "step-3", "step-2"} - (
        {"step-2"} if keep == 1 else set()
    )
    assert checkpoint.newest(tmp_path).damaged == ()
