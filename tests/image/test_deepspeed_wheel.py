"""DeepSpeed's prebuilt ops: how they are compiled, and that the wheel in dist/ holds what it says.

`make wheel` builds that wheel; without it the tests marked `image` are left out.
"""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from leave_out import leave_out

ROOT = Path(__file__).resolve().parents[2]
IMAGE = ROOT / "image"
SCRIPT = IMAGE / "deepspeed_wheel.sh"


def script(name):
    spec = importlib.util.spec_from_file_location(name, IMAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


deepspeed_ops, table = script("deepspeed_ops"), script("table")


def run(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)


# ---- what is said to the compilers ----


def macros(*arguments):
    """What the compiler defines: the processor that it compiles for, and our -D."""
    done = run(IMAGE / "cxx.sh", *arguments, "-dM", "-E", "-x", "c++", os.devnull, check=True)
    return {line.split()[1] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("simd", ["-D__AVX512__", "-D__AVX256__", "-D__SCALAR__"])
def test_whatever_processor_compiles_the_ops_are_for_x86_64_v3(simd):
    defined = macros("-march=native", simd)
    assert defined >= {"__AVX2__", "__FMA__", "__F16C__", "__BMI2__", "__AVX256__"}
    assert not {name for name in defined if name.startswith(("__AVX512", "__SCALAR"))}


def test_other_arguments_of_the_compiler_stay_as_they_are():
    assert {"A", "B"} <= macros("-DA=b c", "-DB", "-O2")
    assert "__AVX2__" not in macros("-O2")


def test_nvcc_is_given_nothing_that_differs_from_build_to_build(tmp_path):
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    nvcc.chmod(0o755)
    given = ["-O3", "-lineinfo", "-DA=b c", "-c", "csrc/adam/one.cu", "-o", "one.o"]
    done = run(IMAGE / "nvcc.sh", *given, env={**os.environ, "CUDA_HOME": str(tmp_path)}, check=True)
    kept = [argument for argument in given if argument != "-lineinfo"]
    assert done.stdout.splitlines() == [*kept, "--frandom-seed=csrc/adam/one.cu", "-objtemp"]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Shared libraries with one instruction each, by that instruction."""
    folder = tmp_path_factory.mktemp("libraries")

    def assemble(instruction):
        path = folder / f"{len(list(folder.iterdir()))}.so"
        command = ["gcc", "-shared", "-nostdlib", "-x", "assembler", "-", "-o", str(path)]
        subprocess.run(command, input=f"{instruction}\n", text=True, check=True)
        return path

    return assemble


@pytest.mark.parametrize(
    ("instruction", "count"),
    [
        ("vaddps %zmm1, %zmm2, %zmm3", 1),
        ("vaddps %ymm1, %ymm2, %ymm3", 0),
        ("vaddps %ymm1, %ymm2, %ymm31", 1),  # the upper sixteen are AVX-512 too
        ("vpaddd %xmm16, %xmm2, %xmm3", 1),
        ("vaddps %ymm15, %ymm9, %ymm1", 0),
        ("kmovw %k1, %eax", 1),
        ("vaddps %ymm1, %ymm2, %ymm3{%k1}", 1),
        ("fmadd: vfmadd231ps %ymm1, %ymm2, %ymm3", 0),
    ],
)
def test_avx512_is_told_by_its_registers(libraries, instruction, count):
    assert deepspeed_ops.avx512_instructions(libraries(instruction)) == count


# ---- the reductions of SHM_COMM, which are ours ----


@pytest.fixture(scope="module")
def conversions(tmp_path_factory):
    """shm_avx2.h as a library: 16 floats to 16 numbers of 16 bits, and back."""
    path = tmp_path_factory.mktemp("shm") / "conversions.so"
    source = f'#include <stddef.h>\n#include "{IMAGE}/shm_avx2.h"\n' + "".join(
        f"""extern "C" void {name}_narrow(char* to, float* x)
        {{ VSTORE_U8(to, floats_to_{name}({{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}})); }}
        extern "C" void {name}_widen(float* to, char* x)
        {{ auto wide = {name}_to_floats(VLOAD_U8(x));
           _mm256_storeu_ps(to, wide.low); _mm256_storeu_ps(to + 8, wide.high); }}
        """
        for name in ("bf16", "fp16")
    )
    command = [str(IMAGE / "cxx.sh"), "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return ctypes.CDLL(str(path))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_every_half_precision_number_becomes_the_float_that_torch_makes_of_it(conversions, name):
    torch = pytest.importorskip("torch")
    half = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    found = torch.empty(1 << 16)
    for i in range(0, 1 << 16, 16):
        conversions[f"{name}_widen"](ctypes.c_void_p(found[i:].data_ptr()), ctypes.c_void_p(half[i:].data_ptr()))
    expected = half.view({"bf16": torch.bfloat16, "fp16": torch.float16}[name]).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_floats_are_rounded_as_torch_rounds_them(conversions, name):
    torch = pytest.importorskip("torch")
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    torch.manual_seed(0)
    special = torch.tensor([0.0, -0.0, 1e-40, -1e-40, 65504.0, 65520.0, 3.4e38, torch.inf, -torch.inf, torch.nan])
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7F8000], dtype=torch.int32)
    ties = torch.cat([ties.view(torch.float32), torch.arange(2049.0, 2065.0)])  # halfway between two of fp16
    floats = torch.cat([special, ties, torch.randn(4097) * torch.logspace(-8, 8, 4097)])
    floats = floats[: len(floats) // 16 * 16].contiguous()
    found = torch.empty(len(floats), dtype=torch.int16)
    for i in range(0, len(floats), 16):
        conversions[f"{name}_narrow"](ctypes.c_void_p(found[i:].data_ptr()), ctypes.c_void_p(floats[i:].data_ptr()))
    # As bits, so that -0.0 and 0.0 differ; which of its NaNs torch makes is its own business.
    expected = floats.to(kind)
    number = ~expected.isnan()
    assert torch.equal(found[number], expected.view(torch.int16)[number])
    assert found.view(kind)[~number].isnan().all()


# ---- what is refused ----


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        ([], "no variant ''"),
        (["rocm", "out"], "no variant 'rocm'"),
        (["cpu"], "no folder for the wheel is given"),
    ],
)
def test_a_wrong_call_of_the_script_is_one_line_and_a_fix(arguments, quoted, tmp_path):
    done = run(SCRIPT, *arguments, cwd=tmp_path)
    assert done.returncode == 1
    first, fix = done.stderr.splitlines()
    assert quoted in first
    assert fix.startswith("fix: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_cuda_ops_are_not_built_with_a_torch_for_cpus(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        pytest.skip("torch is a CUDA build here")
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "BUILD_DIR": str(tmp_path / "build")}
    done = run(SCRIPT, "cuda", tmp_path / "out", env=environment)
    assert done.returncode == 1
    assert "is a CPU build" in done.stderr
    assert not (tmp_path / "build").exists()


def make_wheel(path, library, *, torch_release, installed):
    info = {"version": torch_release, "cuda_version": "0.0"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(library, "deepspeed/ops/adam/cpu_adam_op.so")
        archive.writestr("deepspeed/git_version_info_installed.py", f"installed_ops={installed}\ntorch_info={info}\n")
    return path


@pytest.mark.torch
@pytest.mark.parametrize(
    ("instruction", "changed", "problem"),
    [
        ("vaddps %ymm1, %ymm2, %ymm3", {}, None),
        ("vaddps %zmm1, %zmm2, %zmm3", {}, "cpu_adam_op.so wants AVX-512"),
        ("ret", {"torch_release": "2.1"}, "the ops are for version 2.1"),
        ("ret", {"installed": {"cpu_adam": False}}, "the wheel says []"),
        ("ret", {"installed": {"cpu_adam": 1, "cpu_lion": 1}}, "the wheel says ['cpu_adam', 'cpu_lion']"),
        ("ret", {"ops": ["CPU_ADAM", "CPU_LION"]}, "2 ops were asked for (CPU_ADAM CPU_LION) and 1 built"),
    ],
)
def test_a_wheel_that_is_not_what_was_asked_for_is_refused(libraries, tmp_path, instruction, changed, problem):
    torch = pytest.importorskip("torch")
    if torch.version.cuda:
        pytest.skip("torch is a CUDA build here")
    right = {"torch_release": ".".join(torch.__version__.split(".")[:2]), "installed": {"cpu_adam": 1, "cpu_lion": 0}}
    ops = changed.pop("ops", ["CPU_ADAM"])
    wheel = make_wheel(tmp_path / "a.whl", libraries(instruction), **right | changed)
    found = deepspeed_ops.check_wheel(wheel, ops)
    assert (len(found) == 0) if problem is None else any(each.startswith(problem) for each in found), found


# ---- the wheel of `make wheel` ----


@pytest.fixture(scope="module")
def wheel():
    found = sorted((ROOT / "dist").glob("deepspeed-*+cpu*.whl"))
    if not found:
        leave_out("no wheel of DeepSpeed in dist/: make wheel")
    return found[-1]


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """A Python that has the packages of this one, the wheel's DeepSpeed, and no compiler on its PATH."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel, check=True)
    (site / "packages_of_the_tests.pth").write_text("\n".join(each for each in sys.path if "-packages" in each))
    return folder / "bin" / "python"


@pytest.fixture
def bare(python, tmp_path):
    """The environment of a machine without compilers; what is compiled all the same lands in `extensions`."""
    return {
        "PATH": str(python.parent),
        "HOME": str(tmp_path),
        "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions"),
        "DS_ACCELERATOR": "cpu",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'train'}",
    }


