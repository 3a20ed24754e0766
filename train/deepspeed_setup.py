"""DeepSpeed, made ready before it starts: quiet, on our process group, and compiling nothing that was not asked for."""

import logging
import os
import warnings
from types import ModuleType

from process_group import Process


def load(process: Process) -> ModuleType:
    """The module `deepspeed`, imported here because it reads these variables while it is imported."""
    if process.device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.setdefault("LOCAL_RANK", str(process.local_rank))  # a process without a launcher has none
    warnings.filterwarnings("ignore", "`torch.distributed.* is deprecated", FutureWarning)  # names of torch 2.12
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # With any compiler in reach it would be built at each start on a CPU, for a collective of inference.
    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}
    return deepspeed
