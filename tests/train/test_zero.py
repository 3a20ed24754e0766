"""`train zero` as a user runs it: the losses of ddp, exact resumes, clean logs, and refusals instead of tracebacks."""

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from ranks import on_ranks

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("deepspeed is not installed", allow_module_level=True)
import process_group  # noqa: E402
import zero  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SEVERAL_RUNS = Path(__file__).with_name("several_runs.py")
# With a constant rate the first steps of a long run are those of a short one.
SMALL = ("--log-every", "1", "--seq-length", "64", "--global-batch", "6", "--warmup", "2", "--schedule", "constant")


def start(volume, what, *arguments, **variables):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(volume),
        "TRAIN_VOLUME": str(volume),
        "TRAIN_NPROC": "2",
        "TRAIN_PRIMARY": f"127.0.0.1:{free_port()}",  # other tests may be starting runs at this moment
        "PYTHONPATH": str(ROOT / "train"),
        **variables,
    }
    command = [sys.executable, "-m", "entrypoint", "train", what, *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def train(volume, what, *arguments, code=0, **variables):
    process = start(volume, what, *arguments, **variables)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == code, output
    return output


def train_several(volume, runs, **variables):
    """The folder of several runs, each given as what `several_runs.Asked` has."""
    train(volume, str(SEVERAL_RUNS), json.dumps(runs), **variables)
    return volume / "runs" / "several_runs"


def losses(run):
    """step → loss of a run's records; a step that was trained twice must have given the same loss."""
    found: dict[int, float | None] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert found.setdefault(record["step"], record["loss"]) == record["loss"]
    return found


def largest_difference(found, expected, steps):
    return max(abs(found[step] - expected[step]) for step in steps)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(4000)))
    return str(path)


@pytest.fixture(scope="module")
def own_config(tmp_path_factory):
    """A stage 3 that gathers every weight when it is used: by default it leaves small ones where they are."""
    path = tmp_path_factory.mktemp("config") / "mine.json"
    path.write_text(
        json.dumps(
            {
                "train_batch_size": "auto",
                "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
                "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
            }
        )
    )
    return str(path)


# ---- the same losses as ddp ----

STRATEGIES = {
    "stage 0": ("--zero-stage", "0"),
    "stage 1": ("--zero-stage", "1"),
    "stage 2": ("--zero-stage", "2"),
    "stage 3": ("--zero-stage", "3"),
}
ACCUMULATION = {"one pass": (), "accumulated": ("--micro-batch", "1")}
SHARED_OUT = [*product(STRATEGIES, ACCUMULATION)]


TWENTY = range(1, 21)
POISONED = 6


@pytest.fixture(scope="module")
def one(tmp_path_factory, text):
    """Folder of runs on one process, ddp among them."""
    plain = [*SMALL, "--data", text]
    runs = {
        "ddp": {"recipe": "ddp", "arguments": [*plain, "--steps", "20"]},
        "ddp, uneven": {"recipe": "ddp", "arguments": [*plain, "--steps", "8"], "uneven": True},
    }
    for strategy, passes in SHARED_OUT:
        arguments = [*plain, "--steps", "20", *STRATEGIES[strategy], *ACCUMULATION[passes]]
        runs[f"{strategy}, {passes}"] = {"recipe": "zero", "arguments": arguments}
    return train_several(tmp_path_factory.mktemp("one"), runs, TRAIN_NPROC="1")


@pytest.fixture(scope="module")
def two(tmp_path_factory, text, own_config):
    """Folder of runs on two processes: as on one, poisoned, in bf16, and with a configuration of the user's own."""
    plain = [*SMALL, "--data", text]
    runs = {}
    for strategy, options in [*STRATEGIES.items(), ("own config", ("--deepspeed-config", own_config))]:
        for passes, micro in ACCUMULATION.items():
            arguments = [*plain, "--steps", "40" if passes == "accumulated" else "20", *options, *micro]
            runs[f"{strategy}, {passes}"] = {"recipe": "zero", "arguments": arguments}
        poisoned = {"recipe": "zero", "arguments": [*plain, "--steps", "8", *options, "--micro-batch", "1"]}
        runs[f"{strategy}, poisoned"] = poisoned | {"uneven": True, "poisoned_step": POISONED}
    for strategy, options in reversed(STRATEGIES.items()):
        arguments = [*plain, "--steps", "8", *options, "--precision", "bf16"]
        runs[f"{strategy}, bf16"] = {"recipe": "zero", "arguments": arguments}
    return train_several(tmp_path_factory.mktemp("two"), runs)


