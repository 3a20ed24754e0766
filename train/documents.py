"""The documents of --data, read as a stream: text files, JSON lines, Parquet."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from options import Problem

BINARY = b"\0"  # occurs in no text file: so git and grep tell binary files
MESSAGES, TOOLS = "messages", "tools"
_BLOCK = 1 << 16  # characters of a text file that are taken at once
_RECORDS = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True)
class Piece:
    """A document or, of a long text file, some lines of it; `where` it stands, for who has to put it right."""

    content: str | list[dict[str, Any]]  # text, or the messages of a conversation
    where: str
    begins: bool = True
    ends: bool = True
    tools: list[dict[str, Any]] | None = None  # that the assistant of the conversation may call, as JSON schemas


def has_records(files: Iterable[Path]) -> bool:
    return any(path.suffix in _RECORDS for path in files)


def read_pieces(files: Sequence[Path], text_field: str) -> Iterator[Piece]:
    """What the files hold, in their order; Problem where a record cannot be read or lacks its field."""
    read = {".jsonl": _json_lines, ".parquet": _parquet}
    for path in files:
        yield from read[path.suffix](path, text_field) if path.suffix in read else _text(path)


def _text(path: Path) -> Iterator[Piece]:
    with open(path, "rb") as stream:
        if BINARY in stream.read(8192):
            return
    with open(path, encoding="utf-8", errors="replace", newline="") as stream:
        block, begins = _lines(stream), True
        while block:
            following = _lines(stream)
            yield Piece(block, str(path), begins, ends=not following)
            block, begins = following, False


def _lines(stream: Any) -> str:
    """Some whole lines; a line longer than a block is cut."""
    block: str = stream.read(_BLOCK)
    return block if block.endswith("\n") else block + stream.readline(_BLOCK)


def _json_lines(path: Path, text_field: str) -> Iterator[Piece]:
    with open(path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise Problem(f"{where}: not JSON ({error})", fix="one JSON object a line, in UTF-8") from None
            if not isinstance(record, dict):
                raise Problem(f"{where}: a {type(record).__name__}, not an object", fix="one JSON object a line")
            field = _field(record, text_field, where)
            tools = record.get(TOOLS) if field == MESSAGES else None
            yield Piece(_content(record[field], field, where), where, tools=_tools(tools, where))


def _parquet(path: Path, text_field: str) -> Iterator[Piece]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise Problem(f"--data {path}: pyarrow is not installed", fix="pip install pyarrow, or use .jsonl") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names, row = file.schema_arrow.names, 0
        field = _field(names, text_field, str(path))
        columns = [field, TOOLS] if field == MESSAGES and TOOLS in names else [field]
        for batch in file.iter_batches(256, columns=columns):  # of one row group at a time
            for record in batch.to_pylist():
                row += 1
                where = f"{path}: row {row}"
                tools = _tools(_without_nulls(record.get(TOOLS)), where)
                yield Piece(_content(record[field], field, where), where, tools=tools)
    except pyarrow.ArrowInvalid as error:
        raise Problem(f"--data {path}: not a readable Parquet file ({error})", fix="write the file again") from None


def _field(names: Iterable[str], text_field: str, where: str) -> str:
    """The field to train on: the text field, or else the messages of a conversation."""
    for field in (text_field, MESSAGES):
        if field in names:
            return field
    raise Problem(
        f"{where}: neither a field {text_field!r} nor {MESSAGES!r} among {', '.join(names) or 'none'}",
        fix="name the field that holds the text: --text-field NAME",
    )


def _content(value: object, field: str, where: str) -> str | list[dict[str, Any]]:
    if isinstance(value, str):
        return value
    if field == MESSAGES and isinstance(value, list) and value and all(_is_message(item) for item in value):
        # Parquet has every key in every message, with null where it is not meant.
        return [{key: part for key, part in message.items() if part is not None} for message in value]
    wanted = "a list of messages with a role" if field == MESSAGES else "a text"
    raise Problem(f"{where}: {field!r} is not {wanted}: {_short(value)}", fix="correct or remove this record")


def _tools(value: object, where: str) -> list[dict[str, Any]] | None:
    """The tools of a conversation: a list of JSON schemas, or that list as a text, as many data sets have it."""
    try:
        found = json.loads(value) if isinstance(value, str) and value.strip() else value or None
    except ValueError:
        found = value
    if not (found is None or (isinstance(found, list) and all(isinstance(tool, dict) for tool in found))):
        raise Problem(f"{where}: {TOOLS!r} is not a list of JSON schemas: {_short(value)}", fix="correct this record")
    return found or None


def _without_nulls(value: Any) -> Any:
    """Parquet has every key of every schema in each of them; a schema is nested, a message is not."""
    if isinstance(value, dict):
        return {key: _without_nulls(part) for key, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
