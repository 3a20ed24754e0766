"""`render`: one set of settings, the template of any platform."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from template_cases import CASES, HARD, IDS, OTHER, documents, of_kind, other, settings, shell_variables

from entrypoint.errors import SettingError
from entrypoint.render import PLATFORMS, listing, read_pairs, ready_made, render
from entrypoint.render_files import write, write_all
from entrypoint.render_settings import GROUPS, KEYS, REPOSITORY, VARIANTS, VERSION, Settings, keys_of
from entrypoint.render_text import NULL, Why, plain, quote, to_yaml

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
KUBERNETES, SLURM = GROUPS["Kubernetes"], GROUPS["Slurm"]
FILES = ready_made()


# ---- the ready-made files ----


def test_the_ready_made_files_are_those_of_the_code():
    there = {str(path.relative_to(TEMPLATES)): path.read_text() for path in TEMPLATES.rglob("*") if path.is_file()}
    drifted = sorted(name for name in there.keys() | FILES.keys() if there.get(name) != FILES.get(name))
    assert drifted == [], "make templates"


def test_scripts_can_be_executed():
    scripts = [path for path in TEMPLATES.rglob("*") if path.is_file() and path.read_text().startswith("#!")]
    assert {path.suffix for path in scripts} == {".sh", ".sbatch"}
    assert all(path.stat().st_mode & 0o111 for path in scripts)


def test_files_are_written_whole_with_their_folder_and_replaced(tmp_path):
    list(write_all({"a/b.sh": "#!/bin/sh\n", "c": "1"}, tmp_path / "new"))
    write(tmp_path / "new/c", "2")
    assert sorted(path.name for path in (tmp_path / "new").rglob("*")) == ["a", "b.sh", "c"]
    assert (tmp_path / "new/c").read_text() == "2"


@pytest.mark.parametrize(("folder", "quoted"), [(None, "-o FOLDER"), (Path("/proc/none"), "-o /proc/none/a")])
def test_a_place_that_cannot_be_written_is_said(folder, quoted):
    with pytest.raises(SettingError, match=quoted):
        list(write_all({"a": ""}, folder))


def test_the_image_is_the_one_that_bake_builds_and_tags():
    bake = (ROOT / "docker-bake.hcl").read_text()
    rows = dict(re.findall(r'\{ name = "(\w+)",.*lock = "(\w*)" \}', bake))
    assert set(VARIANTS) == {name for name, lock in rows.items() if lock}
    assert f'variable "IMAGE" {{ default = "{REPOSITORY}" }}' in bake
    assert f'variable "VERSION" {{ default = "{VERSION}" }}' in bake
    assert '"${IMAGE}:${VERSION}-${row.name}"' in bake


def test_the_version_of_the_image_is_the_projects():
    assert f'\nversion = "{VERSION}"\n' in (ROOT / "pyproject.toml").read_text()


# ---- what every template holds ----


@pytest.mark.parametrize(("platform", "name", "given"), CASES, ids=IDS)
def test_a_template_is_text_that_parses_and_is_the_same_each_time(platform, name, given):
    text = render(platform, given)
    assert text == render(platform, given)
    assert text.endswith("\n")
    assert all(len(line) <= 160 for line in text.splitlines() if "|" not in line and '"' not in line)
    if not text.startswith(("#!", "# `")) or platform in (*KUBERNETES, "compose", "skypilot", "dstack"):
        assert all(documents(platform, given))


# A checkout has no image; the machine that a person selects has its number of GPUs.
NOT_IN_THE_FILE = (("slurm", "image"), ("runpod-pod", "gpus"), ("vast", "gpus"))


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("key", KEYS)
def test_a_key_changes_the_template_or_is_refused(platform, key):
    value = other(platform).get(key, OTHER[key])
    base = {"nodes": "5"} if key == "min_nodes" else {"script": "/workspace/mine.py"} if key == "args" else {}
    if key not in keys_of(platform) or (key == "nodes" and PLATFORMS[platform].nodes[1] == 1):
        with pytest.raises(SettingError):
            render(platform, {key: value})
    elif (platform, key) not in NOT_IN_THE_FILE:
        assert render(platform, base | {key: value}) != render(platform, base)


@pytest.mark.parametrize("path", sorted(FILES))
def test_no_template_names_an_interface_or_a_port_of_tensorboard(path):
    text = FILES[path]
    assert not re.search(r"\b(eth|ens|eno|ib|mlx5_)\d", text)
    assert "SOCKET_IFNAME" not in text
    assert "6006" not in text


def test_no_code_chooses_an_interface_by_its_name():
    """The clouds' own pages went from eth1 to ens1 within a year (runpod/docs#212)."""
    named = set()
    for path in (ROOT / "entrypoint").glob("*.py"):
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told]
        if any(re.search(r"\b(eth|ens|eno|enp|ib|bond|mlx5_)\d", str(node.value)) for node in texts):
            named.add(path.name)
    assert named == {"values.py", "namespaces.py"}  # the example of a fix; the nodes of `local`, which we make


