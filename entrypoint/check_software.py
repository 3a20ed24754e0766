"""Whether the installed versions agree: torch, NCCL, DeepSpeed and its ops. Pure."""

from collections.abc import Iterator

from entrypoint.facts import Facts, Software
from entrypoint.reasons import Check


def check_software(facts: Facts) -> Iterator[Check]:
    """Questions about what lies beside the Python that starts training; none where that was not looked at."""
    software = facts.software
    if software is None:
        return
    if software.torch is None:
        text = "torch is not installed beside this Python"
        yield Check("software.torch", "stop", text, "make setup, or the image's own Python (/opt/venv/bin/python)")
        return
    yield Check("software.torch", "ok", f"torch {software.torch}", value=software.torch)
    yield _nccl(software)
    yield _deepspeed(software)
    yield from _ops(software)


def _nccl(software: Software) -> Check:
    if software.torch_cuda is None:
        return Check("software.nccl", "n/a", "no NCCL in a torch for CPUs")
    if software.nccl and software.nccl_wanted and software.nccl != software.nccl_wanted:
        return Check(
            "software.nccl",
            "warn",
            f"NCCL {software.nccl} is installed, and torch {software.torch} was tested with {software.nccl_wanted}",
            f"pip install nvidia-nccl-cu{software.torch_cuda.partition('.')[0]}=={software.nccl_wanted}, on all nodes",
            software.nccl,
        )
    return Check("software.nccl", "ok", f"NCCL {software.nccl or 'inside torch'}", value=software.nccl)


def _deepspeed(software: Software) -> Check:
    if software.deepspeed is None:
        return Check("software.deepspeed", "n/a", "DeepSpeed is not installed")
    return Check("software.deepspeed", "ok", f"DeepSpeed {software.deepspeed}", value=software.deepspeed)


def _ops(software: Software) -> Iterator[Check]:
    """DeepSpeed refuses ops that were built for another torch or CUDA (op_builder/builder.py, validate_torch_*)."""
    if software.deepspeed is None:
        return
    value = list(software.ops)
    if missing := sorted(set(software.ops_promised) - set(software.ops)):
        text = f"DeepSpeed's ops {', '.join(missing)} came with the image and are gone: another DeepSpeed was installed"
        yield Check("software.ops", "warn", text, "install nothing over the image's torch and DeepSpeed", value)
        return
    if not software.ops:
        text = "DeepSpeed has no prebuilt ops: what needs one compiles it, which takes a compiler and minutes"
        yield Check("software.ops", "ok" if software.torch_cuda is None else "warn", text, _BUILD, value)
        return
    torch = ".".join((software.torch or "").split(".")[:2])
    for name, built, here in (
        ("torch", software.ops_torch, torch),
        ("CUDA", software.ops_cuda, software.torch_cuda),
    ):
        if built and here and built != here:
            yield Check(
                "software.ops",
                "warn",
                f"DeepSpeed's {len(software.ops)} ops were built for {name} {built} and {name} {here} is here: it "
                "refuses them",
                "put the image's torch back, or build DeepSpeed again with this one",
                value,
            )
            return
    yield Check("software.ops", "ok", f"{len(software.ops)} prebuilt ops for torch {torch}", value=value)


_BUILD = "use the image, which has them built; or DS_BUILD_OPS=1 when DeepSpeed is installed"
