"""What DeepSpeed would ignore is refused, and the table of its names is the library's own."""

import inspect
import json
import typing
import warnings
from pathlib import Path
from typing import Any

import pytest
from deepspeed_check import HF_FILLS, ZERO_FILLS, check
from deepspeed_config import make_config
from deepspeed_keys import ANY, DEPRECATED, KEYS, REMOVED, WITHOUT_EFFECT
from options import HfOptions, Problem, ZeroOptions

TEMPLATES = sorted((Path(__file__).resolve().parents[2] / "templates" / "deepspeed").glob("*.json"))
FILLS = {"zero": ZERO_FILLS, "hf": HF_FILLS}


def refused(config: dict[str, Any], *, fills=ZERO_FILLS, world_size: int = 2) -> Problem:
    with pytest.raises(Problem) as caught:
        check(config, "mine.json", fills=fills, world_size=world_size)
    assert "\n" not in caught.value.problem
    assert "mine.json" in caught.value.problem
    return caught.value


@pytest.mark.parametrize(
    ("config", "quoted", "fix"),
    [
        ({"zero_optimisation": {"stage": 3}}, "zero_optimisation", "did you mean zero_optimization?"),
        ({"zero_optimization": {"offload_optimiser": {}}}, "zero_optimization.offload_optimiser", "offload_optimizer?"),
        ({"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}}, "offload_optimizer.devise", "device?"),
        ({"gradient_accumulation": 2}, "gradient_accumulation ", "did you mean gradient_accumulation_steps?"),
        ({"optimizer": {"type": "AdamW", "params": {"weigth_decay": 0}}}, "params.weigth_decay", "weight_decay?"),
        ({"zero_optimization": {"cpu_offload": True}}, "zero_optimization.cpu_offload", "offload_optimizer"),
        ({"bfloat16": {"enabled": True}}, "bfloat16", "bf16"),
        ({"elasticity": {}}, "elasticity", "leave it out"),
        ({"bf16": True}, "bf16 in mine.json is true, no object", "enabled"),
        ({"qqq": 1}, "qqq", "one of train_batch_size"),
    ],
)
def test_a_name_that_deepspeed_does_not_read_is_refused_at_every_level(config, quoted, fix):
    problem = refused(config)
    assert quoted in problem.problem
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("config", "fills", "quoted"),
    [
        ({"steps_per_print": "auto"}, ZERO_FILLS, "steps_per_print"),
        ({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, ZERO_FILLS, "reduce_bucket_size"),
        ({"zero_optimization": {"stage": "auto"}}, HF_FILLS, "zero_optimization.stage"),
        ({"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}, HF_FILLS, "sub_group_size"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "auto"}}}, HF_FILLS, "offload_param.device"),
        ({"fp16": {"loss_scale": "auto"}}, HF_FILLS, "fp16.loss_scale"),
    ],
)
def test_auto_where_nobody_fills_it_in_is_refused(config, fills, quoted):
    assert f'{quoted} is "auto"' in refused(config, fills=fills).problem


@pytest.mark.parametrize(
    ("world_size", "batch", "micro", "passes", "fits"),
    [
        (8, 64, 4, 2, True),
        (16, 64, 4, 2, False),  # the guide's 4 × 2 × 8, on twice as many
        (8, 64, None, 3, False),
        (8, 64, 4, None, True),
        (8, 100, None, None, False),
        (1, 7, None, None, True),
        (16, None, 4, 2, True),
        (2, 8, "auto", 2, True),
        (2, 10, "auto", 2, False),
    ],
)
def test_batch_values_must_multiply_out_with_the_world_size(world_size, batch, micro, passes, fits):
    given = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": passes,
    }
    config = {name: value for name, value in given.items() if value is not None}
    if fits:
        check(config, "mine.json", fills=HF_FILLS, world_size=world_size)
    else:
        problem = refused(config, fills=HF_FILLS, world_size=world_size).problem
        assert all(str(number) in problem for number in (world_size, batch, passes or ""))


@pytest.mark.parametrize("value", [0, -1, "4", 4.0, True])
def test_a_batch_value_that_is_no_count_is_refused(value):
    assert json.dumps(value) in refused({"train_micro_batch_size_per_gpu": value}).problem


CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/nvme"}


@pytest.mark.parametrize(
    ("zero", "beside", "quoted"),
    [
        ({"stage": 2, "offload_param": CPU}, {}, "zero_optimization.offload_param"),
        ({"stage": 2, "stage3_max_live_parameters": 1000000}, {}, "stage3_max_live_parameters"),
        ({"stage": 2, "zero_hpz_partition_size": 8}, {}, "zero_hpz_partition_size"),
        ({"stage": 1, "zero_quantized_weights": True}, {}, "zero_quantized_weights"),
        ({"stage": 0, "offload_optimizer": CPU}, {}, "offload_optimizer"),
        ({"reduce_bucket_size": 7}, {}, "reduce_bucket_size"),
        ({"stage": 3, "round_robin_gradients": True}, {}, "round_robin_gradients"),
        ({"stage": 2, "offload_optimizer": NVME}, {}, 'offload_optimizer.device "nvme"'),
        ({"stage": 3, "offload_param": {**CPU, "nvme_path": "/nvme"}}, {}, "offload_param.nvme_path"),
        ({"stage": 3, "offload_optimizer": {"pin_memory": True}}, {}, "offload_optimizer"),
        ({"stage": 3, "offload_optimizer": CPU}, {"aio": {"queue_depth": 8}}, "aio"),
        ({"stage": 2, "zenflow": {"topk_ratio": 0.1}}, {}, "zenflow"),
        ({"stage": 2}, {"activation_checkpointing": {"partition_activations": True}}, "activation_checkpointing"),
        ({"stage": 2}, {"data_efficiency": {"enabled": True}}, "data_efficiency"),
    ],
)
def test_what_has_no_effect_is_refused(zero, beside, quoted):
    assert f"{quoted} in mine.json has no effect" in refused({"zero_optimization": zero, **beside}).problem


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
@pytest.mark.parametrize("world_size", [1, 2, 64])
def test_the_ready_made_files_pass(path, world_size):
    kind = path.stem.partition("-")[0]
    text = path.read_text()
    check(json.loads(text), str(path), fills=FILLS[kind], world_size=world_size)
    assert ('"auto"' in text) == (kind == "hf")


@pytest.mark.parametrize(
    "path", [path for path in TEMPLATES if path.stem.startswith("zero")], ids=lambda path: path.stem
)
def test_the_recipe_takes_the_ready_made_file_and_fills_in_the_rest(path):
    options = ZeroOptions(global_batch=12, deepspeed_config=str(path))
    config = make_config(options, world_size=2, passes=3, bfloat16=True)
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert '"auto"' not in json.dumps(config)


def test_there_is_a_file_for_each_stage_each_offload_and_each_of_the_two():
    forms = {"stage-0", "stage-1", "stage-2", "stage-3", "stage-2-offload-cpu", "stage-3-offload-cpu"}
    forms |= {"stage-3-offload-nvme", "stage-3-hierarchical"}
    assert {path.stem for path in TEMPLATES} == {f"{kind}-{form}" for kind in FILLS for form in forms}


# ---- the table of names, against the library ----


class Recorder(dict):
    """A dict that remembers which of its keys somebody has asked for."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__({k: Recorder(v) if isinstance(v, dict) else v for k, v in content.items()})
        self.asked: set[str] = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def keys(self):
        return self

    def __copy__(self):
        return self


@pytest.fixture(scope="module")
def library():
    """DeepSpeed's module of its configuration, on the CPU."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DS_ACCELERATOR", "cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from deepspeed.runtime import config
    return config


@pytest.mark.torch
def test_the_names_at_the_top_are_those_that_the_library_asks_for(library):
    config = Recorder({"train_batch_size": 1})
    library.DeepSpeedConfig(config)
    removed = {name for name in REMOVED if "." not in name}
    assert config.asked - removed - {"bfloat16"} == KEYS.keys()
    assert removed == library._REMOVED_TOP_LEVEL_CONFIG_KEYS.keys()
    assert {name for name in REMOVED if "." in name} == {
        f"zero_optimization.{name}" for name in library._REMOVED_ZERO_CONFIG_KEYS
    }


def fields(model: Any) -> dict[str, Any]:
    """Alias or name of each field of a pydantic model; a section for each that is a model itself."""
    from pydantic import BaseModel

    found = {}
    for name, field in model.model_fields.items():
        kinds = [kind for kind in (*typing.get_args(field.annotation), field.annotation) if inspect.isclass(kind)]
        below = [kind for kind in kinds if issubclass(kind, BaseModel)]
        found[field.alias or name] = fields(below[0]) if below else None
    return found


@pytest.mark.torch
def test_the_names_of_sections_are_those_of_the_librarys_models(library):
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    old = {name.rpartition(".")[2] for name in DEPRECATED}
    zero = fields(DeepSpeedZeroConfig)
    assert {name: below for name, below in zero.items() if name not in old} == KEYS["zero_optimization"]
    assert {name for name in zero if name in old} <= old
    assert fields(DeepSpeedBF16Config) == KEYS["bf16"]
    assert fields(DeepSpeedFP16Config) == KEYS["fp16"]


@pytest.mark.torch
@pytest.mark.parametrize("section", ["aio", "data_types", "flops_profiler", "torch_autocast", "optimizer"])
def test_the_names_of_plain_sections_are_those_that_the_library_asks_for(library, section):
    content = {"type": "Adam", "params": {}} if section == "optimizer" else {}
    config = Recorder({"train_batch_size": 1, section: content})
    library.DeepSpeedConfig(config)
    assert dict.__getitem__(config, section).asked == KEYS[section].keys()


@pytest.mark.torch
def test_the_names_of_schedules_are_the_arguments_of_the_librarys_schedulers(library):
    from deepspeed.runtime import lr_schedules

    known = {"optimizer", "warmup_ratio"}
    arguments = {
        name
        for schedule in lr_schedules.VALID_LR_SCHEDULES
        for name in inspect.signature(getattr(lr_schedules, schedule)).parameters
    }
    assert arguments - known == KEYS["scheduler"]["params"].keys()


@pytest.mark.torch
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_deepspeeds_own_class_takes_the_ready_made_files(library, path, monkeypatch):
    monkeypatch.setattr(library.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(library.dist, "get_world_size", lambda: 8)  # it would take 1 otherwise, whatever is set
    config = json.loads(path.read_text())
    numbers = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    filled = {**config, **numbers, "gradient_clipping": 1.0, "bf16": {"enabled": True}}
    if "optimizer" in filled:
        filled["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    read = library.DeepSpeedConfig(filled)
    assert read.zero_config.stage == config["zero_optimization"]["stage"]
    offload = read.zero_config.offload_optimizer
    assert (offload.device if offload else "none") == config["zero_optimization"].get(
        "offload_optimizer", {"device": "none"}
    )["device"]


def test_every_section_without_effect_is_a_known_name():
    assert WITHOUT_EFFECT.keys() <= KEYS.keys()
    assert all(KEYS[name] in (ANY, None) for name in WITHOUT_EFFECT)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_the_recipe_hf_looks_at_a_file_in_the_same_way(tmp_path):
    from hf_arguments import deepspeed_config

    def read(content: dict[str, Any] | str):
        path = tmp_path / "mine.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return deepspeed_config(HfOptions(strategy="zero", deepspeed_config=str(path)), world_size=4)

    for path in TEMPLATES:
        if path.stem.startswith("hf"):
            written = json.loads(path.read_text())
            written.pop("optimizer", None)  # the recipe's own
            assert read(path.read_text()) == written
    for content, quoted in (
        ({"bf16": {"enabled": "auto"}}, "stage is missing"),
        ({"zero_optimization": {"stage": 2, "offload_param": CPU}}, "offload_param"),
        ({"train_batch_size": 6, "zero_optimization": {"stage": 2}}, "6"),
        ("{", "no JSON"),
    ):
        with pytest.raises(Problem, match=quoted):
            read(content)