@pytest.mark.parametrize(("strategy", "passes"), SHARED_OUT)
def test_one_process_has_the_losses_of_a_plain_one(one, strategy, passes):
    assert largest_difference(losses(one / f"{strategy}, {passes}"), losses(one / "ddp"), TWENTY) < 1e-4


@pytest.mark.parametrize(("strategy", "passes"), [*SHARED_OUT, *product(["own config"], ACCUMULATION)])
def test_two_processes_have_the_losses_of_a_plain_one(one, two, strategy, passes):
    assert largest_difference(losses(two / f"{strategy}, {passes}"), losses(one / "ddp"), TWENTY) < 1e-4


@pytest.mark.parametrize("strategy", [*STRATEGIES, "own config"])
def test_the_rate_of_a_step_is_that_of_a_plain_process(one, two, strategy):
    found, expected = (
        [json.loads(line)["lr"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        for run in (two / f"{strategy}, one pass", one / "ddp")
    )
    assert found == expected
    assert found[0] < found[1] == found[19]  # two steps of warm-up


@pytest.mark.parametrize("strategy", [*STRATEGIES, "own config"])
def test_ranks_and_passes_count_by_their_tokens(one, two, strategy):
    found, expected = losses(two / f"{strategy}, poisoned"), losses(one / "ddp, uneven")
    assert largest_difference(found, expected, range(1, POISONED)) < 1e-4


@pytest.mark.parametrize("strategy", [*STRATEGIES, "own config"])
def test_a_step_whose_gradient_is_not_finite_is_skipped_by_all_and_leaves_no_trace(two, strategy):
    run = two / f"{strategy}, poisoned"  # several_runs.py compares weights and moments before and after each step
    found = losses(run)
    assert [step for step, loss in found.items() if loss is None] == [POISONED]
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["skipped_steps"] == 1
    assert largest_difference(found, losses(two / "stage 0, poisoned"), (7, 8)) < 1e-4


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bf16_learns_as_fp32_does(one, two, strategy):
    assert 0 < largest_difference(losses(two / f"{strategy}, bf16"), losses(one / "ddp"), range(1, 9)) < 0.05


# ---- the whole state of a model whose weights are shared out ----


class Odd(torch.nn.Module):
    """A head that is the embedding, a frozen layer, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.frozen, self.norm = torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.norm(self.frozen(self.embed(tokens))))


def whole_states(_):
    import deepspeed
    import deepspeed_setup
    import torch.distributed as dist
    from optimizer import make_optimizer
    from options import Options

    rank = dist.get_rank()
    process = process_group.Process(rank, rank, dist.get_world_size(), torch.device("cpu"))
    for stage in (1, 2, 3):
        torch.manual_seed(0)
        model = Odd()
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        deepspeed_setup.load(process)
        config = {"train_batch_size": 8, "zero_optimization": {"stage": stage}}
        engine, *_ = deepspeed.initialize(model=model, optimizer=make_optimizer(model, Options()), config=config)
        for _step in range(3):
            tokens = torch.randint(50, (4,))
            engine.backward(torch.nn.functional.cross_entropy(engine(tokens), tokens))
            engine.step()
        state = deepspeed_setup.whole_state(model, keep=rank == 0)
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
            live = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        engine.destroy()
        assert rank == 0 or not state
        if rank == 0:
            assert state.keys() == live.keys() == before.keys()
            assert all(torch.equal(state[name], live[name]) for name in live), stage
            assert torch.equal(state["frozen.weight"], before["frozen.weight"])
            assert torch.equal(state["head.weight"], state["embed.weight"])
            assert not torch.equal(state["embed.weight"], before["embed.weight"])
            assert state["norm.num_batches_tracked"] == 3
            torch.nn.Module.load_state_dict(Odd(), state, strict=True)


def test_the_whole_state_is_the_live_models_bit_for_bit(tmp_path):
    """DeepSpeed#1896, #3033"""
    on_ranks(2, whole_states, tmp_path)


# ---- one run from start to end, and what may go on from it ----


@pytest.fixture(scope="module")
def finished(tmp_path_factory, text):
    """A volume with a finished run of 30 steps at stage 3 on 2 processes, and what was on the screen."""
    volume = tmp_path_factory.mktemp("finished")
    output = train(volume, "zero", "--steps", "30", *SMALL, "--data", text, "--zero-stage", "3", "--save-every", "10")
    return volume, output


def test_a_run_ends_well_with_nothing_of_deepspeed_in_its_logs(finished):
    volume, _ = finished
    run = volume / "runs" / "zero"
    assert json.loads((run / "exit.json").read_text())["exit_code"] == 0
    assert json.loads((run / "summary.json").read_text())["validation_loss"] > 0
    assert (run / "logs" / "attempt-0" / "n0r1.log").read_text() == ""
    log, _, sample = (run / "logs" / "attempt-0" / "n0r0.log").read_text().partition("a sample:\n")
    assert sample.startswith("def ")
    ours = ("model ", "data ", "ZeRO stage 3", "step ", "saved ", "validation loss ")
    assert [line for line in log.splitlines() if not line.startswith(ours)] == []
    wait_until_gone(run)


def test_a_checkpoint_is_complete_with_the_share_of_each_rank(finished):
    folder = finished[0] / "runs" / "zero" / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["step-20", "step-30"]
    manifest = json.loads((folder / "step-30" / "manifest.json").read_text())
    shares = [name for name in manifest["files"] if name.endswith("_optim_states.pt")]
    assert len(shares) == manifest["world_size"] == 2
    assert {"latest", "zero.json"} <= manifest["files"].keys()


@pytest.mark.parametrize(
    ("changed", "variables", "named"),
    [
        ((), {"TRAIN_NPROC": "1"}, "was written with world_size 2; this start has world_size 1"),
        ((), {"TRAIN_NPROC": "3"}, "was written with world_size 2; this start has world_size 3"),
        (("--zero-stage", "2"), {}, "was written with zero_stage 3; this start has zero_stage 2"),
        (("--precision", "bf16"), {}, "was written with bf16 False; this start has bf16 True"),
    ],
)
def test_what_deepspeed_cannot_read_is_refused_before_a_model_is_built(finished, text, changed, variables, named):
    volume, _ = finished
    arguments = ("--steps", "30", *SMALL, "--data", text, "--zero-stage", "3", *changed)
    output = train(volume, "zero", *arguments, code=78, **variables)
    assert named in output
    assert "TRAIN_RUN" in output
    assert "Traceback" not in output
    assert "model tiny" not in output


def test_a_damaged_share_is_named_and_the_checkpoint_before_is_used(finished, text, tmp_path):
    volume, _ = finished
    shutil.copytree(volume / "runs", tmp_path / "runs")
    run = tmp_path / "runs" / "zero"
    share = next((run / "checkpoints" / "step-30").rglob("zero_pp_rank_1_*_optim_states.pt"))
    os.truncate(share, 1000)
    output = train(tmp_path, "zero", "--steps", "30", *SMALL, "--data", text, "--zero-stage", "3")
    assert f"passed over a damaged checkpoint: step-30: state/{share.name} has 1000 bytes" in output
    assert "step-20" in output
    assert losses(run) == losses(volume / "runs" / "zero")


def test_a_checkpoint_of_another_recipe_is_refused_by_name(one, tmp_path, text):
    shutil.copytree(one / "ddp" / "checkpoints", tmp_path / "runs" / "mine" / "checkpoints")
    output = train(tmp_path, "zero", "--steps", "30", *SMALL, "--data", text, TRAIN_RUN="mine", code=78)
    assert "step-20 was not written by zero" in output
    assert "Traceback" not in output


def test_at_stage_0_nothing_is_bound_to_the_number_of_processes(one, two, tmp_path, text):
    shutil.copytree(two / "stage 0, one pass", tmp_path / "runs" / "zero")
    arguments = ("--steps", "25", *SMALL, "--data", text, "--zero-stage", "0")
    assert "going on from" in train(tmp_path, "zero", *arguments, TRAIN_NPROC="1")
    expected = losses(two / "stage 0, accumulated")
    assert largest_difference(losses(tmp_path / "runs" / "zero"), expected, range(1, 26)) < 1e-4


def stop_by_signal(process, run):
    process.send_signal(signal.SIGTERM)


def stop_by_file(process, run):
    (run / "stop").touch()


@pytest.mark.parametrize(("stop", "stage"), [(stop_by_signal, "3"), (stop_by_file, "1")])
def test_a_stopped_run_goes_on_where_it_was_with_the_same_losses(two, tmp_path, text, stop, stage):
    arguments = ("--steps", "40", *SMALL, "--data", text, "--zero-stage", stage, "--micro-batch", "1")
    run = tmp_path / "runs" / "zero"
    process = start(tmp_path, "zero", *arguments)
    wait_for_step(run, 5)
    stop(process, run)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert len(losses(run)) < 40
    assert "going on from" in train(tmp_path, "zero", *arguments)
    assert losses(run) == losses(two / f"stage {stage}, accumulated")


# From its second save on rank 1 may write no file beyond 64 kB: the kernel ends its writes, as on a full volume.
FULL_FOR_ONE = """
import importlib, os, resource, sys
sys.path.insert(0, sys.argv.pop(1))
import main, options, run
recipe, full = sys.argv.pop(1), sys.argv.pop(1) == "full"
save = run.Run.save

def limited(self, step, write):
    if full and self.process.rank == 1 and step == 4:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))
    save(self, step, write)

run.Run.save = limited
run.Run.report = lambda *_: None  # a text of 240 bytes takes longer than the run
main.main(recipe, importlib.import_module(recipe).train, options.KINDS[recipe])
"""


@pytest.mark.parametrize("recipe", [("zero", "--zero-stage", "3"), ("zero",), ("hf", "--strategy", "zero")])
def test_a_write_that_fails_on_one_rank_is_told_at_once_and_the_checkpoint_before_stays(tmp_path, text, recipe):
    (tmp_path / "script.py").write_text(FULL_FOR_ONE)
    checkpoints = tmp_path / "checkpoints"
    script = (tmp_path / "script.py", Path(zero.__file__).parent, recipe[0])
    arguments = [*recipe[1:], *SMALL, "--data", text, "--steps", "6", "--save-every", "2"]

    done = torchrun(tmp_path, *script, "full", *arguments)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert errors[0].startswith("error: rank 1: "), done.stderr
    assert "step-4.partial" in errors[0]
    assert "\n  fix: " in done.stderr
    assert done.stderr.count("Traceback") == 1  # torchrun's own
    assert "exitcode  : 1 " in done.stderr
    assert "step 5/6" not in done.stdout
    assert [path.parent.name for path in checkpoints.glob("*/manifest.json")] == ["step-2"]

    again = torchrun(tmp_path, *script, "not full", *arguments)
    assert again.returncode == 0, again.stderr
    assert f"going on from {checkpoints / 'step-2'}" in again.stdout
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-4", "step-6"]


def torchrun(folder, *words):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *words]
    environment = os.environ | {"TRAIN_RUN_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)


# ---- refusals, and single processes ----


@pytest.mark.parametrize(
    "words",
    [
        ("-c", "import deepspeed"),
        ("-c", "from deepspeed.env_report import main; main()"),  # ds_report
        *((str(ROOT / "train" / f"{recipe}.py"), "--help") for recipe in ("ddp", "fsdp", "zero", "hf")),
    ],
    ids=lambda words: words[-2].rpartition("/")[-1] + words[-1],
)
def test_without_nvcc_and_cuda_home_nothing_breaks(tmp_path, words):
    """DeepSpeed#2772"""
    (tmp_path / "bin").mkdir()
    environment = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def alone(folder, *arguments, recipe="zero", path=None):
    """A recipe by plain python."""
    environment = {
        "PATH": path or os.environ["PATH"],
        "HOME": str(folder),
        "TRAIN_RUN_DIR": str(folder / "run"),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(ROOT / "train" / f"{recipe}.py"), "--steps", "3", *SMALL, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


def test_it_runs_by_plain_python(tmp_path, text):
    code, output, errors = alone(tmp_path, "--data", text)
    assert (code, errors) == (0, "")
    assert "ZeRO stage 2" in output


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ({"zero_optimization": {"stage": 2, "overlap_com": True}}, "did you mean zero_optimization.overlap_comm?"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "many"}}, "reduce_bucket_size: Input should be"),
        ({"train_batch_size": 8}, "train_batch_size is 8 in"),
    ],
)
def test_a_wrong_configuration_is_one_line_and_a_fix(tmp_path, text, content, quoted):
    (tmp_path / "mine.json").write_text(json.dumps(content))
    code, _, errors = alone(tmp_path, "--data", text, "--deepspeed-config", str(tmp_path / "mine.json"))
    assert code == 78
    assert quoted in errors
    assert "fix:" in errors
    assert "Traceback" not in errors


