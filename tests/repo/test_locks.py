"""The locks: two variants of the same versions, each package with its hashes."""

import re
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"
LOCKS = ("audit.txt", "cpu.txt", "cuda.txt", "dev.txt", "image.txt", "toolkit.txt", "validators.txt")
ONLY_CUDA = re.compile(r"nvidia-(?!ml-py)|cuda-|triton")


def pins(name: str) -> dict[str, set[str]]:
    text = (REQUIREMENTS / name).read_text()
    found: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE):
        found.setdefault(package, set()).add(version)
    return found


def test_both_variants_have_the_same_versions_but_for_cuda_itself():
    cpu, cuda = pins("cpu.txt"), pins("cuda.txt")
    assert cpu == {name: versions for name, versions in cuda.items() if not ONLY_CUDA.match(name)}
    assert cuda.keys() - cpu.keys() >= {"nvidia-nccl-cu13", "cuda-toolkit", "triton"}


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_is_pinned_with_a_hash_and_without_a_local_version(name):
    stanzas = re.split(r"^(?=[a-z])", (REQUIREMENTS / name).read_text(), flags=re.MULTILINE)[1:]
    assert len(stanzas) >= 4
    for stanza in stanzas:
        assert re.match(r"[\w.-]+==[^\s+]+ ", stanza), stanza
        assert "--hash=sha256:" in stanza


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("torch", "2.13.0"),
        ("deepspeed", "0.19.8"),
        ("accelerate", "1.15.0"),
        ("transformers", "5.24.0"),
    ],
)
def test_the_versions_that_the_design_names_are_locked(package, version):
    assert pins("cpu.txt")[package] == pins("cuda.txt")[package] == {version}


def test_test_tools_do_not_pull_the_products_packages_apart():
    product, tools = pins("cuda.txt") | pins("image.txt"), pins("dev.txt")
    assert all(tools[name] == product[name] for name in tools.keys() & product.keys())


def test_no_lock_names_a_host():
    assert not any("://" in (REQUIREMENTS / name).read_text() for name in LOCKS)
