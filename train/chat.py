"""Conversations → tokens, and which of them the model is to learn: those that the assistant said."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from documents import Piece
from options import Problem

# A template that marks what the assistant generates, as transformers recognises it.
_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")

Message = dict[str, Any]
Tokens = tuple[list[int], list[int]]  # ids, and 1 for each that is learnt


def tokenize(tokenizer: Any, piece: Piece) -> Iterator[Tokens]:
    """The samples of one conversation: itself, or one for each answer where the template rewrites earlier turns."""
    messages = piece.content
    assert isinstance(messages, list)
    if not any(message["role"] == "assistant" for message in messages):
        raise Problem(f"{piece.where}: no message of the role 'assistant', nothing to learn", fix="remove this record")
    try:
        yield from _marked(tokenizer, messages) if marks_answers(tokenizer) else _by_prefixes(tokenizer, messages)
    except _Rewritten:
        raise Problem(
            f"{piece.where}: the chat template does not begin an answer as it begins the prompt for it",
            fix="a template with {% generation %} around the assistant's answer",
        ) from None
    except (ValueError, TypeError, _template_error()) as error:
        raise Problem(f"{piece.where}: the chat template refuses it ({error})", fix="correct this record") from None


def marks_answers(tokenizer: Any) -> bool:
    return bool(_MARKS_ANSWERS.search(tokenizer.get_chat_template()))


class _Rewritten(Exception):
    """A conversation does not begin with the text of its own beginning."""


def _marked(tokenizer: Any, messages: Sequence[Message]) -> Iterator[Tokens]:
    found = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    yield found["input_ids"], found["assistant_masks"]


def _by_prefixes(tokenizer: Any, messages: Sequence[Message]) -> Iterator[Tokens]:
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    try:
        yield _tokens(tokenizer, messages, answers)
    except _Rewritten:
        # Templates of reasoning models drop the thoughts of earlier turns: each answer with what preceded it.
        for number in answers:
            yield _tokens(tokenizer, messages[: number + 1], [number])


def _tokens(tokenizer: Any, messages: Sequence[Message], answers: Sequence[int]) -> Tokens:
    """Ids, learnt where a token begins in an answer. Compared as text: tokens may merge where an answer begins."""
    text = _render(tokenizer, messages)
    spans = []
    for number in answers:
        before = _render(tokenizer, messages[:number], add_generation_prompt=True)
        after = _render(tokenizer, messages[: number + 1])
        if not (after.startswith(before) and text.startswith(after)):
            raise _Rewritten
        spans.append((len(before), len(after)))
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learn = [int(any(begin <= at < end for begin, end in spans)) for at, _ in found["offset_mapping"]]
    return found["input_ids"], learn


def _render(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
    if not messages:
        return ""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt)
    assert isinstance(text, str)
    return text


def _template_error() -> type[Exception]:
    from jinja2 import TemplateError

    return TemplateError
