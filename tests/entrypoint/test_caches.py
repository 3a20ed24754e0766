"""Where caches go: downloads to the volume, what is compiled to this machine's disk, both after a person's wish."""

from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.caches import cache_settings
from entrypoint.capture import replay_facts
from entrypoint.facts import Software

MACHINES = Path(__file__).resolve().parents[1] / "machines"
RUNPOD = replay_facts(MACHINES / "runpod-cluster")
LAPTOP = replay_facts(MACHINES / "laptop")
TORCH = Software(torch="2.13.0+cu130", torch_cuda="13.0", python="3.11")
VOLUME = Path("/workspace")


def caches(facts=RUNPOD, variables=None, in_image=True):
    found = cache_settings(VOLUME, facts, variables or {}, in_image=in_image, machine="x86_64")
    return {setting.name: setting.value for setting in found}


def test_downloads_lie_on_the_volume_and_compiled_code_on_the_machines_disk():
    assert RUNPOD.volume.mounted
    assert caches(replace(RUNPOD, software=TORCH, user_id=0)) == {
        "HF_HOME": "/workspace/cache/huggingface",
        "TORCH_HOME": "/workspace/cache/torch",
        "PIP_CACHE_DIR": "/workspace/cache/pip",
        "TORCH_EXTENSIONS_DIR": "/tmp/roundhouse-0/torch2.13.0+cu130-py3.11-x86_64/torch_extensions",
        "TRITON_CACHE_DIR": "/tmp/roundhouse-0/torch2.13.0+cu130-py3.11-x86_64/triton",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/roundhouse-0/torch2.13.0+cu130-py3.11-x86_64/inductor",
    }


@pytest.mark.parametrize("name", list(caches()))
def test_what_is_set_stays(name):
    assert name not in caches(variables={name: "/mine"})
    assert name in caches(variables={name: ""})  # as a form leaves it


def test_a_person_at_home_keeps_the_downloads_that_are_there():
    assert "HF_HOME" not in caches(LAPTOP, in_image=False)


def test_nothing_is_downloaded_to_a_volume_that_is_no_volume():
    disk = replace(RUNPOD, volume=replace(RUNPOD.volume, mounted=False, filesystem="overlay"))
    assert "HF_HOME" not in caches(disk)
    assert "HF_HOME" not in caches(replace(RUNPOD, volume=replace(RUNPOD.volume, filesystem="tmpfs")))


@pytest.mark.parametrize(
    "other",
    [
        {"software": replace(TORCH, torch="2.14.1+cu130")},
        {"software": replace(TORCH, torch="2.13.0+cpu")},
        {"software": replace(TORCH, python="3.12")},
        {"software": replace(TORCH, build="0123456789ab")},
        {"user_id": 1234},
    ],
)
def test_two_installations_never_share_a_folder_of_compiled_code(other):
    usual = replace(RUNPOD, software=TORCH, user_id=0)
    assert caches(usual)["TORCH_EXTENSIONS_DIR"] != caches(replace(usual, **other))["TORCH_EXTENSIONS_DIR"]


def test_the_temporary_folder_is_where_the_machine_says():
    assert caches(variables={"TMPDIR": "/scratch"})["TRITON_CACHE_DIR"].startswith("/scratch/roundhouse")
