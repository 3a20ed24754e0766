"""DeepSpeed, made ready before it starts: quiet, on our process group, and compiling nothing that was not asked for."""

import logging
import os
import shutil
import warnings
from collections.abc import Callable
from types import ModuleType

from options import Problem
from process_group import Process
from torch import Tensor, nn
from torch.optim import Optimizer


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


def refuse_without_ops(names: list[str], say: Callable[[str], None]) -> None:
    """Problem where one of DeepSpeed's ops is neither in the wheel nor can be compiled: it would end in a traceback
    (DeepSpeed#2503). What it will compile is told: that takes minutes."""
    from deepspeed.accelerator import get_accelerator
    from deepspeed.git_version_info import accelerator_name, installed_ops
    from deepspeed.ops.op_builder.all_ops import ALL_OPS

    prebuilt = installed_ops if accelerator_name == get_accelerator().device_name() else {}
    for name in (name for name in names if not prebuilt.get(name)):
        missing = [tool for tool in (os.environ.get("CXX", "c++"), "ninja") if not shutil.which(tool)]
        if not missing and name == "async_io" and not ALL_OPS[name].is_compatible():
            missing = ["libaio with its headers"]
        if missing:
            where = {"cpu_adam": "offload to CPU memory", "async_io": "offload to NVMe"}[name]
            raise Problem(
                f"{where} wants DeepSpeed's op {name}: not prebuilt here, and there is no {' and no '.join(missing)}",
                fix=f"use an image that has the op, install {' and '.join(missing)}, or do without this offload",
            )
        say(f"DeepSpeed's op {name} is not prebuilt here: it is compiled first, which takes minutes")


def cpu_adam(optimizer: Optimizer) -> Optimizer:
    """DeepSpeed's Adam for state in CPU memory, with the groups and values of this AdamW."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    groups = [{name: group[name] for name in ("params", "weight_decay")} for group in optimizer.param_groups]
    chosen = {name: optimizer.defaults[name] for name in ("lr", "betas", "eps")}
    return DeepSpeedCPUAdam(groups, adamw_mode=True, **chosen)


def whole_state(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Weights in fp32 and buffers, on the CPU of the rank that keeps them; all ranks gather, one weight at a time."""
    from deepspeed.runtime.zero.partition_parameters import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param

    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        full = safe_get_full_fp32_param(parameter)  # None: frozen, or stage 0
        with GatheredParameters([parameter], enabled=full is None and hasattr(parameter, "ds_id")):
            if keep:
                state[name] = (parameter if full is None else full).detach().float().cpu().clone()
    kept = {name: buffer for name, buffer in model.named_buffers() if keep and name in model.state_dict()}
    return state | {name: buffer.detach().cpu() for name, buffer in kept.items()}
