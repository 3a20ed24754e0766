"""The recipes agree: same seed, data and global batch give the same losses, whoever computes them and on how many."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import read_tensors

pytestmark = [pytest.mark.torch, pytest.mark.slow]
torch = pytest.importorskip("torch")
DRIVE = Path(__file__).with_name("drive.py")
STEPS = 20
SMALL = ["--steps", str(STEPS), "--log-every", "1", "--seq-length", "64", "--global-batch", "12", "--warmup", "4"]
VARIANTS = {
    "ddp": ("ddp", []),
    "ddp, accumulation": ("ddp", ["--micro-batch", "2"]),
    "ddp, activation checkpointing": ("ddp", ["--activation-checkpointing"]),
    "fsdp full": ("fsdp", []),
    "fsdp full, accumulation": ("fsdp", ["--micro-batch", "2"]),
    "fsdp full, activation checkpointing": ("fsdp", ["--activation-checkpointing"]),
    "fsdp full, both": ("fsdp", ["--micro-batch", "2", "--activation-checkpointing"]),
    "fsdp grad-op": ("fsdp", ["--strategy", "grad-op"]),
    "fsdp grad-op, accumulation": ("fsdp", ["--strategy", "grad-op", "--micro-batch", "2"]),
    "fsdp hybrid": ("fsdp", ["--strategy", "hybrid"]),
    "fsdp hybrid, accumulation": ("fsdp", ["--strategy", "hybrid", "--micro-batch", "2"]),
    "fsdp offload": ("fsdp", ["--offload"]),
}


def drive(folder, processes, jobs, **variables):
    """Run jobs in one start of so many processes."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [*command, str(DRIVE), str(folder / "jobs.json")], env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def losses(run_dir):
    return {record["step"]: record["loss"] for record in records(run_dir)}


def records(run_dir):
    return [json.loads(line) for line in Path(run_dir, "metrics.jsonl").read_text().splitlines()]


def far(found, expected):
    """The largest difference at any step."""
    assert found.keys() == expected.keys()
    return max(abs(found[step] - expected[step]) for step in expected)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("".join(f"{n} times {n} is {n * n}\n" for n in range(4000)))
    return ["--data", str(path)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, data):
    """(variant, processes) → the folder of its run, all of them made in two starts."""
    folder = tmp_path_factory.mktemp("parity")
    found = {}
    for processes in (1, 2):
        names = {name: str(folder / f"{name} x{processes}") for name in VARIANTS}
        jobs = [
            {"recipe": VARIANTS[name][0], "arguments": [*SMALL, *data, *VARIANTS[name][1]], "run_dir": run_dir}
            for name, run_dir in names.items()
        ]
        # Two "nodes" of one process each, so that hybrid replicates over them.
        drive(folder, processes, jobs, LOCAL_WORLD_SIZE="1")
        found |= {(name, processes): run_dir for name, run_dir in names.items()}
    return found


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_recipe_gives_the_losses_of_one_plain_process(trained, variant, processes):
    expected = losses(trained["ddp", 1])
    assert expected[STEPS] < expected[1] - 1  # it learns
    assert far(losses(trained[variant, processes]), expected) < 1e-4


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rate_of_a_step_is_that_of_one_plain_process(trained, variant, processes):
    """accelerate#662"""
    rates, expected = ([each["lr"] for each in records(trained[key])] for key in ((variant, processes), ("ddp", 1)))
    assert rates == expected
    assert rates.index(max(rates)) == 3  # of four steps of warm-up
    assert rates[-1] < rates[3] / 5


HALF = STEPS // 2
WRITERS = [(recipe, processes) for recipe in ("ddp", "fsdp") for processes in (1, 2, 3)]


