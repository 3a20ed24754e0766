"""`nvidia-smi topo -m` of real machines → who is joined by what, and a sentence."""

from pathlib import Path

import pytest

from entrypoint.topology import describe, describe_nics, has_nvlink, nearest_nics, parse_topology

TOPOLOGIES = Path(__file__).resolve().parents[1] / "topologies"


def topology(name):
    found = parse_topology((TOPOLOGIES / f"{name}.txt").read_text())
    assert found is not None
    return found


ALL = [
    # name, GPUs, NICs, NVLink?, sentence
    ("h100-sxm-nics", 8, 6, True, "NVLink between all 8 GPUs (NV18)"),
    ("a100-sxm-named-nics", 8, 2, True, "NVLink between all 8 GPUs (NV12)"),
    ("a100-sxm-four", 4, 1, True, "NVLink between all 4 GPUs (NV12)"),
    ("a100-vm-cut", 8, 8, True, "NVLink between all 8 GPUs (NV12)"),
    (
        "a100-pairs",
        *(4, 0, True),
        "NVLink (NV12) only between GPU0-GPU1, GPU2-GPU3; the other 4 pairs exchange data from one CPU socket to the "
        "other (SYS)",
    ),
    (
        "a6000-one-bridge",
        *(3, 0, True),
        "NVLink (NV4) only between GPU0-GPU1; the other 2 pairs exchange data across the PCIe bridges of "
        "one CPU (NODE)",
    ),
    (
        "rtx6000-ada-spaces",
        *(4, 4, False),
        "no NVLink: GPUs exchange data from one CPU socket to the other (NODE, SYS)",
    ),
    (
        "six-gpus-underlined",
        *(6, 0, False),
        "no NVLink: GPUs exchange data from one CPU socket to the other (PIX, NODE, SYS)",
    ),
    ("two-5090", 2, 0, False, "no NVLink: GPUs exchange data through the CPU's PCIe bridge (PHB)"),
    ("two-v100-pcie", 2, 0, False, "no NVLink: GPUs exchange data from one CPU socket to the other (SYS)"),
    (
        "dgx1-v100",
        *(8, 4, True),
        "NVLink (NV1, NV2) only between 16 pairs; the other 12 pairs exchange data from one CPU socket to the other "
        "(SYS)",
    ),
    ("eight-phb-old", 8, 0, False, "no NVLink: GPUs exchange data through the CPU's PCIe bridge (PHB)"),
    ("one-gpu", 1, 0, False, "one GPU: nothing to join"),
]


def test_every_capture_is_tested():
    assert {row[0] for row in ALL} == {path.stem for path in TOPOLOGIES.glob("*.txt")}


@pytest.mark.parametrize(("name", "gpus", "nics", "nvlink", "sentence"), ALL, ids=lambda value: str(value)[:20])
def test_a_matrix_is_read_and_said(name, gpus, nics, nvlink, sentence):
    found = topology(name)
    assert (len(found.gpus), len(found.nics), has_nvlink(found)) == (gpus, nics, nvlink)
    assert len(found.pairs()) == gpus * (gpus - 1) // 2
    assert all(found.links[a, b] == found.links[b, a] for a, b in found.pairs())
    assert describe(found) == sentence


@pytest.mark.parametrize(
    ("name", "gpu", "link", "nics"),
    [
        ("h100-sxm-nics", "GPU0", "PIX", ("mlx5_0", "mlx5_1")),  # by the legend's names
        ("h100-sxm-nics", "GPU7", "NODE", tuple(f"mlx5_{n}" for n in range(6))),
        ("a100-sxm-named-nics", "GPU4", "PXB", ("mlx5_1",)),
        ("a100-vm-cut", "GPU0", "PHB", tuple(f"mlx5_{n}" for n in range(7))),  # the cut column is not guessed
        ("dgx1-v100", "GPU4", "PIX", ("mlx5_2",)),  # columns in the tool's order, not in the names'
    ],
)
def test_the_nearest_nics_of_a_gpu_are_found(name, gpu, link, nics):
    assert nearest_nics(topology(name))[gpu] == (link, nics)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "h100-sxm-nics",
            "4 of 8 GPUs have a NIC beside them; the farthest is reached across the PCIe bridges of one CPU (NODE)",
        ),
        ("dgx1-v100", "each GPU has a NIC beside it (PIX)"),
        ("two-5090", None),
    ],
)
def test_the_distance_of_nics_is_said(name, sentence):
    assert describe_nics(topology(name)) == sentence


def test_glued_cells_of_a_wide_terminal_are_told_apart():
    text = (
        "\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\nGPU0\t X \tNV18\tPIXNODE\t0-191\nGPU1\tNV18\t X \tNODE\tPIX\t0-191\n"
    )
    assert parse_topology(text).links["GPU0", "NIC1"] == "NODE"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.65\n",
        "GPU0\t X \tNV18\n",
    ],
)
def test_what_is_no_matrix_is_none(text):
    assert parse_topology(text) is None
