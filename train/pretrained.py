"""A causal language model of Hugging Face and its tokenizer: loaded, made ready to train, saved for from_pretrained."""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from options import Options, Problem
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

Loaded = TypeVar("Loaded")


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    return _load("tokenizer", model, lambda: AutoTokenizer.from_pretrained(model, trust_remote_code=False))


def tokenizer_identity(tokenizer: Any) -> str:
    """Changes with what decides the tokens of a text or of a conversation."""
    rules = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(tokenizer.get_vocab())
    parts = [rules, str(tokenizer.chat_template), str(tokenizer.special_tokens_map)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_model(options: Options, vocabulary: int, *, skeleton: bool = False) -> nn.Module:
    """The model of --model in fp32, in training mode, with adapters where --lora-rank asks for them.

    The same on every rank: adapters start from the seed that torch was given. A skeleton is made from the
    configuration alone, for who fills in the weights.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of every rank, into the log
    name = options.model
    assert name is not None
    # Adapters name their base, for who loads them from elsewhere.
    source = str(Path(name).resolve()) if Path(name).is_dir() else name
    loading = {"dtype": torch.float32, "trust_remote_code": False}
    if skeleton:
        config = _load("configuration", name, lambda: AutoConfig.from_pretrained(source, trust_remote_code=False))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    else:
        model = _load("model", name, lambda: AutoModelForCausalLM.from_pretrained(source, **loading))
    rows = model.get_input_embeddings().num_embeddings
    if vocabulary > rows:
        raise Problem(
            f"--model {name}: its tokenizer has {vocabulary} tokens, its embedding {rows} rows",
            fix="a folder whose tokenizer and model belong together",
        )
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions and options.seq_length > positions:
        raise Problem(
            f"--seq-length {options.seq_length}: the model of --model {name} has {positions} positions",
            fix=f"--seq-length {positions} or less",
        )
    model.config.use_cache = False
    _make_savable(model, name)
    if options.activation_checkpointing:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    if options.lora_rank:
        model = _with_adapters(model, options.lora_rank)
    return model.train()  # type: ignore[no-any-return]


def is_pretrained(model: nn.Module) -> bool:
    """Whether `save` can save it: a model of transformers, or of peft around one."""
    return hasattr(model, "save_pretrained")


def gathered(model: nn.Module) -> dict[str, Tensor]:
    """The whole state of a model, wrapped or sharded or neither, on the CPU of rank 0; empty on the others."""
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return dict(state)


def save(model: nn.Module, state: Mapping[str, Tensor], name: str, folder: Path) -> None:
    """Write what from_pretrained loads, tokenizer included, into `folder`; for rank 0, with the gathered state.

    With adapters it is the adapters that are written, for peft and, where the base model is still there, for
    from_pretrained.
    """
    _refuse_holes(model, state, folder)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    # Else peft asks the hub whether the embedding is still of the base model's size; we never change it.
    more = {"save_embedding_layers": False} if hasattr(model, "peft_config") else {}
    model.save_pretrained(partial, state_dict=dict(state), **more)  # type: ignore[operator]
    _name_dtype(partial / "config.json", state)
    load_tokenizer(name).save_pretrained(partial)
    if folder.exists():
        shutil.rmtree(folder)
    os.rename(partial, folder)


def _load(what: str, name: str, load: Callable[[], Loaded]) -> Loaded:
    if name.startswith(("/", ".", "~")) and not Path(name).is_dir():
        raise Problem(f"--model {name}: no such folder", fix="a folder that this node can read, or a hub id")
    try:
        return load()
    except (OSError, ValueError) as error:  # not there, not reachable, of no known kind
        reason = " ".join(str(error).split())
        fix = "a folder that save_pretrained wrote" if Path(name).is_dir() else "a folder, or a hub id in reach"
        raise Problem(f"--model {name}: no {what} to load from it ({reason[:300]})", fix=fix) from None


def _with_adapters(model: Any, rank: int) -> Any:
    try:
        from peft import LoraConfig, TaskType, get_peft_model
    except ImportError:
        raise Problem(f"--lora-rank {rank}: peft is not installed", fix="pip install peft") from None
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    with warnings.catch_warnings():  # peft asks transformers by a name that is going away
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(model, config)


def _make_savable(model: Any, name: str) -> None:
    """save_pretrained refuses a generation config that from_pretrained let pass: better known now than at the end."""
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config.do_sample = True  # nearly always: a temperature is given, but no sampling
    try:
        model.generation_config.validate(strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise Problem(f"--model {name}: generation_config.json is invalid ({reason})", fix="correct it") from None


def _name_dtype(config: Path, state: Mapping[str, Tensor]) -> None:
    """Where a model computes in bf16 and its fp32 weights are saved, from_pretrained would round them again."""
    if config.exists():
        dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
        about = json.loads(config.read_text())
        about["dtype"] = str(max(dtypes, key=lambda dtype: dtype.itemsize)).removeprefix("torch.")
        config.write_text(json.dumps(about, indent=2) + "\n")


def _refuse_holes(model: nn.Module, state: Mapping[str, Tensor], folder: Path) -> None:
    """A state that was not gathered has empty tensors or lacks some (DeepSpeed#2413)."""
    # as gathered() names them, without the wrappers of torch.compile and of activation checkpointing
    wanted = {re.sub(r"_orig_mod\.|_checkpoint_wrapped_module\.", "", key) for key in model.state_dict()}
    holes = sorted(wanted - state.keys()) + [name for name, tensor in state.items() if not tensor.numel()]
    if holes:
        raise RuntimeError(f"not saved to {folder}: {', '.join(holes[:3])} of {len(wanted)} tensors are not there")
