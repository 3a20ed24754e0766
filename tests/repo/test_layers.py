"""Imports go down, and only the rims touch the machine."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# From the bottom up; a module imports only from lines above its own.
LAYERS = (
    {"errors"},
    {"facts", "hang", "hints", "masks", "measured", "reasons", "service", "stale", "topology", "values"},
    {"keys", "readers"},
    {"jupyter"},
    {"provider_torch"},
    {"provider_documents", "provider_pods", "provider_slurm"},
    {"providers"},
    {"place"},
    {"environment", "request", "shells", "stay"},
    {"cluster", "devices", "recipes", "volume"},
    {"diagnosis", "ending", "host_ids", "interfaces", "nccl_log", "rdma", "recorder"},
    {
        "caches",
        "check_examined",
        "check_gpus",
        "check_limits",
        "check_software",
        "checkpoint_size",
        "inherited",
        "mount",
    },
    {"checks", "launchers", "network"},
    {"render_settings", "render_text"},
    {"render_pod"},
    {"render_clouds", "render_deepspeed", "render_docker", "render_kubernetes", "render_slurm"},
    {"render"},
    {"plan"},
    {"doctor", "namespaces"},
    {"local"},
    {"probe_nvml"},
    {"probe_software"},
    {"probe_machine"},
    {"probe_storage"},
    {"probe_limits", "probe_network"},
    {"probe"},
    {
        "capture",
        "eject",
        "interrupts",
        "liveness",
        "names",
        "private_folder",
        "render_files",
        "report",
        "run_folder",
        "screen",
        "scripts",
        "version",
    },
    {"hooks", "jupyter_files", "mount_volume", "relay", "runtime", "sshd", "stop_machine", "supervisor", "try_volume"},
    {"examine"},
    {"afterwards", "failure", "health", "messages", "preflight", "restarts", "run_lock", "traces"},
    {"history", "reach", "roster", "secret", "tally"},
    {"attempt", "seat", "statement", "status"},
    {"member", "reception"},
    {"coordinator"},
    {"meeting", "node_setup"},
    {"joint"},
    {"launch", "viewer", "watch"},
    {"agent", "services", "session"},
    {"prepare"},
    {"running"},
    {"__main__"},
)
CHILDREN = {
    "cuda_start",
    "elastic",
    "serve",
    "trial",
    "worker",
}  # programs of their own, run by path: they import nothing of ours
RANK = {module: number for number, layer in enumerate(LAYERS) for module in layer}
MODULES = sorted((ROOT / "entrypoint").glob("*.py"))


def imports(path: Path, *, top_level: bool = False) -> set[str]:
    """Dotted names that a file imports, anywhere in it or only where the import of the file itself runs them."""
    tree = ast.parse(path.read_text())
    names: set[str] = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_only_from_layers_below_its_own(path):
    ours = {name.split(".")[1] for name in imports(path) if name.startswith("entrypoint.")}
    if path.stem in CHILDREN:
        assert ours == set()
    else:
        assert {module for module in ours if RANK[module] >= RANK[path.stem]} == set()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_module_imports_torch_when_it_is_imported(path):
    assert not {name for name in imports(path, top_level=True) if name.split(".")[0] in ("torch", "deepspeed", "numpy")}


@pytest.mark.parametrize("path", sorted((ROOT / "train").glob("*.py")), ids=lambda path: path.stem)
def test_training_scripts_do_not_know_the_launcher(path):
    assert not {name for name in imports(path) if name.split(".")[0] in ("entrypoint", "train")}


OTHERS = [path for path in MODULES if path.stem not in CHILDREN | {"__main__"}]


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_only_the_command_line_reads_the_process_environment(path):
    attributes = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    assert not attributes & {"environ", "getenv", "environb", "putenv"}


# Down to the plan everything is pure, but for one reader of the few files that platforms write.
PURE = sorted(set().union(*LAYERS[: LAYERS.index({"plan"}) + 1]))


@pytest.mark.parametrize("module", PURE)
def test_the_middle_does_not_touch_the_machine(module):
    path = ROOT / "entrypoint" / f"{module}.py"
    assert not {name.split(".")[0] for name in imports(path)} & {"os", "shutil", "socket", "subprocess", "time"}
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert "open" not in calls
