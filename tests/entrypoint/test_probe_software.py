"""Installed versions are read from files, also of an installation that could not be imported."""

import json
from pathlib import Path

from entrypoint.facts import Software
from entrypoint.probe_software import read_software

DEEPSPEED = """version='0.19.8'
git_hash='unknown'
installed_ops={'async_io': True, 'cpu_adam': True, 'fused_adam': False}
accelerator_name='cuda'
torch_info={'version': '2.13', 'bf16_support': True, 'cuda_version': '13.0', 'nccl_version': '2.29'}
"""


def install(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def torch(version: str, cuda: str | None) -> str:
    return f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = None\n"


def test_torch_its_cuda_its_nccl_and_the_ops_are_read(tmp_path):
    site = install(
        tmp_path / "site",
        {
            "torch/version.py": torch("2.13.0+cu130", "13.0"),
            # The package index's wheel carries no "+cu130" in its name.
            "torch-2.13.0.dist-info/METADATA": "Name: torch\nRequires-Dist: nvidia-nccl-cu13==2.29.3; platform_x\n",
            "nvidia_nccl_cu13-2.28.9.dist-info/METADATA": "",
            "deepspeed/git_version_info_installed.py": DEEPSPEED,
        },
    )
    build = tmp_path / "build.json"
    build.write_text(json.dumps({"ops": ["cpu_adam", "fused_adam"]}))
    said = read_software([tmp_path / "empty", site], build)
    assert said.build is not None
    assert len(said.build) == 12
    assert (said.torch, said.torch_cuda, said.nccl, said.nccl_wanted) == ("2.13.0+cu130", "13.0", "2.28.9", "2.29.3")
    assert (said.deepspeed, said.ops, said.ops_torch, said.ops_cuda) == (
        "0.19.8",
        ("async_io", "cpu_adam"),
        "2.13",
        "13.0",
    )
    assert said.ops_promised == ("cpu_adam", "fused_adam")


def test_a_torch_for_cpus_has_no_cuda(tmp_path):
    site = install(tmp_path, {"torch/version.py": torch("2.13.0+cpu", None)})
    said = read_software([site], tmp_path / "build.json")
    assert (said.torch, said.torch_cuda, said.build) == ("2.13.0+cpu", None, None)


def test_the_first_folder_on_the_path_counts(tmp_path):
    first = install(tmp_path / "a", {"torch/version.py": torch("2.14.1", "13.2")})
    second = install(tmp_path / "b", {"torch/version.py": torch("2.13.0", "13.0")})
    assert read_software([first, second], tmp_path / "none").torch == "2.14.1"


def test_broken_files_say_nothing(tmp_path):
    site = install(
        tmp_path,
        {
            "torch/version.py": "half a fi",
            "deepspeed/git_version_info_installed.py": "version=\ninstalled_ops={'a': import os}\n=\n",
            "build.json": "[1, 2",
        },
    )
    said = read_software([site], site / "build.json")
    assert said == Software(python=said.python)


def test_this_installation_is_as_its_metadata_say():
    import sys
    from importlib.metadata import version

    said = read_software([Path(folder) for folder in sys.path if folder], Path("/none"))
    assert said.torch == version("torch")
    assert said.deepspeed == version("deepspeed")
