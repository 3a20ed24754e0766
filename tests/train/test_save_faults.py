"""Saves that are killed, that find no room, and that ranks see differently: what a later start goes on from."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mounts import as_root, tmpfs
from ranks import on_ranks, read_tensors

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def test_twenty_saves_that_are_killed_at_any_moment_leave_a_checkpoint_to_go_on_from(tmp_path):
    """transformers#35782"""
    program = [sys.executable, str(Path(__file__).with_name("killed_saves.py")), str(tmp_path), "20"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [word for word, _ in lines].count("resumed") == 21
    saved = 0
    for word, step in lines:
        if word == "resumed":
            assert int(step) in (saved, saved + 1)  # the rename was made, and nobody was told any more
        saved = int(step)
    assert saved > 20
    assert ".partial" in done.stdout  # some were killed while they wrote
    assert not any(path.name.endswith(".damaged") for path in (tmp_path / "checkpoints").iterdir())


def one_model(size=100):
    torch.manual_seed(0)
    model = torch.nn.Linear(size, 500)
    return model, torch.optim.AdamW(model.parameters())


# ---- ranks that see the volume differently ----


def blind(monkeypatch, folder):
    """As on a network file system whose other clients are not told yet: nothing is there but what is being written."""
    for name, answer in (("exists", False), ("is_dir", False), ("iterdir", iter(()))):
        seen = getattr(Path, name)

        def look(path, *more, seen=seen, answer=answer, **options):
            hidden = folder in (path, *path.parents) and not path.name.endswith(".partial")
            return answer if hidden else seen(path, *more, **options)

        monkeypatch.setattr(Path, name, look)


def a_blind_rank_and_a_slow_commit(folder):
    import checkpoint
    import torch.distributed as dist

    model, optimizer = one_model()
    checkpoint.save(folder, 1, lambda path: checkpoint.write_state(path, model, optimizer), {})
    commit = checkpoint._commit

    def slow_commit(*arguments):
        time.sleep(1.5)
        commit(*arguments)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(checkpoint, "_commit", slow_commit)
        if dist.get_rank() == 1:
            blind(monkeypatch, folder)
            assert not (folder / "step-1").exists()
        found = checkpoint.newest(folder)
        assert (found.step, found.path) == (1, folder / "step-1")
        checkpoint.save(folder, 2, lambda path: checkpoint.write_state(path, model, optimizer), {})
        assert os.stat(folder / "step-2" / "manifest.json")  # committed before anybody goes on
        checkpoint.prune(folder, 1)
        assert checkpoint.newest(folder).step == 2
    dist.barrier()
    assert sorted(path.name for path in folder.iterdir()) == ["step-2"]


def test_rank_0_decides_and_all_return_after_its_commit(tmp_path):
    """KempnerForge#49"""
    on_ranks(2, a_blind_rank_and_a_slow_commit, tmp_path)


def a_slow_reader(folder):
    import checkpoint
    import torch.distributed as dist
    from torch.distributed.checkpoint import FileSystemReader

    model, optimizer = one_model()
    checkpoint.save(folder, 1, lambda path: checkpoint.write_state(path, model, optimizer), {})
    with pytest.MonkeyPatch.context() as monkeypatch:
        if dist.get_rank() == 1:
            read = FileSystemReader.read_data

            def slow_read(*arguments):
                time.sleep(1.5)
                return read(*arguments)

            monkeypatch.setattr(FileSystemReader, "read_data", slow_read)
        other, other_optimizer = one_model()
        torch.nn.init.zeros_(other.weight)
        checkpoint.read_state(checkpoint.newest(folder).path, other, other_optimizer)
        checkpoint.save(folder, 2, lambda path: checkpoint.write_state(path, other, other_optimizer), {})
        checkpoint.prune(folder, 1)
    assert torch.equal(other.weight, model.weight)


def test_nothing_is_deleted_while_a_rank_still_reads_it(tmp_path):
    on_ranks(2, a_slow_reader, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2"]


# ---- what is in a checkpoint ----


def a_sharded_optimizer(folder):
    import checkpoint
    import fsdp
    import torch.distributed as dist
    from model import build_model
    from optimizer import make_optimizer, update
    from options import FsdpOptions
    from process_group import Process

    options = FsdpOptions()
    process = Process(dist.get_rank(), dist.get_rank(), dist.get_world_size(), torch.device("cpu"))

    def make(seed):
        torch.manual_seed(seed)
        model = build_model(options, 256)
        fsdp.shard(model, options, process, bfloat16=False)
        return model, make_optimizer(model, options)

    def step(model, optimizer, seed):
        generator = torch.Generator().manual_seed(100 * seed + process.rank)
        tokens = torch.randint(256, (2, 17), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        assert update(model, optimizer, 1.0)
        return loss.item()

    model, optimizer = make(0)
    for seed in range(3):
        step(model, optimizer, seed)
    checkpoint.save(folder, 3, lambda path: checkpoint.write_state(path, model, optimizer), {})
    other, other_optimizer = make(1)
    checkpoint.read_state(folder / "step-3", other, other_optimizer)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine.to_local(), theirs.to_local())
        ours, read = optimizer.state[mine], other_optimizer.state[theirs]
        assert ours.keys() == read.keys() == {"step", "exp_avg", "exp_avg_sq"}
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(ours[name].to_local(), read[name].to_local())
        assert ours["step"] == read["step"] == 3
    for seed in (3, 4):
        assert step(model, optimizer, seed) == step(other, other_optimizer, seed)


def test_a_sharded_optimizer_is_read_bit_for_bit_and_goes_on_exactly(tmp_path):
    """accelerate#3971"""
    on_ranks(2, a_sharded_optimizer, tmp_path)
    # And what they wrote, fsdp on two ranks, needs no pickle of code to be read (transformers#40500).
    from torch.distributed.checkpoint import FileSystemReader
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    metadata = FileSystemReader(tmp_path / "step-3").read_metadata()
    kept = metadata.storage_data
    plain = [index for index in kept if isinstance(metadata.state_dict_metadata[index.fqn], BytesStorageMetadata)]
    assert len(kept) > 100
    assert len(plain) > 5
    for info in kept.values():
        with open(tmp_path / "step-3" / info.relative_path, "rb") as stream:
            stream.seek(info.offset)
            torch.load(io.BytesIO(stream.read(info.length)), weights_only=True)


# ---- no room ----


@as_root
@pytest.mark.parametrize(
    ("room", "saved", "why"), [(4.5, ["step-1"], "are free and step-1 takes"), (1.5, [], r"\(\d{1,6} bytes are free\)")]
)
def test_a_save_on_a_full_volume_leaves_what_was_there_and_nothing_else(tmp_path, room, saved, why):
    """ChatGLM-6B#1166"""
    import checkpoint
    import process_group

    process_group.start({})
    try:
        model, optimizer = one_model(2000)
        size = 4 * sum(parameter.numel() for parameter in model.parameters())
        with tmpfs(tmp_path / "volume", f"size={int(size * room)}") as volume:
            for step in range(1, len(saved) + 1):
                checkpoint.save(volume, step, lambda path: checkpoint.write_state(path, model, optimizer), {})
            with pytest.raises(checkpoint.NotSaved, match=why):
                checkpoint.save(volume, 9, lambda path: checkpoint.write_state(path, model, optimizer), {})
            assert [path.name for path in volume.iterdir()] == saved
            found = checkpoint.newest(volume)
            assert ([f"step-{found.step}"] if found else []) == saved
    finally:
        process_group.stop()


def alone(folder, *arguments, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment |= {"TRAIN_RUN_DIR": str(folder / "run"), **variables}
    (folder / "text.txt").write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(4000)))
    words = [
        "--data",
        str(folder / "text.txt"),
        "--steps",
        "30",
        "--seq-length",
        "32",
        "--global-batch",
        "2",
        *arguments,
    ]
    command = [sys.executable, str(ROOT / "train" / "ddp.py"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@as_root
def test_a_run_whose_last_save_finds_no_room_does_not_end_well(tmp_path):
    with tmpfs(tmp_path / "volume", "size=1m") as volume:
        done = alone(tmp_path, "--save-every", "10", TRAIN_CHECKPOINT_DIR=str(volume))
        assert list(volume.iterdir()) == []
    assert done.stdout.count("training goes on to the next save") == 2
    assert done.returncode == 1
    error, fix = done.stderr.splitlines()
    assert error.startswith(f"error: step 30 was not saved to {volume}: ")
    assert error.endswith("bytes are free)")
    assert fix.startswith("  fix: make room on the volume")


def test_a_run_that_diverges_stops_with_an_error_and_its_checkpoints_are_whole(tmp_path):
    """DeepSpeedExamples#418. The first step leaves weights of which the next forward makes no number any more."""
    done = alone(tmp_path, "--lr", "1e30", "--warmup", "0", "--save-every", "2", "--keep", "9")
    error, fix = done.stderr.splitlines()
    assert done.returncode == 1
    assert error.startswith("error: the gradient was not finite for 10 steps in a row, up to step ")
    assert fix.startswith("  fix: a lower --lr")
    saved = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert len(saved) >= 5
    for path in saved:
        state = read_tensors(path)
        assert len(state) > 100
        assert all(torch.isfinite(tensor).all() for tensor in state.values()), path
