"""Conversations → tokens, and which of them the model is to learn: those that the assistant said."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from documents import Piece
from options import Problem

# A template that marks what the assistant generates, as transformers recognises it.
_MARKS_ANSWERS = re.compile(r"\{%-?\s*generation\s*-?%\}")

Message = dict[str, Any]
Tools = list[dict[str, Any]] | None
Tokens = tuple[list[int], list[int]]  # ids, and 1 for each that is learnt
_QUESTION: Message = {"role": "user", "content": "?"}


def tokenize(tokenizer: Any, piece: Piece) -> Iterator[Tokens]:
    """The samples of one conversation: itself, or one for each answer where the template rewrites earlier turns."""
    messages, tools = piece.content, piece.tools
    assert isinstance(messages, list)
    if not any(message["role"] == "assistant" for message in messages):
        raise Problem(f"{piece.where}: no message of the role 'assistant', nothing to learn", fix="remove this record")
    template = tokenizer.get_chat_template(tools=tools)
    if tools and "tools" not in template:  # transformers would leave them out without a word
        raise Problem(
            f"{piece.where}: {len(tools)} tools, which the chat template does not show to the model",
            fix="a --model whose chat template takes tools, or remove them from the records",
        )
    samples = _marked if _MARKS_ANSWERS.search(template) else _by_prefixes
    try:
        yield from samples(tokenizer, messages, tools)
    except _Rewritten:
        raise Problem(
            f"{piece.where}: the chat template does not begin an answer as it begins the prompt for it",
            fix="a template with {% generation %} around the assistant's answer",
        ) from None
    except (ValueError, TypeError, _template_error()) as error:
        raise Problem(f"{piece.where}: the chat template refuses it ({error})", fix="correct this record") from None


class _Rewritten(Exception):
    """A conversation does not begin with the text of its own beginning."""


def _marked(tokenizer: Any, messages: Sequence[Message], tools: Tools) -> Iterator[Tokens]:
    found = tokenizer.apply_chat_template(messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True)
    yield found["input_ids"], found["assistant_masks"]


def _by_prefixes(tokenizer: Any, messages: Sequence[Message], tools: Tools) -> Iterator[Tokens]:
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    try:
        yield _tokens(tokenizer, messages, answers, tools)
    except _Rewritten:
        # Templates of reasoning models drop the thoughts of earlier turns: each answer with what preceded it.
        for number in answers:
            yield _tokens(tokenizer, messages[: number + 1], [number], tools)


def _tokens(tokenizer: Any, messages: Sequence[Message], answers: Sequence[int], tools: Tools) -> Tokens:
    """Ids, learnt where a token begins in an answer. Compared as text: tokens may merge where an answer begins."""
    text = _render(tokenizer, messages, tools)
    spans = []
    for number in answers:
        after = _render(tokenizer, messages[: number + 1], tools)
        if not text.startswith(after):
            raise _Rewritten
        spans.append((_begin(tokenizer, messages[:number], after, tools), len(after)))
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    learn = [int(any(begin <= at < end for begin, end in spans)) for at, _ in found["offset_mapping"]]
    return found["input_ids"], learn


def _begin(tokenizer: Any, before: Sequence[Message], after: str, tools: Tools) -> int:
    """Where the answer to the messages `before` begins in `after`, the text of these and of the answer."""
    if before:
        prompt = _render(tokenizer, before, tools, add_generation_prompt=True)
        if not after.startswith(prompt):
            raise _Rewritten
        return len(prompt)
    # No template takes an empty conversation: the header of an answer is what follows a question.
    asked, prompt = (_render(tokenizer, [_QUESTION], tools, add_generation_prompt=wanted) for wanted in (False, True))
    header = prompt.removeprefix(asked)
    if header not in after:
        raise _Rewritten
    return after.index(header) + len(header)


def _render(tokenizer: Any, messages: Sequence[Message], tools: Tools, *, add_generation_prompt: bool = False) -> str:
    text = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
    )
    assert isinstance(text, str)
    return text


def _template_error() -> type[Exception]:
    from jinja2 import TemplateError

    return TemplateError
