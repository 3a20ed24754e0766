"""`train hf`: the Trainer sees the same samples in the same order as `ddp`, and its runs go on as those do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
ROOT = Path(__file__).resolve().parents[2]

SMALL = (
    "--steps",
    "20",
    "--log-every",
    "1",
    "--seq-length",
    "64",
    "--global-batch",
    "8",
    "--warmup",
    "2",
    "--lr",
    "3e-3",
)
PASSES = ("--micro-batch", "2")
SAVING = ("--save-every", "8")


def zero(stage):
    return ("--strategy", "zero", "--zero-stage", str(stage))


def environment(**variables):
    return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "OMP_NUM_THREADS": "1", **variables}


def several(folder, processes, runs):
    """Run them in processes of one launch: importing transformers takes longer than twenty steps."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    program = [str(ROOT / "tests" / "train" / "hf_runs.py"), str(folder), json.dumps(runs)]
    done = subprocess.run([*command, *program], env=environment(), capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(4000)))
    return str(path)


@pytest.fixture(scope="module")
def by_file(tmp_path_factory):
    """stage → options with a file that has an optimizer and a scheduler, as files for scripts with the Trainer do."""
    folder = tmp_path_factory.mktemp("files")
    params = {
        "optimizer": ("lr", "betas", "eps", "weight_decay"),
        "scheduler": ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"),
    }
    types = {"optimizer": "AdamW", "scheduler": "WarmupLR"}
    sections = {name: {"type": types[name], "params": dict.fromkeys(params[name], "auto")} for name in params}
    found = {}
    for stage in (0, 2, 3):
        path = folder / f"{stage}.json"
        path.write_text(json.dumps({"zero_optimization": {"stage": stage}, **sections}))
        found[stage] = ("--strategy", "zero", "--deepspeed-config", str(path))
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text, llama, with_unused, by_file):
    """All the runs that the tests look at, at two processes and then at one; the second launch goes on with some."""
    folder = tmp_path_factory.mktemp("runs")

    def asked(name, *more, **fields):
        return {"name": name, "arguments": [*SMALL, "--data", text, *more], **fields}

    lora = ("--model", str(llama), "--lora-rank", "4")
    unused = ("--model", str(with_unused))
    two = [
        asked("ddp", recipe="ddp"),
        asked("hf", *SAVING),
        asked("hf passes", *PASSES),
        asked("hf, activation checkpointing", "--activation-checkpointing"),
        asked("hf uneven", *PASSES, uneven=True),
        asked("hf uneven, zero 2", *zero(2), *PASSES, uneven=True),
        *(asked(f"zero {stage}", *zero(stage), *PASSES, *SAVING) for stage in (0, 1, 2, 3)),
        *(asked(f"zero {stage} by file", *more, *PASSES) for stage, more in by_file.items()),
        asked("poisoned zero 0 by file", *by_file[0], poisoned_step=5),
        *(asked(f"poisoned {name}", *more, poisoned_step=5) for name, more in POISONED.items()),
        asked("hf", *SAVING, forget="step-20"),
        asked("zero 2", *zero(2), *PASSES, *SAVING, forget="step-20"),
        asked("model ddp", "--model", str(llama), recipe="ddp"),
        asked("model", "--model", str(llama)),
        asked("model, activation checkpointing", "--model", str(llama), "--activation-checkpointing"),
        asked("model zero 3", "--model", str(llama), *zero(3)),
        asked("model bf16", "--model", str(llama), *zero(2), "--precision", "bf16"),
        asked("lora ddp", *lora, recipe="ddp"),
        asked("lora", *lora),
        asked("lora zero 2", *lora, *zero(2)),
        asked("fsdp", "--strategy", "fsdp"),
        *(asked(name, *more, recipe="ddp") for name, more in USED.items()),
        asked("unused ddp", *unused, recipe="ddp"),
        asked("unused hf", *unused),
        asked("looked for, ddp", *unused, *SAVING, LOOK, recipe="ddp"),
        asked("looked for, ddp", *unused, *SAVING, LOOK, recipe="ddp", forget="step-20"),
        asked("looked for, hf", *unused, *PASSES, LOOK),
        asked("unused fsdp", *unused, recipe="fsdp"),
        asked("unused zero", *unused, recipe="zero"),
        asked("looked for, hf zero", *unused, *zero(2), LOOK),
    ]
    one = [
        asked("one process", *PASSES),
        asked("ddp uneven", recipe="ddp", uneven=True),
        asked("one process, zero 2", *zero(2)),
        asked("hf", *SAVING, spoil="step-20"),
        asked("zero 3", *zero(3), *SAVING),
        asked("zero 2", *zero(1), *SAVING),
        asked("ddp"),
    ]
    output = several(folder, 2, two)
    outcomes = {run["name"]: (folder / run["name"] / "outcome").read_text() for run in two}
    output += several(folder, 1, one)
    outcomes |= {f"{run['name']} in one process": (folder / run["name"] / "outcome").read_text() for run in one}
    return folder, outcomes, output


