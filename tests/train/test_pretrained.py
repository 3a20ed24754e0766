"""Fine-tuning a model of Hugging Face: the result loads with from_pretrained and is the model that was trained."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
import checkpoint  # noqa: E402
import pretrained  # noqa: E402
import process_group  # noqa: E402
from model import build_model  # noqa: E402
from optimizer import make_optimizer, update  # noqa: E402
from options import Options, Problem  # noqa: E402
from torch.distributed.checkpoint import FileSystemReader  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TOKENS = torch.tensor([[5, 6, 7, 8, 9, 10, 11]])


@pytest.fixture(scope="module")
def group():
    process_group.start({})
    yield
    process_group.stop()


def logits(model):
    model.eval()
    with torch.no_grad():
        return model(TOKENS).logits


def loaded(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def trained(options, steps=3):
    model = build_model(options, 300)
    optimizer = make_optimizer(model, options)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    loss = torch.nn.functional.cross_entropy(model(TOKENS[:, :-1]).logits.flatten(0, 1), TOKENS[0, 1:])
    loss.backward()
    update(model, optimizer, 1.0)
    return loss.item()


def test_a_model_is_loaded_in_fp32_and_in_training_mode(llama):
    model = build_model(Options(model=str(llama), activation_checkpointing=True), 300)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.training
    assert model.is_activation_checkpointing
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_the_result_loads_with_from_pretrained_and_has_the_same_logits(tmp_path, llama, tokenizer, group):
    model, _ = trained(Options(model=str(llama)))
    model.lm_head.requires_grad_(False)  # tied to the embedding
    pretrained.save(model, pretrained.gathered(model), str(llama), tmp_path / "model")
    again = loaded(tmp_path / "model")
    assert torch.equal(logits(again), logits(model))
    assert not torch.equal(logits(again), logits(loaded(llama)))
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert pretrained.load_tokenizer(str(tmp_path / "model")).chat_template == tokenizer.chat_template


def test_a_result_is_replaced_and_never_half_there(tmp_path, llama, group, monkeypatch):
    model, _ = trained(Options(model=str(llama)), steps=1)
    pretrained.save(model, pretrained.gathered(model), str(llama), tmp_path / "model")
    monkeypatch.setattr(pretrained.os, "rename", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    (tmp_path / "other").mkdir()
    with pytest.raises(OSError, match="killed"):
        pretrained.save(model, pretrained.gathered(model), str(llama), tmp_path / "never")
    assert not (tmp_path / "never").exists()
    monkeypatch.undo()
    pretrained.save(model, pretrained.gathered(model), str(llama), tmp_path / "model")
    assert torch.equal(logits(loaded(tmp_path / "model")), logits(model))


@pytest.mark.parametrize("hole", ["missing", "empty"])
def test_a_state_with_holes_is_not_saved(tmp_path, llama, group, hole):
    model = build_model(Options(model=str(llama)), 300)
    state = pretrained.gathered(model)
    if hole == "missing":
        del state["model.norm.weight"]
    else:
        state["model.norm.weight"] = torch.empty(0)
    with pytest.raises(RuntimeError, match=r"model\.norm\.weight of \d+ tensors are not there"):
        pretrained.save(model, state, str(llama), tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---- adapters ----


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's
def test_lora_changes_only_adapters_and_loads_with_peft_and_with_from_pretrained(tmp_path, llama, group):
    peft = pytest.importorskip("peft")
    model, optimizer = trained(Options(model=str(llama), lora_rank=4))
    assert (
        sum(len(group["params"]) for group in optimizer.param_groups) == 2 * 7 * 2
    )  # two matrices, 7 layers, 2 blocks
    base = loaded(llama).state_dict()
    kept = {name.replace(".base_layer", ""): tensor for name, tensor in model.base_model.model.state_dict().items()}
    assert all(torch.equal(kept[name], tensor) for name, tensor in base.items())
    pretrained.save(model, pretrained.gathered(model), str(llama), tmp_path / "model")
    assert (tmp_path / "model" / "adapter_model.safetensors").stat().st_size < 100_000
    assert torch.equal(logits(peft.PeftModel.from_pretrained(loaded(llama), tmp_path / "model")), logits(model))
    assert torch.equal(logits(loaded(tmp_path / "model")), logits(model))
    assert not torch.equal(logits(model), logits(loaded(llama)))


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_resume_goes_on_exactly(tmp_path, llama, group, lora_rank):
    pytest.importorskip("peft")
    options = Options(model=str(llama), lora_rank=lora_rank)
    model, optimizer = trained(options)
    checkpoint.write_state(tmp_path, model, optimizer)
    expected = [step(model, optimizer) for _ in range(3)]
    other, other_optimizer = trained(options, steps=0)
    checkpoint.read_state(tmp_path, other, other_optimizer)
    assert [step(other, other_optimizer) for _ in range(3)] == expected
    written = FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    assert any("lora_A" in name for name in written) == bool(lora_rank)
    assert not [name for name in written if "base_layer" in name]


# ---- what is refused ----


def without_weights(folder):
    for file in folder.glob("*.safetensors"):
        file.unlink()


def unknown_kind(folder):
    (folder / "config.json").write_text('{"model_type": "of the future"}')


def cold_temperature(folder):
    (folder / "generation_config.json").write_text('{"max_new_tokens": -1}')


@pytest.mark.parametrize("spoil", [without_weights, unknown_kind, cold_temperature])
def test_a_folder_that_cannot_be_loaded_or_saved_is_named(own_llama, spoil):
    spoil(own_llama)
    with pytest.raises(Problem, match=f"--model {own_llama}: ") as caught:
        build_model(Options(model=str(own_llama)), 300)
    assert "\n" not in caught.value.problem


def test_a_temperature_without_sampling_does_not_spoil_the_save(tmp_path, own_llama, group):
    (own_llama / "generation_config.json").write_text('{"temperature": 0.5}')
    model = build_model(Options(model=str(own_llama)), 300)
    pretrained.save(model, pretrained.gathered(model), str(own_llama), tmp_path / "model")
    assert loaded(tmp_path / "model").generation_config.temperature == 0.5


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere"])
def test_a_folder_that_is_not_there_is_named(name):
    with pytest.raises(Problem, match=f"--model {name}: no such folder"):
        pretrained.load_tokenizer(name)


def test_a_hub_id_out_of_reach_is_named(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Problem, match="--model nobody/no-such-model: no tokenizer to load from it"):
        pretrained.load_tokenizer("nobody/no-such-model")


def test_a_tokenizer_with_more_tokens_than_the_model_is_told(llama):
    with pytest.raises(Problem, match="its tokenizer has 70000 tokens, its embedding"):
        build_model(Options(model=str(llama)), 70_000)


def test_more_positions_than_the_model_has_are_refused(llama):
    with pytest.raises(Problem, match=r"--seq-length 4096: the model of --model .* has 2048 positions"):
        build_model(Options(model=str(llama), seq_length=4096), 300)
    build_model(Options(model=str(llama), seq_length=2048), 300)


# ---- as a user runs it ----


def train(volume, recipe, *arguments, code=0, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": str(volume), "TRAIN_VOLUME": str(volume), **variables}
    command = [sys.executable, "-m", "entrypoint", "train", recipe, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_ddp_fine_tunes_on_conversations_and_leaves_a_model_that_has_learnt_them(tmp_path, llama, tokenizer):
    chats = [
        [{"role": "user", "content": f"{n} times {n}"}, {"role": "assistant", "content": f"is {n * n}"}]
        for n in range(200)
    ]
    data = tmp_path / "chat.jsonl"
    data.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    arguments = ("--model", llama, "--data", data, "--seq-length", 32, "--steps", 60, "--lr", "1e-2")
    output = train(tmp_path, "ddp", *arguments)
    run = tmp_path / "runs" / "ddp"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert records[0]["loss"] > 4
    assert records[-1]["loss"] < 2.5
    assert json.loads((run / "summary.json").read_text())["validation_loss"] < 3
    assert "for from_pretrained" in output
    before, after = (answer_loss(loaded(folder), tokenizer) for folder in (llama, run / "model"))
    assert after < before / 2
    refused = train(tmp_path, "ddp", *arguments, "--lora-rank", 2, code=78)
    assert "lora_rank is 2 now" in refused


def answer_loss(model, tokenizer):
    ids = torch.tensor([tokenizer("<|user|>7 times 7<|end|><|assistant|>is 49<|end|>").input_ids])
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(ids).logits[0, -5:-1], ids[0, -4:]).item()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--lora-rank", "4"), "--lora-rank 4 without --model"),
        (("--model", "/no/such/folder"), "--model /no/such/folder: no such folder"),
    ],
)
def test_a_wrong_model_is_one_line_and_a_fix(tmp_path, arguments, said):
    (tmp_path / "a.txt").write_text("a line of text\n" * 1000)
    output = train(tmp_path, "ddp", "--data", tmp_path / "a.txt", *arguments, code=78)
    assert said in output
    assert "fix:" in output
    assert "Traceback" not in output
