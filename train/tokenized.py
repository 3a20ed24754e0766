"""--data → token arrays on the volume, for samples.open_prepared; nothing of the corpus is held in memory.

Text is one stream of tokens, with the tokenizer's end-of-text after each document; a conversation is a sample of its
own. Each 20th document is validation (a long text file counts as several).
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import chat
import numpy as np
import pretrained
import samples
from documents import Piece, has_records, read_pieces
from options import Options, Problem
from splits import SplitFile

_VALIDATION_EVERY = 20
_LEAST_TOKENS = 256
_AT_ONCE = 1 << 20  # characters that the tokenizer is given together: it works on them in parallel


class Tokenizer(Protocol):
    """`identity` changes when the tokens of the same text would."""

    identity: str
    vocabulary: int

    def text(self, pieces: Sequence[Piece]) -> Iterator[np.ndarray]: ...

    def conversation(self, piece: Piece) -> Iterator[chat.Tokens]: ...


def prepare(options: Options, folder: Path) -> None:
    """Write the samples of --data into `folder`, unless they are there; for one process of all."""
    try:
        _prepare(options, folder)
    except OSError as error:
        raise Problem(
            f"--data: {error.filename or folder}: {error.strerror or error}",
            fix="make it readable for this user, or make room on the volume",
        ) from None


def _prepare(options: Options, folder: Path) -> None:
    files = samples.find_files(options.data)
    if options.model is None and not has_records(files):
        samples.prepare_bytes(options.data, folder)
        return
    tokenizer: Tokenizer = Pretrained(options.model) if options.model else Bytes()

    def write() -> dict[str, Any]:
        return _write(folder, read_pieces(files, options.text_field), tokenizer, options) | {"files": len(files)}

    source = samples.source_of(files, options.text_field, tokenizer.identity)
    samples.prepare_once(folder, source, write)


class Bytes:
    """Without --model a token is a byte."""

    identity = "bytes"
    vocabulary = samples.BYTES

    def text(self, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
        for piece in pieces:
            assert isinstance(piece.content, str)
            text = piece.content.encode(errors="replace") + (samples.END_OF_FILE if piece.ends else b"")
            yield np.frombuffer(text, np.uint8)

    def conversation(self, piece: Piece) -> Iterator[chat.Tokens]:
        raise Problem(f"{piece.where}: a conversation needs a chat template", fix="--model with one, or --text-field")


class Pretrained:
    """The tokenizer of --model. Where it begins a text with a token of its own, so does each document."""

    def __init__(self, model: str) -> None:
        self._model, self._tokenizer = model, pretrained.load_tokenizer(model)
        self.identity = pretrained.tokenizer_identity(self._tokenizer)
        self.vocabulary = 1 + max(self._tokenizer.get_vocab().values())
        first, last = self._tokenizer.bos_token_id, self._tokenizer.eos_token_id
        self._before = [first] if first in self._tokenizer("").input_ids else []
        self._after = [] if last is None else [last]

    def text(self, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
        texts = [piece.content for piece in pieces]
        all_ids = self._tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
        for piece, ids in zip(pieces, all_ids, strict=True):
            yield np.array([*(self._before if piece.begins else []), *ids, *(self._after if piece.ends else [])])

    def conversation(self, piece: Piece) -> Iterator[chat.Tokens]:
        if not self._tokenizer.chat_template:
            raise Problem(
                f"{piece.where}: a conversation, but the tokenizer of {self._model} has no chat template",
                fix="--model with a chat template, or --text-field with the text of the conversation",
            )
        if not self._tokenizer.is_fast:
            raise Problem(
                f"{piece.where}: the tokenizer of {self._model} cannot say which text a token stands for",
                fix="--model with a fast tokenizer (tokenizer.json)",
            )
        return chat.tokenize(self._tokenizer, piece)


def _write(folder: Path, pieces: Iterator[Piece], tokenizer: Tokenizer, options: Options) -> dict[str, Any]:
    dtype = np.dtype(np.uint8 if tokenizer.vocabulary <= 1 << 8 else "u2" if tokenizer.vocabulary <= 1 << 16 else "u4")
    progress, documents, is_chat = Progress(), 0, False
    with SplitFile(folder / "train", dtype) as train, SplitFile(folder / "validation", dtype) as validation:
        splits = (train, validation)
        for group in _groups(pieces):
            is_chat = _same_kind(group, is_chat if documents else isinstance(group[0].content, list))
            for document in _tokens(group, tokenizer, is_chat):
                for tokens, learn in document:  # into one split: the answers of a conversation share their beginning
                    splits[documents % _VALIDATION_EVERY == _VALIDATION_EVERY - 1].add(tokens, learn)
                documents += 1
            progress.told(documents, train.count + validation.count)
    asked = f"--data {' '.join(options.data)}"
    (_part_conversations if is_chat else _part_text)(splits, documents, asked)
    digest = hashlib.sha256()
    for split in splits:
        split.commit(digest)
    return {
        "fingerprint": digest.hexdigest(),
        "vocabulary": tokenizer.vocabulary,
        "dtype": dtype.name,
        "chat": is_chat,
    }


def _groups(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Pieces that are tokenized together."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.content) if isinstance(piece.content, str) else 1 << 10
        if size >= _AT_ONCE:
            yield group
            group, size = [], 0
    if group:
        yield group


def _same_kind(group: Sequence[Piece], is_chat: bool) -> bool:
    for piece in group:
        if isinstance(piece.content, list) != is_chat:
            kinds = ("text", "a conversation") if is_chat else ("a conversation", "text")
            raise Problem(
                f"{piece.where}: {kinds[0]}, where what came before it is {kinds[1]}",
                fix="train on one kind at a time",
            )
    return is_chat


def _tokens(
    group: Sequence[Piece], tokenizer: Tokenizer, is_chat: bool
) -> Iterator[list[tuple[np.ndarray, np.ndarray | None]]]:
    """The samples of each document: of a conversation there may be several."""
    if not is_chat:
        yield from ([(tokens, None)] for tokens in tokenizer.text(group))
        return
    for piece in group:
        yield [(np.array(ids), np.array(learn, np.uint8)) for ids, learn in tokenizer.conversation(piece)]


def _part_text(splits: Sequence[SplitFile], documents: int, asked: str) -> None:
    """Where documents are too few or too uneven to share out, every 20th block of the stream is validation."""
    total = sum(split.count for split in splits)
    if total < _LEAST_TOKENS:
        raise Problem(f"{asked}: {total} tokens of text are too few to train on", fix="give more text")
    if splits[1].count * 100 >= total:
        return
    for split, part in zip(splits, samples.cut(np.concatenate([split.tokens() for split in splits])), strict=True):
        split.replace(part)


def _part_conversations(splits: Sequence[SplitFile], documents: int, asked: str) -> None:
    """Of fewer than 20 conversations the last one is validation."""
    if documents < 2:
        raise Problem(f"{asked}: {documents} conversations are too few to train on and validate", fix="give more")
    if splits[1].count == 0:
        splits[0].move_last_to(splits[1])


class Progress:
    """A line when preparing has taken two seconds, and every ten seconds from then on."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say, self._began = say, time.monotonic()
        self._next = self._began + 2

    def told(self, documents: int, tokens: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 10
            self._say(f"data  {documents:,} documents, {tokens:,} tokens prepared in {now - self._began:.0f} s")