LOOK = "--find-unused-parameters"
USED = {
    "used, activation checkpointing": ("--activation-checkpointing",),
    "used, looked for": (LOOK,),
    "used, looked for, activation checkpointing": (LOOK, "--activation-checkpointing"),
}
POISONED = {"hf": (), "zero 0": zero(0), "zero 2": (*zero(2), *PASSES)}


def records(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run):
    """step → its losses, in the order in which they were trained."""
    found = {}
    for record in records(run):
        found.setdefault(record["step"], []).append(record["loss"])
    return found


def difference(run, other):
    first, second = losses(run), losses(other)
    assert first.keys() == second.keys() == set(range(1, 21))
    return max(abs(first[step][0] - second[step][0]) for step in first)


@pytest.mark.parametrize(
    "name",
    [
        "hf",
        "hf passes",
        "hf, activation checkpointing",
        *(f"zero {stage}" for stage in (0, 1, 2, 3)),
        *(f"zero {stage} by file" for stage in (0, 2, 3)),
        "one process",
        "one process, zero 2",
    ],
)
def test_each_step_has_the_loss_of_ddp(runs, name):
    folder, _, _ = runs
    assert difference(folder / name, folder / "ddp") < 1e-4


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("model", "model ddp"),
        ("model, activation checkpointing", "model ddp"),
        ("model zero 3", "model ddp"),
        ("lora", "lora ddp"),
        ("lora zero 2", "lora ddp"),
    ],
)
def test_each_step_of_a_fine_tune_has_the_loss_of_ddp(runs, name, reference):
    folder, _, _ = runs
    assert difference(folder / name, folder / reference) < 1e-4


@pytest.mark.parametrize("name", ["hf uneven", "hf uneven, zero 2"])
def test_ranks_and_passes_count_by_their_tokens(runs, name):
    """transformers#34191; the reference is one process in one pass."""
    folder, _, _ = runs
    assert difference(folder / name, folder / "ddp uneven") < 1e-4
    assert difference(folder / "ddp uneven", folder / "ddp") > 1e-2


def test_the_log_has_the_fields_and_rates_of_ddp(runs):
    folder, _, _ = runs
    ours, theirs = records(folder / "hf passes"), records(folder / "ddp")
    assert ours[0].keys() == theirs[0].keys()
    assert [record["lr"] for record in ours] == [record["lr"] for record in theirs]


@pytest.mark.parametrize("name", ["hf", "zero 2"])
def test_a_run_goes_on_from_its_newest_checkpoint_with_the_same_losses(runs, name):
    folder, _, _ = runs
    again = losses(folder / name)
    for step in range(17, 21):
        assert again[step][1] == pytest.approx(again[step][0], abs=1e-6)
    assert all(len(again[step]) == 1 for step in range(1, 17))


def test_a_damaged_checkpoint_is_passed_over_and_another_number_of_processes_goes_on(runs):
    folder, _, output = runs
    again = losses(folder / "hf")
    assert "passed over a damaged checkpoint: step-20" in output
    for step in range(17, 21):
        assert again[step][2] == pytest.approx(again[step][0], abs=1e-4)


def test_checkpoints_are_complete_and_only_the_newest_are_kept(runs):
    folder, _, _ = runs
    for name in ("hf", "zero 2"):
        checkpoints = folder / name / "checkpoints"
        assert sorted(path.name for path in checkpoints.iterdir()) == ["step-16", "step-20"]
        for path in checkpoints.iterdir():
            files = json.loads((path / "manifest.json").read_text())["files"]
            assert any("trainer_state.json" in name for name in files)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fsdp", "--strategy fsdp on a CPU: accelerate would train without it"),
        ("zero 3 in one process", "form is Trainer, ZeRO stage 3 over 1 processes now"),
        ("zero 2 in one process", "form is Trainer, ZeRO stage 1 over 1 processes now"),
        ("ddp in one process", "was written with torch.distributed.checkpoint"),
    ],
)
def test_what_would_not_be_what_was_asked_for_is_refused(runs, name, said):
    _, outcomes, _ = runs
    assert said in outcomes[name]


@pytest.mark.parametrize("name", [*POISONED, "zero 0 by file"])
def test_a_step_that_is_not_finite_is_skipped_by_all_ranks_and_counted(runs, name):
    folder, outcomes, _ = runs
    found = records(folder / f"poisoned {name}")
    assert outcomes[f"poisoned {name}"] == "0"
    assert [record["step"] for record in found if record["loss"] is None] == [5]
    assert found[-1]["skipped_steps"] == 1
    assert found[-1]["loss"] < found[3]["loss"]


