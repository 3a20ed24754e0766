"""A decoder in the style of Llama: RMSNorm before each block, rotary positions, grouped queries, SwiGLU."""

from dataclasses import dataclass

import pretrained
import torch
import torch.nn.functional as F
from accelerate import init_empty_weights
from options import Options
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class Size:
    """Counts of layers and heads, and widths in features."""

    layers: int
    width: int
    heads: int
    key_heads: int
    hidden: int


SIZES = {
    "tiny": Size(4, 128, 4, 2, 352),
    "124m": Size(12, 768, 12, 12, 2048),
    "350m": Size(24, 1024, 16, 16, 2752),
    "1b": Size(16, 2048, 32, 8, 8192),
    "3b": Size(28, 3072, 24, 8, 8192),
    "8b": Size(32, 4096, 32, 8, 14336),
}


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_width = size.heads, size.key_heads, size.width // size.heads
        self.q = nn.Linear(size.width, size.heads * self.head_width, bias=False)
        self.k = nn.Linear(size.width, size.key_heads * self.head_width, bias=False)
        self.v = nn.Linear(size.width, size.key_heads * self.head_width, bias=False)
        self.out = nn.Linear(size.heads * self.head_width, size.width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        samples, length, _ = x.shape
        q = self.q(x).view(samples, length, self.heads, self.head_width).transpose(1, 2)
        k = self.k(x).view(samples, length, self.key_heads, self.head_width).transpose(1, 2)
        v = self.v(x).view(samples, length, self.key_heads, self.head_width).transpose(1, 2)
        grouped = self.heads != self.key_heads
        mixed = F.scaled_dot_product_attention(
            rotate(q, rotation), rotate(k, rotation), v, is_causal=True, enable_gqa=grouped
        )
        return self.out(mixed.transpose(1, 2).reshape(samples, length, -1))


class FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate = nn.Linear(size.width, size.hidden, bias=False)
        self.up = nn.Linear(size.width, size.hidden, bias=False)
        self.down = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.RMSNorm(size.width)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Decoder(nn.Module):
    """Tokens (samples, length) → logits (samples, length, vocabulary)."""

    def __init__(self, size: Size, vocabulary: int) -> None:
        super().__init__()
        self.size = size
        self.checkpointed = False  # compute activations again in backward instead of keeping them
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        self.apply(self._start)

    def _start(self, module: nn.Module) -> None:
        """GPT-2's start: normal with 0.02, and what ends a residual branch divided by √(2 × layers)."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Attention):
            nn.init.normal_(module.out.weight, std=0.02 / (2 * self.size.layers) ** 0.5)
        if isinstance(module, FeedForward):
            nn.init.normal_(module.down.weight, std=0.02 / (2 * self.size.layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        rotation = rotations(tokens.shape[1], self.size.width // self.size.heads, tokens.device)
        for block in self.blocks:
            again = self.checkpointed and self.training
            # Reentrant checkpointing marks parameters ready twice under DDP (accelerate#2017).
            x = checkpoint(block, x, rotation, use_reentrant=False) if again else block(x, rotation)
        return self.head(self.norm(x))

    @torch.no_grad()
    def generate(self, tokens: Tensor, new_tokens: int, context: int, temperature: float, seed: int) -> Tensor:
        """Continue tokens (1, length) by sampling; `context` is the longest input that the model was trained on."""
        generator = torch.Generator(device="cpu").manual_seed(seed)
        for _ in range(new_tokens):
            logits = self(tokens[:, -context:])[:, -1].float().cpu() / temperature
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, drawn.to(tokens.device)], dim=1)
        return tokens


def build_model(options: Options, vocabulary: int, *, skeleton: bool = False) -> nn.Module:
    """The model that the options ask for, with the weights that --model or else the seed gives, on the CPU."""
    torch.manual_seed(options.seed)
    if options.model:
        return pretrained.load_model(options, vocabulary, skeleton=skeleton)
    model = Decoder(SIZES[options.model_size], vocabulary)
    model.checkpointed = options.activation_checkpointing
    return model


def build_skeleton(options: Options, vocabulary: int) -> nn.Module:
    """The same model with its parameters on the meta device, to be filled by a broadcast; its buffers are real."""
    with init_empty_weights(include_buffers=False):
        model = build_model(options, vocabulary, skeleton=True)
    if hasattr(model, "tie_weights"):  # each use of a shared weight was given a parameter of its own
        model.tie_weights()
    return model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated layers: the longest list of modules in it."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


def compile_blocks(model: nn.Module) -> None:
    """Compile each layer in place, so that names of parameters stay; alike layers are compiled once."""
    for block in blocks_of(model):
        block.compile()


def rotations(length: int, width: int, device: torch.device, base: float = 10_000.0) -> Tensor:
    """Cosines and sines (2, length, width / 2) of the angles position × base^(-2i/width) (RoPE, Su et al. 2021)."""
    frequencies = base ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs (i, i + width / 2) of x (…, length, width) by their position's angle."""
    cos, sin = rotation.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
