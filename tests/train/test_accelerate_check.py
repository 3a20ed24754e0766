"""What Accelerate would ignore in a user's YAML is refused; the tool says it before anything starts."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from accelerate_check import KEYS, check_accelerate
from options import Problem

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "templates" / "accelerate").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_ready_made_files_pass(path):
    check_accelerate(yaml.safe_load(path.read_text()), str(path))


ZERO, FSDP = {"distributed_type": "DEEPSPEED"}, {"distributed_type": "FSDP"}


@pytest.mark.parametrize(
    ("document", "problem", "fix"),
    [
        ({"num_process": 8}, "num_process in", "did you mean num_processes?"),
        ({"num_processes": "eight"}, "num_processes is 'eight'", "whole number"),
        ({**ZERO, "deepspeed_config": {"zero_stages": 3}}, "deepspeed_config.zero_stages", "zero_stage?"),
        ({**FSDP, "fsdp_config": {"fsdp_wrap_policy": "x"}}, "fsdp_config.fsdp_wrap_policy", "fsdp_auto_wrap_policy?"),
        ({**ZERO, "deepspeed_config": {"zero_stage": 2, "offload_param_device": "cpu"}}, "offload_param_device", ""),
        ({**ZERO, "deepspeed_config": {"zero_stage": 3, "offload_param_nvme_path": "/n"}}, "offload_param_nvme", ""),
        ({**FSDP, "fsdp_config": {"fsdp_version": 2, "fsdp_use_orig_params": True}}, "fsdp_use_orig_params", ""),
        ({"distributed_type": "MULTI_GPU", "deepspeed_config": {"zero_stage": 2}}, "deepspeed_config in", ""),
    ],
)
def test_what_would_be_ignored_is_refused(document, problem, fix):
    with pytest.raises(Problem) as caught:
        check_accelerate(document, "mine.yaml")
    assert problem in caught.value.problem
    assert "mine.yaml" in caught.value.problem
    assert fix in caught.value.fix


@pytest.mark.torch
def test_the_names_are_those_of_the_library():
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    assert {field.name for field in dataclasses.fields(ClusterConfig)} == KEYS.keys()
    listed = launch_command_parser()._action_groups
    groups = {group.title: {action.dest for action in group._group_actions} for group in listed}
    assert groups["DeepSpeed Arguments"] == KEYS["deepspeed_config"].keys()
    assert groups["FSDP Arguments"] == KEYS["fsdp_config"].keys()


@pytest.mark.parametrize(
    ("name", "text", "words", "code", "said"),
    [
        (
            "a.json",
            '{"train_batch_size": 64, "zero_optimization": {"stage": 2}}',
            ("--processes", "8"),
            0,
            "nothing wrong",
        ),
        ("a.json", '{"train_batch_size": 64}', ("--processes", "6"), 78, "not a multiple of 6 processes = 6"),
        ("a.json", '{"zero_optimisation": {}}', (), 78, "did you mean zero_optimization?"),
        ("a.json", '{"zero_optimization": {"stage": "auto"}}', ("--for", "zero"), 0, "nothing wrong"),
        ("a.json", "{", (), 78, "no JSON"),
        (
            "a.yaml",
            "distributed_type: FSDP\nfsdp_config: {fsdp_versoin: 2}\n",
            (),
            78,
            "did you mean fsdp_config.fsdp_version?",
        ),
        ("a.yaml", "a: [", (), 78, "no YAML"),
        ("a.yaml", "- a\n", (), 78, "no mapping"),
    ],
)
def test_the_tool_says_it_in_one_line_and_a_fix(tmp_path, name, text, words, code, said):
    (tmp_path / name).write_text(text)
    command = [sys.executable, str(ROOT / "train" / "check_config.py"), str(tmp_path / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == (2 if code else 0)