def cpu_adam_is_prebuilt():
    adam = Path(importlib.util.find_spec("deepspeed").origin).parent / "ops" / "adam"
    return any(adam.glob("cpu_adam_op*"))


OFFLOADS = {  # DeepSpeed#2503 for the second
    "cpu_adam": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "async_io": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/nvme"}},
}


@pytest.mark.parametrize("recipe", [("zero",), ("hf", "--strategy", "zero")], ids=["zero", "hf"])
@pytest.mark.parametrize(
    ("op", "tools", "missing"),
    [
        ("cpu_adam", (), "no c++ and no ninja"),
        ("async_io", (), "no c++ and no ninja"),
        ("async_io", ("c++", "ninja"), "no libaio with its headers"),  # nor the gcc that would look for it
    ],
)
def test_offload_without_its_op_and_without_a_compiler_is_refused_by_name(tmp_path, text, recipe, op, tools, missing):
    if op == "cpu_adam" and cpu_adam_is_prebuilt():
        pytest.skip("DeepSpeed's op cpu_adam is prebuilt here")
    (tmp_path / "bin").mkdir()
    for tool in tools:
        (tmp_path / "bin" / tool).symlink_to("/bin/false")
    (tmp_path / "mine.json").write_text(json.dumps({"zero_optimization": OFFLOADS[op]}))
    asked = ("--data", text, "--deepspeed-config", str(tmp_path / "mine.json"))
    code, _, errors = alone(tmp_path, *recipe[1:], *asked, recipe=recipe[0], path=str(tmp_path / "bin"))
    assert code == 78
    assert op in errors
    assert missing in errors
    assert "fix:" in errors
    assert "Traceback" not in errors


