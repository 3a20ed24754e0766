"""Last words of programs, as they are in public reports → what to do."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from mounts import as_root

from entrypoint.hints import hint

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RuntimeError: DataLoader worker (pid 4) is killed by signal: Bus error. It is possible that dataloader's "
         "workers are out of shared memory.", "--shm-size"),
        ("RuntimeError: unable to mmap 33554432 bytes from file </torch_7_42>: Cannot allocate memory (12)", None),
        ("RuntimeError: unable to open shared memory object </torch_1_2_3> in read-write mode: No space left", "shm"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left", "shm"),
        ("misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9637892 bytes", "--shm-size"),
        ("OSError: [Errno 24] Too many open files", "nofile"),
        ("RuntimeError: CUDA error: system not yet initialized", "another machine"),
        ("CUDA error: no kernel image is available for execution on the device", "built for"),
        ("The NVIDIA driver on your system is too old (found version 12080).", "driver"),
        ("misc/ibvwrap.cc:255 NCCL WARN Call to ibv_create_qp failed", "memlock"),
        ("PyTorch version mismatch! DeepSpeed ops were compiled and installed with a different version", "torch"),
        ("ValueError: bad data", None),
        ("", None),
    ],
)  # fmt: skip
def test_last_words_are_understood(line, words):
    said = hint([line], 1)
    assert (said is None) == (words is None)
    assert words is None or words in said


def test_a_bus_error_without_a_word_is_understood():
    assert "/dev/shm" in hint([], 128 + signal.SIGBUS)


@as_root
@pytest.mark.slow
@pytest.mark.torch
def test_a_run_whose_loader_does_not_fit_into_dev_shm_names_it_last(tmp_path):
    """rt-01 with a real /dev/shm of 4 MiB and a real loader."""
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    data = torch.zeros(8, 4 << 20)\n"
        "    for batch in DataLoader(data, batch_size=2, num_workers=2):\n"
        "        print(batch.shape)\n"
    )
    command = 'mount -t tmpfs -o size=4m tmpfs /dev/shm; exec "$@"'
    train = [sys.executable, "-m", "entrypoint", "train", str(tmp_path / "mine.py")]
    variables = {"PATH": "/usr/bin:/bin", "TRAIN_VOLUME": str(tmp_path), "TRAIN_NPROC": "1"}
    answer = subprocess.run(
        ["unshare", "-m", "sh", "-c", command, "sh", *train], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert answer.returncode not in (0, 69), answer.stderr
    assert "/dev/shm has 4 MiB" in answer.stdout  # told before
    assert "/dev/shm may be too small" in answer.stderr.splitlines()[-1]