@pytest.mark.parametrize("platform", PLATFORMS)
def test_hard_arguments_arrive_unchanged(platform):
    assert environment_of(platform, {"args": HARD, "script": "/workspace/mine.py"})["TRAIN_ARGS"] == HARD


def environment_of(platform: str, given: dict[str, str]) -> dict[str, str]:
    """The variables that the template itself gives to each node."""
    text = render(platform, given)
    if platform in (*SLURM, "vm"):
        return shell_variables(text)
    if platform == "vramfarm":
        return dict(line.split("=", 1) for line in text.split("```")[1].strip().splitlines())
    (*_, document) = documents(platform, given)
    if platform == "compose":
        service = next(iter(document["services"].values()))
        return {name: value.replace("$$", "$") for name, value in service["environment"].items()}
    if platform == "vast":
        return shell_variables("export " + document["env"])
    if platform in KUBERNETES:
        listed = document["spec"]["trainer"]["env"] if platform == "kubeflow-trainer" else container(document)["env"]
        return {each["name"]: each["value"] for each in listed if "value" in each}
    return document.get("env") or document["envs"]


def container(document):
    spec = document["spec"]
    if document["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    if document["kind"] == "PyTorchJob":
        spec = next(iter(spec["pytorchReplicaSpecs"].values()))
    return spec["template"]["spec"]["containers"][0]


@pytest.mark.parametrize(
    "platform", [*KUBERNETES, *SLURM, "runpod-pod", "runpod-cluster", "compose", "skypilot", "dstack"]
)
def test_a_secret_is_named_and_never_has_a_value(platform):
    text = render(platform, {"secrets": "HF_TOKEN"})
    assert "HF_TOKEN" in text
    assert "HF_TOKEN" not in environment_of(platform, {"secrets": "HF_TOKEN"}) or re.search(
        r"\{\{ ?(RUNPOD_SECRET_|secrets\.)HF_TOKEN ?\}\}|\$\{HF_TOKEN:\?", text
    )


@pytest.mark.parametrize("platform", [name for name, row in PLATFORMS.items() if row.gpus[0] == 0])
def test_without_gpus_the_image_is_the_small_one_and_none_is_asked_for(platform):
    text = render(platform, {"gpus": "0"})
    if platform == "compose":
        text = text[: text.index("\n  gpu:")]
    assert f"{VERSION}-{VARIANTS[0]}" not in text
    assert not re.search(r"nvidia|accelerators|--gpus|--nv|gpus-per-node", text)


# ---- Kubernetes ----


def pods(platform, given):
    found = []
    for document in documents(platform, given):
        spec = document["spec"]
        if document["kind"] in ("JobSet", "ClusterTrainingRuntime"):
            spec = (spec if document["kind"] == "JobSet" else spec["template"]["spec"])["replicatedJobs"][0]["template"]
            spec = spec["spec"]
        if document["kind"] == "PyTorchJob":
            found += [replica["template"]["spec"] for replica in spec["pytorchReplicaSpecs"].values()]
        elif "template" in spec and "spec" in spec["template"]:
            found.append(spec["template"]["spec"])
    return found


@pytest.mark.parametrize("platform", KUBERNETES)
@pytest.mark.parametrize("given", [{}, {"grace": "600", "shm": "64", "memory": "900"}, {"gpus": "0"}])
def test_memory_grace_and_shm_of_a_pod_add_up(platform, given):
    known = settings(platform, given)
    assert pods(platform, given)
    for pod in pods(platform, given):
        assert pod["terminationGracePeriodSeconds"] == known.grace + 15
        (shm,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]
        assert shm == {"medium": "Memory", "sizeLimit": f"{known.shm_gib}Gi"}
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {"shm": "/dev/shm", "workspace": "/workspace"}
        if platform != "kubeflow-trainer":
            memory = pod["containers"][0]["resources"]["limits"]["memory"]
            assert int(memory.removesuffix("Gi")) == known.memory_gib + known.shm_gib
    if platform == "kubeflow-trainer":
        given_memory = of_kind(platform, "TrainJob", given)["spec"]["trainer"]["resourcesPerNode"]["limits"]["memory"]
        assert int(given_memory.removesuffix("Gi")) == known.memory_gib + known.shm_gib


@pytest.mark.parametrize("platform", ["kubernetes", "jobset", "kubeflow-trainer"])
def test_143_is_a_disruption_78_is_final_and_names_the_container(platform):
    text = render(platform)
    job = next(each for each in documents(platform, {}) if each["kind"] in ("Job", "JobSet", "ClusterTrainingRuntime"))
    policy, name = find(job, "podFailurePolicy"), find(job, "containers")[0]["name"]
    codes = {rule["action"]: rule["onExitCodes"] for rule in policy["rules"] if "onExitCodes" in rule}
    assert codes["Ignore"] == {"containerName": name, "operator": "In", "values": [143]}
    assert codes["FailJob"] == {"containerName": name, "operator": "In", "values": [78]}
    assert policy["rules"][0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    if platform != "kubernetes":
        assert "FailJobSet" in text  # a job that failed by that rule is not made anew


def find(value, key):
    """The first value of this key, at any depth."""
    if isinstance(value, dict):
        if key in value:
            return value[key]
        value = list(value.values())
    if isinstance(value, list):
        return next((found for each in value if (found := find(each, key)) is not None), None)
    return None


@pytest.mark.parametrize("platform", KUBERNETES)
def test_the_volume_can_be_mounted_by_all_nodes_and_is_the_one_that_pods_name(platform):
    claim = of_kind(platform, "PersistentVolumeClaim", {"volume": "mine"})
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["metadata"]["name"] == "mine"
    for pod in pods(platform, {"volume": "mine"}):
        assert {"name": "workspace", "persistentVolumeClaim": {"claimName": "mine"}} in pod["volumes"]


@pytest.mark.parametrize("platform", KUBERNETES)
def test_rdma_is_asked_for_only_when_named(platform):
    with_it, without = render(platform, {"rdma": "rdma/hca"}), render(platform)
    assert "rdma/hca: '1'" in with_it
    assert "IPC_LOCK" in with_it
    assert "rdma" not in without
    assert "IPC_LOCK" not in without


def test_a_pytorchjob_fixes_the_number_of_nodes_or_its_range():
    fixed = of_kind("pytorchjob", "PyTorchJob", {"nodes": "4"})["spec"]["pytorchReplicaSpecs"]
    assert {name: replica["replicas"] for name, replica in fixed.items()} == {"Master": 1, "Worker": 3}
    assert list(of_kind("pytorchjob", "PyTorchJob", {"nodes": "1"})["spec"]["pytorchReplicaSpecs"]) == ["Master"]
    elastic = of_kind("pytorchjob-elastic", "PyTorchJob", {"nodes": "4", "min_nodes": "2"})["spec"]
    assert elastic["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}


# ---- Slurm ----


def directives(text: str) -> dict[str, str]:
    """#SBATCH lines as sbatch reads them: it stops at the first line that is neither a comment nor empty."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            (word,) = line.removeprefix("#SBATCH ").split()
            name, _, value = word.removeprefix("--").partition("=")
            assert name not in found
            found[name] = value
    return found


@pytest.mark.parametrize("platform", SLURM)
def test_one_task_a_node_and_a_signal_that_leaves_time_for_the_checkpoint(platform):
    text = render(platform, {"nodes": "4", "grace": "600", "partition": "gpu"})
    said = directives(text)
    assert text.count("#SBATCH") == len(said)
    assert {name: said[name] for name in ("nodes", "ntasks-per-node", "gpus-per-node", "partition", "open-mode")} == {
        "nodes": "4",
        "ntasks-per-node": "1",
        "gpus-per-node": "8",
        "partition": "gpu",
        "open-mode": "append",
    }
    assert said["signal"] == f"B:USR1@{600 + 15 + 120}"
    assert "requeue" in said
    known = ("job-name", "time", "output", "exclusive", "mem", "requeue", "signal")
    assert set(said) <= {"nodes", "ntasks-per-node", "gpus-per-node", "partition", "open-mode", *known}


@pytest.mark.parametrize("platform", SLURM)
def test_a_node_that_ends_early_does_not_take_the_others_checkpoint(platform):
    text = render(platform)
    assert "srun --label --kill-on-bad-exit=0 --wait=0 " in text
    assert 'scancel --quiet --signal=TERM "$SLURM_JOB_ID"' in text  # a SIGTERM to srun itself ends the step by force
    assert not re.search(r"\bkill -TERM", text)


@pytest.mark.parametrize("platform", ["slurm-pyxis", "slurm-apptainer"])
def test_a_container_under_slurm_calls_the_entrypoint_and_the_jobs_variables_win(platform):
    text = render(platform, {"env.NCCL_DEBUG": "INFO", "secrets": "HF_TOKEN"})
    assert re.search(r"^  .*\broundhouse train &$|^  roundhouse train &$", text, re.MULTILINE)
    if platform == "slurm-pyxis":
        (names,) = re.findall(r"--container-env=(\S+)", text)
        assert names.split(",") == ["TRAIN_SCRIPT", "TRAIN_GRACE", "NCCL_DEBUG", "TRAIN_VOLUME", "HF_TOKEN"]
        assert "'ghcr.io#roundhouse-train/roundhouse:" in text
    else:
        assert "unset PYTHONPATH" in text
        assert "PYTHONNOUSERSITE=1" in text


@pytest.mark.parametrize(
    ("near_limit", "code", "again"),
    [
        *((False, code, False) for code in (0, 1, 78, 137, 143)),
        *((True, code, code >= 128) for code in (0, 1, 76, 78, 137, 143)),
    ],
)
def test_the_batch_script_ends_with_the_code_of_the_step_and_requeues_only_near_the_limit(
    tmp_path, near_limit, code, again
):
    """Its shell alone: tests/cluster/test_slurm.py has it under Slurm."""
    step = f"exit {code}" if not near_limit else f"kill -USR1 $PPID; sleep 0.2; exit {code}"
    for name, body in {"srun": step, "scancel": "exit 1", "scontrol": "touch requeued"}.items():
        write(tmp_path / name, f"#!/bin/sh\n{body}\n")
    done = subprocess.run(
        ["bash", "-c", render("slurm")],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/", "SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2"},
        timeout=20,
        check=False,
    )
    assert done.returncode == code
    assert (tmp_path / "requeued").exists() == again


# ---- containers on a machine ----


def test_memlock_is_raised_for_gpus_only():
    (one,) = documents("compose", {})
    assert "ulimits" not in one["services"]["cpu"]
    assert one["services"]["gpu"]["ulimits"] == {"memlock": -1, "stack": 67108864}
    assert one["services"]["gpu"]["profiles"] == ["gpu"]


@pytest.mark.parametrize("given", [{}, {"nodes": "2", "gpus": "0"}])
def test_compose_has_shm_and_the_grace_at_the_service(given):
    (document,) = documents("compose", given)
    for service in document["services"].values():
        assert service["shm_size"] in ("2gb", "16gb")
        assert service["stop_grace_period"] == "75s"
        assert service["volumes"] == ["workspace:/workspace"]


def test_two_nodes_meet_on_the_second_of_two_networks():
    (document,) = documents("compose", {"nodes": "2", "gpus": "0"})
    assert document["networks"] == {"front": {}, "fabric": {"internal": True}}
    aliases = [service["networks"]["fabric"]["aliases"] for service in document["services"].values()]
    assert aliases == [["node0.fabric"], ["node1.fabric"]]
    assert {s["environment"]["TRAIN_PRIMARY"] for s in document["services"].values()} == {"node0.fabric:29500"}


@pytest.mark.parametrize("platform", ["vm", "vast", "runpod-pod", "runpod-cluster"])
def test_jupyter_and_ssh_are_the_only_ports(platform):
    text = render(platform)
    ports = {"vm": "127.0.0.1:8888:8888", "vast": "-p 8888:8888"}.get(platform, '"8888/http",')
    assert ports in text
    assert ("22/tcp" in text) == platform.startswith("runpod")


def test_a_machine_gets_its_rank_and_the_primary_as_arguments():
    text = render("vm", {"nodes": "2"})
    done = subprocess.run(
        ["bash", "-c", text, "run.sh"], env={"HOME": "/"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "give the number of this machine" in done.stderr


@pytest.mark.parametrize("platform", ["skypilot", "dstack", "vast"])
def test_where_the_entrypoint_is_replaced_the_command_calls_it(platform):
    assert re.search(r"exec (tini -s -g -- )?roundhouse (train|up)", render(platform))


def test_skypilot_has_nothing_in_setup():
    (task,) = documents("skypilot", {"secrets": "HF_TOKEN"})
    assert "setup" not in task
    assert task["secrets"] == {"HF_TOKEN": None}


# ---- Runpod's bodies, by the names and types of its OpenAPI documents ----

TEMPLATE = {
    **{"name": str, "imageName": str, "category": str, "readme": str, "volumeMountPath": str, "env": dict},
    **{"containerDiskInGb": int, "volumeInGb": int, "isPublic": bool, "isServerless": bool, "ports": list},
    **{"dockerEntrypoint": list, "dockerStartCmd": list, "containerRegistryAuthId": str},
}  # v1 TemplateCreateInput
CLUSTER = {
    **{"name": str, "type": str, "compute": dict, "dataCenterIds": list, "mounts": dict, "args": str, "disk": int},
    **{"env": dict, "image": str, "ports": list, "startJupyter": bool, "startSsh": bool},
}  # v2 CreateClusterRequest
INSTANCE = {
    **{"image": str, "label": str, "disk": int, "runtype": str, "env": str, "onstart": str, "args_str": str},
}  # Vast.ai, PUT /api/v0/asks/{id}/


@pytest.mark.parametrize(
    ("platform", "fields"), [("runpod-pod", TEMPLATE), ("runpod-cluster", CLUSTER), ("vast", INSTANCE)]
)
@pytest.mark.parametrize("every", [False, True])
def test_a_body_has_only_the_fields_of_its_api_with_their_types(platform, fields, every):
    (body,) = documents(platform, other(platform) if every else {})
    assert {name: type(value) for name, value in body.items()} == {name: fields[name] for name in body}
    if isinstance(body["env"], dict):
        assert all(isinstance(value, str) for value in body["env"].values())
        assert len(body["env"]) <= 50
    if platform == "runpod-cluster":
        assert body["type"] in ("APPLICATION", "TRAINING", "SLURM", "RAY")
        assert set(body["compute"]) == {"gpuTypeId", "gpuCountPerPod", "podCount"}
        assert set(body["mounts"]["network"][0]) == {"volumeId", "path"}
    if platform == "vast":
        assert body["runtype"] in (
            "ssh",
            "jupyter",
            "args",
            "ssh_proxy",
            "ssh_direct",
            "jupyter_proxy",
            "jupyter_direct",
        )


# ---- wrong input ----


@pytest.mark.parametrize(
    ("platform", "given", "problem", "fix"),
    [
        ("kubernets", {}, "'kubernets' is no platform", "did you mean kubernetes?"),
        ("eks", {}, "'eks' is no platform", "one of runpod-pod"),
        ("slurm", {"partion": "x"}, "'partion' is no key of slurm", "did you mean partition?"),
        ("slurm", {"rdma": "rdma/hca"}, "rdma does nothing for slurm", "kubernetes"),
        ("slurm", {"nodes": "two"}, "nodes='two'", "number of nodes"),
        ("slurm", {"nodes": "0"}, "nodes=0", "nodes"),
        ("slurm", {"gpus": "100"}, "gpus=100", "each node"),
        ("vast", {"nodes": "2"}, "nodes=2 cannot be with vast", "--nodes 1"),
        ("vast", {"gpus": "0"}, "gpus=0 cannot be with vast", "--gpus 1"),
        ("runpod-cluster", {"nodes": "1"}, "nodes=1 cannot be", "runpod-pod"),
        ("kubernetes", {"name": "My Job"}, "name='My Job'", "a-z"),
        ("kubernetes", {"secrets": "HF-TOKEN"}, "'HF-TOKEN'", "letters"),
        ("kubernetes", {"env.A": "1", "secrets": "A"}, "A is given as a value and as a secret", "leave"),
        ("kubernetes", {"args": "a\nb"}, "args='a\\nb'", "one line"),
        ("kubernetes", {"env.TRAIN_RESTART": "1"}, "TRAIN_RESTART", "did you mean TRAIN_RESTARTS?"),
        ("kubernetes", {"env.TRAIN_RESTARTS": "x"}, "TRAIN_RESTARTS='x'", "attempts"),
        ("kubernetes", {"env.TRAIN_NPROC": "x"}, "TRAIN_NPROC", "number"),
        ("kubernetes", {"script": "fdsp"}, "'fdsp' is no recipe", "fsdp"),
        ("kubernetes", {"args": "--stepz 5"}, "--stepz", "--steps"),
        ("kubernetes", {"args": "--global-batch 100"}, "100", "--global-batch 96 or 112"),  # on 2 × 8 GPUs
        ("kubernetes", {"args": "'open"}, "cannot be split", "close the quote"),
    ],
)
def test_what_cannot_be_is_quoted_with_a_fix(platform, given, problem, fix):
    with pytest.raises(SettingError) as caught:
        render(platform, given)
    assert problem in caught.value.problem
    assert fix in caught.value.fix
    assert "\n" not in caught.value.problem


def test_the_batch_is_counted_with_the_processes_that_are_asked_for():
    given = {"nodes": "2", "gpus": "0", "args": "--global-batch 2"}
    assert render("slurm", given | {"env.TRAIN_NPROC": "1"})
    with pytest.raises(SettingError, match="4 processes"):
        render("slurm", given)


@pytest.mark.parametrize(
    ("pairs", "quoted"), [(("grace",), "--set 'grace'"), (("a=1", "a=2"), "--set a is given twice")]
)
def test_pairs_that_are_none_are_refused(pairs, quoted):
    with pytest.raises(SettingError, match=quoted):
        read_pairs(pairs)


def test_the_list_has_every_platform_and_key():
    words = listing().split()
    assert {*PLATFORMS, *KEYS} <= set(words)


# ---- the writer ----


def test_comments_stand_above_their_values_and_change_nothing():
    document = {
        "a": Why({"b": [Why({"c": 1, "d": None}, "one"), None, Why("x", "two")]}, "zero"),
        "null": NULL,
        "text": "two\nlines\n",
        "empty": {},
    }
    text = to_yaml("head", document)
    assert (
        yaml.safe_load(text)
        == plain(document)
        == {
            "a": {"b": [{"c": 1}, "x"]},
            "null": None,
            "text": "two\nlines\n",
            "empty": {},
        }
    )
    assert text.splitlines()[:8] == [
        "# head",
        "# zero",
        "a:",
        "  b:",
        "    # one",
        "    - c: 1",
        "    # two",
        "    - x",
    ]


@pytest.mark.parametrize(("platform", "name", "given"), CASES, ids=IDS)
def test_comments_of_templates_are_only_comments(platform, name, given):
    text = render(platform, given)
    if "\n---\n" in text or platform in ("compose", "skypilot", "dstack"):
        bare = "".join(line for line in text.splitlines(True) if not line.lstrip().startswith("#"))
        assert list(yaml.safe_load_all(bare)) == list(yaml.safe_load_all(text))


@pytest.mark.parametrize(
    ("text", "quoted"),
    [("/a/b", "/a/b"), ("/a b", "'/a b'"), ("$HOME/a b", "\"$HOME\"/'a b'"), ("$(id)", "'$(id)'")],
)
def test_a_word_of_a_shell_expands_home_alone(text, quoted):
    assert quote(text) == quoted


def test_settings_are_read_where_the_container_would_read_them():
    assert Settings(script="ddp").variables == {"TRAIN_SCRIPT": "ddp", "TRAIN_GRACE": "60"}
    assert json.loads(render("runpod-pod", {"env.TRAIN_RESTARTS": "5"}))["env"]["TRAIN_RESTARTS"] == "5"


# ---- the command ----


def command(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    python = [sys.executable, "-m", "entrypoint", "render", *words]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": "/"}
    return subprocess.run(python, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_command_prints_what_the_function_gives(tmp_path):
    words = ("slurm", "--script", "zero", "--nodes", "4", "--gpus", "2", "--set", "grace=90")
    done = command(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == render("slurm", {"script": "zero", "nodes": "4", "gpus": "2", "grace": "90"})
    assert command(*words, "-o", "job/train.sbatch", folder=tmp_path).returncode == 0
    assert (tmp_path / "job/train.sbatch").read_text() == done.stdout


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        (("kubernets",), "did you mean kubernetes?"),
        (("slurm", "--set", "nods=2"), "did you mean nodes?"),
        (("all",), "-o FOLDER"),
        (("all", "--nodes", "2", "-o", "x"), "`all` takes no settings, but nodes"),
    ],
)
def test_a_wrong_command_is_one_line_and_a_fix(words, quoted, tmp_path):
    done = command(*words, folder=tmp_path)
    assert done.returncode == 78
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 2
    assert quoted in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_and_list_show_platforms_and_keys():
    assert listing() in command("list").stdout
    shown = command("--help").stdout
    assert all(word in shown for word in (*PLATFORMS, *KEYS))


DOCKERFILE = (ROOT / "Dockerfile").read_text()
BAKED = re.findall(r"(\w+)=", " ".join(re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)))


def test_the_image_sets_no_variable_that_would_beat_the_jobs():
    """Slurm's containers let variables of the image win (pyxis#22)."""
    assert {"PATH", "VIRTUAL_ENV", "CUDA_HOME", "NVIDIA_DRIVER_CAPABILITIES", "PIP_CONSTRAINT"} <= set(BAKED)
    assert not [name for name in BAKED if re.match(r"MASTER_|NODE_RANK|WORLD_SIZE|RANK|NCCL_|GLOO_|TRAIN_", name)]


def test_the_image_puts_no_library_before_those_of_the_driver():
    """A compat libcuda on the path is error 804 on a GeForce (nvidia-docker#1515)."""
    assert not [name for name in BAKED if name.startswith("LD_")]
    assert "compat" not in DOCKERFILE