@pytest.mark.parametrize("processes", [2, 4])
def test_a_stop_that_one_rank_hears_is_the_same_step_for_all(processes, tmp_path, data):
    """l-09: whoever left alone would leave the others in a collective; drive.py wants 143 of each rank."""
    jobs = [
        {"recipe": name, "arguments": [*SMALL, *data], "run_dir": str(tmp_path / name), "stop_at": 3}
        for name in ("ddp", "fsdp", "zero", "hf")
    ]
    drive(tmp_path, processes, jobs)
    for job in jobs:
        assert list(losses(job["run_dir"])) == [1, 2, 3], job["recipe"]
        assert [path.name for path in Path(job["run_dir"], "checkpoints").iterdir()] == ["step-3"], job["recipe"]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, data, trained):
    """(writer, processes, reader, processes) → the losses of the second half."""
    folder = tmp_path_factory.mktemp("resume")
    for processes in (1, 2, 3):
        jobs = [
            {
                "recipe": name,
                "arguments": [*SMALL, *data],
                "run_dir": str(folder / f"{name} x{processes}"),
                "stop_at": HALF,
            }
            for name in ("ddp", "fsdp")
        ]
        drive(folder, processes, jobs)
    found = {}
    for reading in (1, 2, 3):
        jobs = []
        for writer, wrote in WRITERS:
            for reader in ("ddp", "fsdp"):
                run_dir = folder / f"{writer} x{wrote} read by {reader} x{reading}"
                shutil.copytree(folder / f"{writer} x{wrote}", run_dir)
                (run_dir / "metrics.jsonl").unlink()
                jobs.append({"recipe": reader, "arguments": [*SMALL, *data], "run_dir": str(run_dir)})
                found[writer, wrote, reader, reading] = run_dir
        drive(folder, reading, jobs)
    return {key: losses(run_dir) for key, run_dir in found.items()}


@pytest.mark.parametrize("reading", [1, 2, 3])
@pytest.mark.parametrize("reader", ["ddp", "fsdp"])
@pytest.mark.parametrize(("writer", "wrote"), WRITERS)
def test_a_run_goes_on_under_another_recipe_and_another_number_of_processes(
    resumed, trained, writer, wrote, reader, reading
):
    second_half = {step: loss for step, loss in losses(trained["ddp", 1]).items() if step > HALF}
    assert far(resumed[writer, wrote, reader, reading], second_half) < 1e-4


TUNED_BY_ZERO = {
    "zero 1": ("zero", ["--zero-stage", "1"]),
    "zero 3": ("zero", ["--zero-stage", "3"]),
    "zero 2, activation checkpointing": ("zero", ["--zero-stage", "2", "--activation-checkpointing"]),
    "zero 3, activation checkpointing": ("zero", ["--zero-stage", "3", "--activation-checkpointing"]),
    "zero 3, adapters": ("zero", ["--zero-stage", "3", "--lora-rank", "4"]),
}
TUNED = {
    "ddp": ("ddp", []),
    "ddp, adapters": ("ddp", ["--lora-rank", "4"]),
    "fsdp": ("fsdp", []),
    "fsdp, activation checkpointing": ("fsdp", ["--activation-checkpointing"]),
    "fsdp, adapters": ("fsdp", ["--lora-rank", "4"]),
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, llama, data):
    """(variant, processes) → the folder of its run on a model of Hugging Face."""
    folder = tmp_path_factory.mktemp("tuned")
    found = {}
    for processes, variants in ((1, TUNED), (2, TUNED), (2, TUNED_BY_ZERO)):
        names = {name: folder / f"{name} x{processes}" for name in variants}
        jobs = [
            {
                "recipe": variants[name][0],
                "arguments": [*SMALL, *data, "--model", str(llama), "--lr", "3e-3", *variants[name][1]],
                "run_dir": str(run_dir),
                "report": True,
            }
            for name, run_dir in names.items()
        ]
        drive(folder, processes, jobs)
        found |= {(name, processes): run_dir for name, run_dir in names.items()}
    return found


@pytest.mark.parametrize(
    ("variant", "processes"), [*((name, n) for name in TUNED for n in (1, 2)), *((name, 2) for name in TUNED_BY_ZERO)]
)
def test_a_model_of_hugging_face_gives_the_losses_of_one_plain_process(tuned, variant, processes):
    expected = losses(tuned["ddp, adapters" if "adapters" in variant else "ddp", 1])
    assert far(losses(tuned[variant, processes]), expected) < 1e-4


@pytest.mark.parametrize(("variant", "processes"), [("ddp", 2), ("fsdp", 1), ("fsdp", 2), ("zero 1", 2), ("zero 3", 2)])
def test_what_was_tuned_loads_with_from_pretrained_and_is_the_same_model(tuned, variant, processes):
    from transformers import AutoModelForCausalLM

    ours, plain = (
        AutoModelForCausalLM.from_pretrained(tuned[key] / "model") for key in ((variant, processes), ("ddp", 1))
    )
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])
    with torch.no_grad():
        assert (ours(tokens).logits - plain(tokens).logits).abs().max() < 1e-2
    assert ours.lm_head.weight is ours.model.embed_tokens.weight


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory, data):
    """(recipe, how often) → the folder of a run in whose steps from 5 on one rank's loss was no number."""
    folder = tmp_path_factory.mktemp("poisoned")
    found = {(recipe, times): folder / f"{recipe} {times}" for recipe in ("ddp", "fsdp") for times in (1, 10)}
    jobs = [
        {
            "recipe": recipe,
            "arguments": [*SMALL, *data, "--save-every", "2", "--keep", "2"],
            "run_dir": str(run_dir),
            "poison": list(range(5, 5 + times)),
            "ends": "Diverged" if times == 10 else 0,
        }
        for (recipe, times), run_dir in found.items()
    ]
    drive(folder, 2, jobs)
    return found