@pytest.mark.skipif(
    not cpu_adam_is_prebuilt(), reason="DeepSpeed's op cpu_adam is not prebuilt here: minutes to compile"
)
@pytest.mark.parametrize("stage", ["2", "3"])
def test_offload_trains_as_ddp_does(one, tmp_path, text, stage):
    train(tmp_path, "zero", "--steps", "20", *SMALL, "--data", text, "--zero-stage", stage, "--offload")
    assert largest_difference(losses(tmp_path / "runs" / "zero"), losses(one / "ddp"), TWENTY) < 1e-4


@pytest.mark.parametrize(("stage", "world_size"), [(1, 1), (2, 2)])
def test_another_strategy_than_the_one_asked_for_is_an_error(stage, world_size):
    engine = SimpleNamespace(zero_optimization_stage=lambda: stage, data_parallel_group=None)
    process_group.start({})
    try:
        with pytest.raises(RuntimeError, match=f"got ZeRO stage {stage} over 1"):
            zero.assert_in_force(engine, {"zero_stage": 2, "world_size": world_size})
    finally:
        process_group.stop()


def wait_for_step(run, step):
    deadline = time.monotonic() + 120
    while not (run / "step").exists() or int((run / "step").read_text() or 0) < step:
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)


def wait_until_gone(run):
    deadline = time.monotonic() + 20
    while any(str(run) in environment_of(pid) for pid in os.listdir("/proc") if pid.isdigit()):
        assert time.monotonic() < deadline, "a process of the run is left"
        time.sleep(0.1)


def environment_of(pid):
    try:
        return Path("/proc", pid, "environ").read_bytes().decode(errors="replace")
    except OSError:
        return ""
