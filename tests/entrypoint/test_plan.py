"""The plan as a value: the same input gives the same plan, with a reason for everything."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from entrypoint.capture import replay_facts
from entrypoint.environment import Environment, read_environment
from entrypoint.errors import MachineError, SettingError
from entrypoint.plan import Plan, make_plan
from entrypoint.recipes import choose_recipe
from entrypoint.report import to_json, to_text
from entrypoint.request import read_request

MACHINES = Path(__file__).resolve().parents[1] / "machines"
BASE = Path("/home/someone")
RUNPOD = {
    "PRIMARY_ADDR": "10.65.0.3",
    "PRIMARY_PORT": "29500",
    "MASTER_ADDR": "10.65.0.3",
    "MASTER_PORT": "29500",
    "NODE_ADDR": "10.65.0.2",
    "NODE_RANK": "1",
    "NUM_NODES": "2",
    "NUM_TRAINERS": "8",
    "WORLD_SIZE": "16",
}


def planned(machine: str, variables: dict[str, str] | None = None, script: str | None = "ddp", **options) -> Plan:
    given = variables or {}
    facts = options.pop("facts", None) or replay_facts(MACHINES / machine)
    named = choose_recipe(script, options.pop("arguments", ()), base=BASE) if script else None
    recipe = options.pop("recipe", named)
    return make_plan(read_environment(given), facts, read_request(given), recipe, variables=given, base=BASE, **options)


def test_two_nodes_of_eight_gpus_as_torchrun_would_start_them():
    plan = planned("runpod-cluster", RUNPOD, arguments=("--steps", "5"))
    assert plan.command[:7] == (
        "torchrun",
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=10.65.0.3",
        "--master-port=29500",
        "--nproc-per-node=8",
        "--max-restarts=0",
    )
    assert plan.command[7].endswith("/train/ddp.py")
    assert plan.command[8:] == ("--steps", "5")


def test_the_same_input_gives_the_same_plan():
    assert planned("runpod-cluster", RUNPOD) == planned("runpod-cluster", RUNPOD)


def test_ranks_by_arrival_are_said_and_not_guessed():
    plan = planned("laptop", {"PET_NNODES": "2:4", "PET_RDZV_ENDPOINT": "192.168.1.40:23456"})
    assert plan.cluster.node_rank is None
    assert "the 4 nodes get their ranks by arrival; the primary is node 0" in [found.text for found in plan.findings]


def test_the_json_form_has_the_promised_keys():
    document = json.loads(to_json(planned("runpod-cluster", RUNPOD), {}))
    assert list(document) == [
        *("cluster", "network", "settings", "recipe", "command", "roll_call", "directories", "session"),
        *("setup", "ending", "findings"),
    ]
    assert list(document["cluster"]) == [
        *("provider", "nodes", "node_rank", "processes_per_node", "world_size", "primary_address", "primary_port"),
        *("node_address", "peers", "sources"),
    ]
    assert all(list(setting) == ["name", "value", "reason"] for setting in document["settings"])
    assert all(setting["reason"] for setting in document["settings"])
    assert all(list(finding) == ["level", "text", "fix"] for finding in document["findings"])
    assert document["cluster"]["sources"]["nodes"] == "NUM_NODES"


@pytest.mark.parametrize(
    ("machine", "variables"),
    [("laptop", {}), ("runpod-cluster", RUNPOD), ("gpu-lost", {}), ("driver-without-nvml", {"TRAIN_VOLUME": "/v"})],
)
def test_the_text_form_says_what_will_be_done_and_why(machine, variables):
    plan = planned(machine, variables)
    text = to_text(plan, replay_facts(MACHINES / machine), {})
    for title in ("environment", "facts", "network", "settings", "findings", "directories", "session", "command"):
        assert any(line.startswith(title) for line in text.splitlines())
    assert all(setting.reason in text for setting in plan.settings)
    assert all(finding.text in text for finding in plan.findings)


@pytest.mark.parametrize(
    ("machine", "variables", "threads"),
    [
        ("container-two-cores", {}, "1"),
        ("laptop", {"TRAIN_NPROC": "4"}, "4"),
        ("docker-cgroup-v1", {"TRAIN_NPROC": "1"}, "1"),
        ("container-two-cores", {"OMP_NUM_THREADS": "3"}, None),
    ],
)
def test_threads_follow_the_quota_and_not_the_hosts_cores(machine, variables, threads):
    facts = replay_facts(MACHINES / machine)
    plan = planned(machine, variables, facts=replace(facts, cpus=64 if "container" in machine else 16))
    found = {setting.name: setting.value for setting in plan.settings}
    assert found.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("machine", "variables", "accelerator"),
    [
        ("container-two-cores", {}, "cpu"),
        ("h100-infiniband", {"CUDA_VISIBLE_DEVICES": ""}, "cpu"),
        ("h100-infiniband", {}, None),
        ("driver-without-nvml", {}, None),  # perhaps there are some
        ("container-two-cores", {"DS_ACCELERATOR": "xpu"}, None),  # the user's own wins
    ],
)
def test_deepspeed_need_not_guess_where_no_gpu_is_seen(machine, variables, accelerator):
    found = {setting.name: setting.value for setting in planned(machine, variables).settings}
    assert found.get("DS_ACCELERATOR") == accelerator


def test_without_a_recipe_there_is_nothing_to_run_and_no_run_folder():
    plan = planned("laptop", script=None)
    assert plan.command == ()
    assert plan.directories.run is None


def test_the_volume_is_the_default_or_what_was_asked_for():
    assert planned("laptop").directories.run == Path("/workspace/runs/ddp")
    elsewhere = planned("laptop", {"TRAIN_VOLUME": "data", "TRAIN_RUN": "mine"})
    assert elsewhere.directories.run == BASE / "data" / "runs" / "mine"


def test_the_platforms_own_name_of_the_volume_is_followed_and_told():
    plan = planned("laptop", {"RP_WORKSPACE": "/runpod-volume"})
    assert (plan.directories.volume, plan.directories.reason) == (Path("/runpod-volume"), "RP_WORKSPACE")
    with pytest.raises(MachineError, match=r"/runpod-volume \(RP_WORKSPACE\) does not exist"):
        planned("gpu-lost", {"RP_WORKSPACE": "/runpod-volume"})


@pytest.mark.parametrize(("capabilities", "level"), [(0x1FFFFFFFFFF, None), (0xA80425FB, "stop")])
def test_a_volume_that_is_to_be_mounted_need_not_exist_yet(capabilities, level):
    facts = replace(replay_facts(MACHINES / "gpu-lost"), capabilities=capabilities)
    plan = planned("gpu-lost", {"TRAIN_MOUNT": "nfs://nas/vol", "CUDA_VISIBLE_DEVICES": "0"}, facts=facts)
    assert plan.directories.volume == Path("/workspace")
    assert [finding.level for finding in plan.findings if "TRAIN_MOUNT" in finding.text] == ([level] if level else [])


def test_only_a_checkout_on_one_node_may_do_without_the_volume():
    assert planned("gpu-lost").directories.volume == BASE / "workspace"
    with pytest.raises(MachineError, match="/workspace does not exist"):
        planned("gpu-lost", in_image=True)
    with pytest.raises(MachineError, match="/workspace does not answer"):
        planned("nfs-server-gone")
    two = {"NUM_NODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "10.2.0.5", "TRAIN_NPROC": "1"}
    with pytest.raises(MachineError, match="/workspace does not exist"):
        planned("gpu-lost", two)


@pytest.mark.parametrize(("exists", "said"), [(False, True), (True, False), (None, False)])
def test_a_volume_that_is_not_there_is_told_before_it_becomes_a_folder(exists, said):
    facts = replay_facts(MACHINES / "laptop")
    facts = replace(facts, volume=replace(facts.volume, exists=exists))
    texts = [finding.text for finding in planned("laptop", {"TRAIN_VOLUME": "/mnt/shred"}, facts=facts).findings]
    assert any("TRAIN_VOLUME=/mnt/shred does not exist here" in text for text in texts) == said


@pytest.mark.parametrize(
    ("machine", "variables", "level", "text"),
    [
        ("driver-without-nvml", {"TRAIN_VOLUME": "/v"}, "warn", "NVML does not answer"),
        ("runpod-cluster", {**RUNPOD, "CUDA_VISIBLE_DEVICES": ""}, "warn", "hides all 8 GPUs"),
        (
            "laptop",
            {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_GPUS_PER_NODE": "8"},
            "warn",
            "SKYPILOT_NUM_GPUS_PER_NODE counts GPUs and none is seen: 8 processes a node train on the CPU",
        ),
        (
            "runpod-cluster",
            {**RUNPOD, "MASTER_ADDR": "10.65.0.9", "TRAIN_PRIMARY": "10.65.0.3:29500"},
            "warn",
            "MASTER_ADDR=10.65.0.9 is not followed: primary address is 10.65.0.3 (TRAIN_PRIMARY)",
        ),
        ("container-two-cores", {}, "warn", "/dev/shm has 64 MiB"),
        ("container-two-cores", {}, "warn", "/workspace is not a mount"),
        ("rdma-without-device", {"TRAIN_VOLUME": "/v"}, "warn", "RDMA ports are visible but cannot be opened"),
        (
            "laptop",
            {"TRAIN_SETUP": "true", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"},
            "warn",
            "TRAIN_SETUP is not run",
        ),
        (
            "container-two-cores",
            {"RUNPOD_POD_ID": "abc", "RUNPOD_API_KEY": "k", "TRAIN_ON_EXIT": "stop"},
            "warn",
            "TRAIN_ON_EXIT=stop is not done: /workspace is on the container's own disk",
        ),
    ],
)
def test_what_is_wrong_is_found_with_a_fix(machine, variables, level, text):
    findings = [finding for finding in planned(machine, variables).findings if text in finding.text]
    assert [finding.level for finding in findings] == [level]
    assert all(finding.fix for finding in findings)


def test_gpus_that_are_hidden_lower_no_number_that_was_told():
    with pytest.raises(SettingError, match=r"8 processes per node \(NUM_TRAINERS\).*2 visible GPUs") as caught:
        planned("runpod-cluster", {**RUNPOD, "CUDA_VISIBLE_DEVICES": "0,1"})
    assert "CUDA_VISIBLE_DEVICES" in caught.value.fix


def test_one_process_of_many_runs_the_script_and_starts_no_launcher():
    variables = {
        **{"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "NODE_RANK": "1"},
        **{"MASTER_ADDR": "10.65.0.3", "MASTER_PORT": "45013"},
    }
    plan = planned("runpod-cluster", variables)
    assert plan.command[:2] == ("python", "-u")
    assert plan.process_rank == 9
    assert {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "10.65.0.3"}.items() <= {
        setting.name: setting.value for setting in plan.settings
    }.items()
    assert any("no launcher, no roll call, no restarts" in finding.text for finding in plan.findings)


@pytest.mark.parametrize(
    ("variables", "command"),
    [
        ({}, ("--no-python", "bash", "/my run.sh", "a b")),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, ("bash", "/my run.sh", "a b")),
    ],
)
def test_a_shell_script_is_run_by_bash_and_not_by_python(variables, command):
    recipe = replace(choose_recipe("/my run.sh", ("a b",), base=BASE), interpreter=("bash",))
    plan = planned("laptop", variables, recipe=recipe)
    assert plan.command[-len(command) :] == command


def test_a_process_keeps_to_itself_what_nobody_told_it():
    variables = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "MASTER_ADDR": "192.168.1.40"}
    names = {setting.name for setting in planned("laptop", variables).settings}
    assert "LOCAL_WORLD_SIZE" not in names
    assert {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= names


def test_processes_that_are_told_no_primary_run_all_the_same():
    plan = planned("runpod-cluster", {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    assert plan.process_rank == 1
    assert "MASTER_ADDR" not in {setting.name for setting in plan.settings}


def test_a_deliberate_run_on_the_cpu_is_no_reason_to_warn():
    assert planned("laptop", {"TRAIN_NPROC": "4"}).findings == ()


def test_a_mpi_process_gets_the_five_names_that_training_code_reads():
    variables = {
        **{"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"},
        **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "MASTER_ADDR": "10.65.0.3", "MASTER_PORT": "29501"},
    }
    found = {setting.name: setting.value for setting in planned("runpod-cluster", variables).settings}
    assert [found[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")] == [
        *("9", "1", "16", "10.65.0.3", "29501"),
    ]


def test_the_primary_without_an_address_is_told_its_own():
    plan = planned(
        "cloud-vm-virtio",
        {
            "AWS_BATCH_JOB_ID": "j",
            "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
            "AWS_BATCH_JOB_NODE_INDEX": "0",
            "AWS_BATCH_JOB_NUM_NODES": "4",
        },
    )
    assert "--master-addr=10.128.0.5" in plan.command


def test_an_environment_of_nothing_is_one_node():
    assert read_environment({"HOME": "/root"}) == Environment("none", primary_address="127.0.0.1")
