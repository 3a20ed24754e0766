"""A small model of Hugging Face with a real tokenizer, as folders that save_pretrained wrote."""

import pytest

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = [f"{n} times {n} is {n * n}, said the teacher to the pupil\n" for n in range(2000)]


@pytest.fixture(scope="session")
def tokenizer():
    """Byte-level BPE of a few hundred tokens, trained here, with a chat template."""
    pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<|eos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|eos|>", additional_special_tokens=special[1:])
    fast.chat_template = TEMPLATE
    return fast


@pytest.fixture(scope="session")
def llama(tokenizer, tmp_path_factory):
    """A random Llama of two layers, 64 wide, whose head is its embedding, saved with its tokenizer."""
    return _save_llama(tokenizer, tmp_path_factory.mktemp("llama"))


@pytest.fixture
def own_llama(tokenizer, tmp_path):
    """The same, for a test that spoils it."""
    return _save_llama(tokenizer, tmp_path / "llama")


def _save_llama(tokenizer, folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def with_unused(tokenizer, tmp_path_factory):
    """A random GPT-2 of two layers with attention to an encoder that is not there: eight weights a layer are unused."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("with_unused")
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": len(tokenizer)}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    end = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    GPT2LMHeadModel(GPT2Config(**sizes, **dropout, **end, add_cross_attention=True)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