def tensors(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def test_the_result_loads_with_from_pretrained_and_is_what_was_trained(runs, llama):
    from safetensors.torch import load_file

    folder, _, _ = runs
    result = tensors(folder / "model" / "model")
    trained = load_file(folder / "model" / "checkpoints" / "step-20" / "checkpoint-20" / "model.safetensors")
    assert all(torch.equal(result[name], tensor) for name, tensor in trained.items())
    assert not torch.equal(result["model.norm.weight"], tensors(llama)["model.norm.weight"])


@pytest.mark.parametrize("name", ["model ddp", "model zero 3"])
def test_another_strategy_leaves_the_same_result(runs, name):
    folder, _, _ = runs
    result, other = (tensors(folder / run / "model") for run in ("model", name))
    assert result.keys() == other.keys()
    assert all(torch.allclose(result[key], other[key], atol=1e-4) for key in result)


def test_a_model_that_computed_in_bf16_is_saved_in_fp32(runs):
    folder, _, _ = runs
    result = tensors(folder / "model bf16" / "model")
    assert {tensor.dtype for tensor in result.values()} == {torch.float32}
    weight = result["model.layers.0.mlp.up_proj.weight"]
    assert not torch.equal(weight, weight.bfloat16().float())


@pytest.mark.parametrize("name", ["lora", "lora zero 2"])
def test_lora_leaves_adapters_and_the_base_as_it_was(runs, llama, name):
    from safetensors.torch import load_file

    folder, _, _ = runs
    adapters, expected = (load_file(folder / run / "model" / "adapter_model.safetensors") for run in (name, "lora ddp"))
    assert adapters.keys() == expected.keys()
    assert all("lora_" in key for key in adapters)
    assert all(torch.allclose(adapters[key], expected[key], atol=1e-4) for key in expected)
    base = tensors(llama)
    merged = {key.replace(".base_layer", ""): tensor for key, tensor in tensors(folder / name / "model").items()}
    assert all(torch.equal(merged[key], tensor) for key, tensor in base.items())


# ---- as a user runs it ----


def start(volume, *arguments):
    command = [sys.executable, "-m", "entrypoint", "train", "hf", *map(str, arguments)]
    variables = environment(TRAIN_VOLUME=str(volume))
    return subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_stopped_fine_tune_on_conversations_goes_on_where_it_was(tmp_path, llama):
    chats = [
        [{"role": "user", "content": f"{n} times {n}"}, {"role": "assistant", "content": f"is {n * n}"}]
        for n in range(200)
    ]
    data = tmp_path / "chat.jsonl"
    data.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    arguments = ("--model", llama, "--data", data, "--seq-length", 32, "--steps", 400, "--log-every", 1)
    run = tmp_path / "runs" / "hf"
    process = start(tmp_path, *arguments, "--schedule", "constant")
    wait_for_step(process, run, 10)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    stopped = records(run)[-1]["step"]
    assert (run / "checkpoints" / f"step-{stopped}" / "manifest.json").exists()

    process = start(tmp_path, *arguments, "--schedule", "constant")
    wait_for_step(process, run, stopped + 5)
    (run / "stop").touch()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 143, output
    assert f"going on from {run}/checkpoints/step-{stopped}" in output
    steps = [record["step"] for record in records(run)]
    assert steps == list(range(1, len(steps) + 1))  # none twice, none left out
    assert records(run)[-1]["loss"] < records(run)[0]["loss"]


def wait_for_step(process, run, step):
    deadline = time.monotonic() + 120
    while not (run / "step").exists() or int((run / "step").read_text() or 0) < step:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.05)


@pytest.mark.parametrize("name", USED)
def test_looking_for_unused_weights_where_there_are_none_changes_nothing(runs, name):
    folder, outcomes, _ = runs
    assert outcomes[name] == "0"
    assert difference(folder / name, folder / "ddp") < 1e-4


@pytest.mark.parametrize("name", ["unused ddp", "unused hf"])
def test_weights_without_gradient_are_named_with_the_switch(runs, name):
    folder, outcomes, _ = runs
    assert "16 of the model's weights get no gradient" in outcomes[name]
    assert "crossattention.c_attn.weight" in outcomes[name]
    assert LOOK in outcomes[name]
    assert not (folder / name / "checkpoints").exists() or not any((folder / name / "checkpoints").iterdir())


@pytest.mark.parametrize("name", ["looked for, hf", "unused fsdp", "unused zero"])
def test_with_the_switch_and_where_none_is_needed_such_a_model_trains_alike(runs, name):
    folder, outcomes, _ = runs
    assert outcomes[name] == outcomes["looked for, ddp"] == "0"
    assert difference(folder / name, folder / "looked for, ddp") < 1e-4


def test_such_a_model_resumes_exactly(runs):
    folder, _, _ = runs
    again = {step: values for step, values in losses(folder / "looked for, ddp").items() if len(values) > 1}
    assert again.keys() == {17, 18, 19, 20}
    assert all(first == second for first, second in again.values())


def test_the_switch_is_refused_where_nothing_waits_for_gradients(runs):
    _, outcomes, _ = runs
    assert "--find-unused-parameters with --strategy zero" in outcomes["looked for, hf zero"]