def call(python, environment, code):
    done = run(python, "-c", code, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not Path(environment["TORCH_EXTENSIONS_DIR"]).exists()
    return done.stdout


@pytest.mark.image
def test_every_op_loads_at_once_and_nothing_is_compiled(python, bare):
    done = run(python, IMAGE / "deepspeed_ops.py", "load", env=bare)
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = {line.split()[0]: float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("  ")}
    assert seconds.keys() >= {"cpu_adam", "deepspeed_shm_comm", "fused_adam"}
    assert max(seconds.values()) < 3
    assert not (Path(bare["HOME"]) / "extensions").exists()


@pytest.mark.image
def test_the_wheel_holds_no_avx512_and_satisfies_the_lock(wheel, python):
    assert deepspeed_ops.check_wheel(wheel, []) == []
    from packaging.requirements import Requirement
    from packaging.utils import parse_wheel_filename

    lock = (ROOT / "requirements" / "cpu.txt").read_text().splitlines()
    line = next(line for line in lock if line.startswith("deepspeed=="))
    assert parse_wheel_filename(wheel.name)[1] in Requirement(line.rstrip(" \\")).specifier


@pytest.mark.image
def test_the_wheel_for_gpus_holds_no_avx512_and_is_for_the_cuda_of_the_table(capsys):
    found = sorted((ROOT / "dist").glob("deepspeed-*+cu1*.whl"))
    if not found:
        leave_out("no wheel of DeepSpeed for CUDA in dist/: python3.11 image/build.py bake wheel-cuda")
    torch = pytest.importorskip("torch")
    row = next(row for row in table.rows() if row["name"] == "cuda")
    here = ".".join((torch.version.cuda or "0.0").split(".")[:2])
    other = [] if here == row["cuda"] else [f"the ops are for cuda_version {row['cuda']}, and torch here has {here}"]
    assert deepspeed_ops.check_wheel(found[-1], ["FUSED_ADAM", "CPU_ADAM", "UTILS"]) == other
    printed = capsys.readouterr().out
    assert {"fused_adam_op", "cpu_adam_op", "utils_op"} <= {line.split()[0] for line in printed.splitlines()[1:]}


@pytest.mark.image
@pytest.mark.parametrize("builder", ["DeepSpeedCPUAdam", "FusedAdam"])
def test_adam_is_torchs_adamw_over_a_hundred_steps(python, bare, builder):
    code = f"""
import torch
from deepspeed.ops.adam import {builder} as Adam
torch.manual_seed(0)
ours = torch.nn.Parameter(0.02 * torch.randn(100_003))  # as weights begin: at 4.0 the last bit of fp32 is 5e-7
theirs = torch.nn.Parameter(ours.detach().clone())
options = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
pair = Adam([ours], **options), torch.optim.AdamW([theirs], **options)
for step in range(100):
    ours.grad = torch.randn(100_003)
    theirs.grad = ours.grad.clone()
    for optimizer in pair:
        optimizer.step()
print("largest", (ours - theirs).abs().max().item())
"""
    assert float(call(python, bare, code).split()[-1]) < 1e-6


@pytest.mark.image
def test_sums_in_shared_memory_are_those_of_gloo(python, bare, tmp_path):
    (tmp_path / "sums.py").write_text(SUMS)
    launch = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", tmp_path / "sums.py"]
    done = run(*launch, env={**bare, "LOCAL_SIZE": "2", "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal") == 2 * 3 * 3


SUMS = """
import os
import torch
import deepspeed
deepspeed.init_distributed("gloo")
from deepspeed import comm
level = comm.comm.cdb.shm_vector_kernel_level
torch.manual_seed(int(os.environ["RANK"]))
for kind in (torch.float32, torch.bfloat16, torch.float16):
    for count in (5, 1000, 3_000_001):  # less than a vector, one message, several chunks
        mine = torch.randn(count).to(kind)
        expected = mine.float()
        torch.distributed.all_reduce(expected)
        torch.ops.deepspeed.inference_all_reduce_(mine)
        torch.testing.assert_close(mine, expected.to(kind))
        print("equal", level)
"""


@pytest.mark.image
def test_zero_offloads_without_a_compiler(python, bare, tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 4000)
    arguments = [
        "--data",
        tmp_path / "text.txt",
        "--zero-stage",
        "2",
        "--offload",
        "--steps",
        "3",
        "--seq-length",
        "64",
    ]
    environment = {**bare, "TRAIN_VOLUME": str(tmp_path), "TRAIN_NPROC": "2"}
    del environment["DS_ACCELERATOR"]
    done = run(python, "-m", "entrypoint", "train", "zero", *arguments, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    report = [json.loads(line) for line in (tmp_path / "runs" / "zero" / "metrics.jsonl").read_text().splitlines()]
    assert report[-1]["step"] == 3
    assert not (tmp_path / "extensions").exists()


@pytest.mark.image
@pytest.mark.slow
def test_the_tests_of_zero_that_want_the_op_pass_with_it(python, tmp_path):
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    done = run(
        python, "-m", "pytest", "tests/train/test_zero.py", "-k", "test_offload_trains", cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
