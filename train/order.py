"""Which samples a step sees: a function of (seed, step) alone, the same on 1, 2 or 64 processes and after a resume."""

import hashlib
from functools import lru_cache

import numpy as np

_STEPS_AT_ONCE = 32  # numpy costs by the call, not by the number
_ROUNDS = 4  # Luby and Rackoff 1988: four rounds of a pseudorandom function make a pseudorandom permutation


def samples_of_step(seed: int, step: int, global_batch: int, count: int) -> np.ndarray:
    """Indices (global_batch,) of the samples that update `step` sees, out of `count`; each epoch sees each once."""
    return _samples_of_block(seed, step // _STEPS_AT_ONCE, global_batch, count)[step % _STEPS_AT_ONCE]


@lru_cache(maxsize=2)
def _samples_of_block(seed: int, block: int, global_batch: int, count: int) -> np.ndarray:
    """Indices (steps, global_batch) of the samples of as many steps as are made at once."""
    size = _STEPS_AT_ONCE * global_batch
    positions = np.arange(block * size, (block + 1) * size, dtype=np.int64)
    epochs = positions // count
    parts = [shuffled(positions[epochs == epoch] % count, count, seed, int(epoch)) for epoch in np.unique(epochs)]
    samples = np.concatenate(parts).reshape(_STEPS_AT_ONCE, global_batch)
    samples.flags.writeable = False  # it is shared
    return samples


def shuffled(positions: np.ndarray, count: int, seed: int, epoch: int) -> np.ndarray:
    """Where a permutation of range(count), drawn from (seed, epoch), takes these positions.

    A Feistel network with cycle walking (Black and Rogaway 2002): no table of `count` entries to hold, and no
    random stream of a library whose next release may draw other numbers, which would change the order of a resume.
    """
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = _round_keys(seed, epoch)
    walked = _feistel(positions.astype(np.uint64), half_bits, keys)
    while (outside := walked >= count).any():
        walked[outside] = _feistel(walked[outside], half_bits, keys)
    return walked.astype(np.int64)


def _round_keys(seed: int, epoch: int) -> np.ndarray:
    digest = hashlib.sha256(f"data order {seed} {epoch}".encode()).digest()
    return np.frombuffer(digest, dtype="<u8")[:_ROUNDS]


def _feistel(values: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    mask = np.uint64((1 << half_bits) - 1)
    left, right = values >> np.uint64(half_bits), values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << np.uint64(half_bits)) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