@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_a_step_whose_gradient_is_no_number_is_skipped_on_all_ranks_and_counted(poisoned, recipe):
    found = {record["step"]: record for record in records(poisoned[recipe, 1])}
    assert found[5]["loss"] is None
    assert found[STEPS]["skipped_steps"] == 1
    assert all(record["loss"] is not None for step, record in found.items() if step != 5)
    assert found[STEPS]["loss"] < found[1]["loss"] - 1


@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_ten_such_steps_in_a_row_end_the_run_and_the_weights_that_were_saved_are_whole(poisoned, recipe):
    assert records(poisoned[recipe, 10])[-1]["step"] == 13  # the tenth, 14, is not logged any more
    kept = sorted(path.name for path in (poisoned[recipe, 10] / "checkpoints").iterdir())
    assert kept == ["step-10", "step-12"]  # of skipped steps: the weights of step 4
    first, second = (read_tensors(poisoned[recipe, 10] / "checkpoints" / name) for name in kept)
    assert len(first) > 100
    assert all(torch.isfinite(tensor).all() for tensor in first.values())
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


# ---- resumes within an epoch, and saves that fail ----


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, data):
    """A run of two epochs of 64 samples that nobody disturbs, and one that is stopped in each."""
    folder = tmp_path_factory.mktemp("epochs")
    small = ["--steps", "32", "--log-every", "1", "--seq-length", "64", "--global-batch", "4", "--warmup", "4", *data]
    stops = [("whole", None), ("stopped", 5), ("stopped", 16), ("stopped", None)]  # after 20 samples of each epoch
    jobs = [
        {"recipe": recipe, "arguments": small, "run_dir": str(folder / recipe / name), "samples": 64, "stop_at": stop}
        for recipe in ("ddp", "fsdp")
        for name, stop in stops
    ]
    drive(folder, 2, jobs)
    return folder


def seen(run_dir):
    """Samples of both ranks, in the order of the steps."""
    ranks = [[line.split() for line in (run_dir / f"seen-{rank}").read_text().splitlines()] for rank in (0, 1)]
    return [[*map(int, first), *map(int, second)] for first, second in zip(*ranks, strict=True)]


@pytest.mark.parametrize("recipe", ["ddp", "fsdp"])
def test_a_run_that_is_stopped_twice_sees_each_sample_of_each_epoch_once(stopped, recipe):
    """accelerate#2016"""
    steps = seen(stopped / recipe / "stopped")
    assert steps == seen(stopped / recipe / "whole")
    for epoch in (steps[:16], steps[16:]):
        assert sorted(index for step in epoch for index in step) == list(range(64))
    assert steps[:16] != steps[16:]
    found = records(stopped / recipe / "stopped")
    assert [record["step"] for record in found] == list(range(1, 33))
    assert far(losses(stopped / recipe / "stopped"), losses(stopped / recipe / "whole")) < 1e-6


def test_a_save_that_fails_deletes_nothing_and_the_last_one_ends_the_run(tmp_path, data):
    """verl#4873, with the smallest --keep."""
    small = ["--steps", "9", "--seq-length", "64", "--global-batch", "4", "--save-every", "3", "--keep", "1", *data]
    jobs = [
        {"recipe": recipe, "arguments": small, "run_dir": str(tmp_path / recipe / name), "full": full, "ends": ends}
        for recipe in ("ddp", "fsdp")
        for name, full, ends in (("once", [6], 0), ("twice", [6, 9], "NotSaved"))
    ]
    said = drive(tmp_path, 2, jobs)
    assert said.count("step 6 was not saved") == 4
    assert said.count("No space left on device") == said.count("training goes on to the next save") == 4
    for recipe in ("ddp", "fsdp"):
        assert [path.name for path in (tmp_path / recipe / "once" / "checkpoints").iterdir()] == ["step-9"]
        (left,) = (tmp_path / recipe / "twice" / "checkpoints").iterdir()
        assert left.name == "step-3"
        assert read_tensors(left)
