"""Keeps secrets out of what is shown and written: plans, records of a run, messages. Pure.

What a training or a hook prints by itself is its own and is not looked at.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
_ANYWHERE = {"SECRET", "SECRETS", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"}
_LAST = {"TOKEN", "KEY", "APIKEY", "AUTH", "PASS"}  # TOKENIZERS_PARALLELISM and SSH_KEY_FILE are none
_SHORTEST = 4  # a secret of three letters would blacken every other word
_USER_INFO = re.compile(r"(?<=://)[^/\s@]+(?=@)")  # https://user:token@host/


def is_secret(name: str) -> bool:
    """Whether a variable or an option is called like a secret.

    >>> [name for name in ("HF_TOKEN", "--api-key", "RUNPOD_SECRET_x", "TOKENIZERS_PARALLELISM") if is_secret(name)]
    ['HF_TOKEN', '--api-key', 'RUNPOD_SECRET_x']
    """
    words = re.split(r"[^A-Z0-9]+", name.upper())
    return not _ANYWHERE.isdisjoint(words) or words[-1] in _LAST


def secrets_of(variables: Mapping[str, str]) -> tuple[str, ...]:
    """The values to hide, the longest first: one may be part of another."""
    values = {
        each
        for name, value in variables.items()
        if is_secret(name)
        for each in {value, value.strip()}
        if len(each) >= _SHORTEST
    }
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def mask_text(text: str, secrets: Sequence[str]) -> str:
    """
    >>> mask_text("git+https://me:abc@host/x and s3cr3t", ["s3cr3t"])
    'git+https://***@host/x and ***'
    """
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _USER_INFO.sub(HIDDEN, text)


def mask_words(words: Sequence[str], secrets: Sequence[str]) -> list[str]:
    """A command: the values of options that are called like a secret too.

    >>> mask_words(["--hf-token", "abc", "--api_key=def", "--steps=3"], [])
    ['--hf-token', '***', '--api_key=***', '--steps=3']
    """
    masked: list[str] = []
    follows = False
    for word in words:
        name, equals, _ = word.partition("=")
        secret = name.startswith("-") and is_secret(name)
        masked.append(HIDDEN if follows else f"{name}={HIDDEN}" if secret and equals else mask_text(word, secrets))
        follows = secret and not equals and not follows
    return masked


def mask(value: Any, secrets: Sequence[str]) -> Any:
    """Lists, dictionaries and texts of any depth, as JSON holds them."""
    if isinstance(value, str):
        return mask_text(value, secrets)
    if isinstance(value, Mapping):
        return {key: mask(each, secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if all(isinstance(each, str) for each in value):
            return mask_words(value, secrets)
        return [mask(each, secrets) for each in value]
    return value
