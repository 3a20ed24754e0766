"""The YAML files for `accelerate launch`: its own loader, and what its loader does not look at."""

import dataclasses
import inspect
from pathlib import Path

import pytest
import yaml

FILES = sorted((Path(__file__).resolve().parents[2] / "templates" / "accelerate").glob("*.yaml"))
NAMES = [path.stem for path in FILES]


def test_there_is_a_file_for_each_strategy():
    assert set(NAMES) == {"ddp", "fsdp2", "zero-0", "zero-1", "zero-2", "zero-3", "cpu"}


@pytest.mark.torch
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_accelerates_own_loader_takes_the_file_and_means_the_same(path):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    expected = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "cpu": "MULTI_CPU"}.get(path.stem, "DEEPSPEED")
    assert config.distributed_type == expected
    assert config.use_cpu == (path.stem == "cpu")


@pytest.mark.torch
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_the_names_below_the_top_are_those_of_accelerates_plugins(path):
    """Its loader passes any name there, so they are compared with what the launcher hands to its plugins."""
    from accelerate.commands.launch import launch_command_parser

    options = {action.dest for action in launch_command_parser()._actions}
    document = yaml.safe_load(path.read_text())
    for section in ("fsdp_config", "deepspeed_config"):
        assert set(document.get(section, {})) <= options


@pytest.mark.torch
def test_the_launcher_reads_the_values_of_the_files_into_its_arguments():
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    def read(name: str):
        path = str(next(path for path in FILES if path.stem == name))
        words = ["--config_file", path, "--num_processes", "16", "--num_machines", "2", "--machine_rank", "1"]
        words += ["--main_process_ip", "10.0.0.1", "--main_process_port", "29500"]
        args, _, _ = _validate_launch_command(launch_command_parser().parse_args([*words, "x.py"]))
        return args

    fsdp = read("fsdp2")
    assert (fsdp.use_fsdp, str(fsdp.fsdp_version)) == (True, "2")
    assert str(fsdp.fsdp_state_dict_type) == "SHARDED_STATE_DICT"
    for stage in range(4):
        zero = read(f"zero-{stage}")
        assert (zero.use_deepspeed, int(zero.zero_stage), zero.num_processes) == (True, stage, 16)


@pytest.mark.torch
def test_the_deepspeed_plugin_has_the_stage_of_the_file():
    from accelerate.utils import DeepSpeedPlugin

    names = {field.name for field in dataclasses.fields(DeepSpeedPlugin)}
    assert {"zero_stage", "gradient_clipping", "gradient_accumulation_steps", "zero3_init_flag"} <= names
    assert "zero3_save_16bit_model" in inspect.signature(DeepSpeedPlugin).parameters
