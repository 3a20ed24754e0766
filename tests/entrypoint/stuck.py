"""A script of two ranks that hangs: rank 0 waits in a collective that rank 1 never calls."""

from pathlib import Path

TRAIN = Path(__file__).resolve().parents[2] / "train"
# With torch alone, or with the recorder of our recipes.
STUCK = """
import os, sys, time
from pathlib import Path
import torch

def lost_in_thought():
    time.sleep(3600)

def work(rank):
    import torch.distributed as dist
    for step in range(1, 4):
        dist.all_reduce(torch.ones(1000))
        if rank == 0:
            Path(os.environ["TRAIN_STEP_FILE"]).write_text(str(step))
    if rank == 1:
        lost_in_thought()
    dist.all_reduce(torch.ones(1000))
"""
OF_ONES_OWN = STUCK + "import torch.distributed as dist\ndist.init_process_group('gloo')\nwork(dist.get_rank())\n"
OF_OURS = (
    f"import sys\nsys.path.insert(0, {str(TRAIN)!r})\n{STUCK}import process_group\nwork(process_group.start().rank)\n"
)
