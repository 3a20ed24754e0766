"""Documents with reasons → YAML with comments, JSON, and the lines of a shell script."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

_WIDTH = 116


@dataclass(frozen=True, slots=True)
class Why:
    """A value with the reason that a reader of the template should find above it."""

    value: Any
    reason: str


NULL = object()  # a null that is meant: None leaves its entry out


def plain(document: Any) -> Any:
    """The data alone, without reasons; an entry whose value is None is left out."""
    if isinstance(document, Why):
        return plain(document.value)
    if isinstance(document, dict):
        return {key: plain(value) for key, value in document.items() if not _absent(value)}
    if isinstance(document, (list, tuple)):
        return [plain(each) for each in document if not _absent(each)]
    return None if document is NULL else document


def _absent(value: Any) -> bool:
    return value is None or (isinstance(value, Why) and _absent(value.value))


def to_json(document: Any) -> str:
    """JSON has no comments: reasons are for the YAML forms."""
    return json.dumps(plain(document), indent=2) + "\n"


def to_yaml(head: str, *documents: Any) -> str:
    """YAML documents under a head comment; each reason stands above the line of its value."""
    parts = [_yaml(document) for document in documents]
    return comment(head) + "---\n".join(parts)


def comment(text: str) -> str:
    """Lines of `text` as comments; a paragraph that is too long is wrapped."""
    return "".join(f"{line}\n" for paragraph in text.splitlines() for line in _comment_lines(paragraph, ""))


def _comment_lines(text: str, indent: str) -> list[str]:
    # A line that is indented is a command to be copied: it is never broken.
    if text.startswith(" ") or not text:
        return [f"{indent}# {text}".rstrip()]
    return [f"{indent}# {line}" for line in wrap(text, _WIDTH - len(indent) - 2, break_on_hyphens=False)]


def _yaml(document: Any) -> str:
    import yaml  # 20 ms that no other command should wait for

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
            return super().increase_indent(flow, False)  # lists stand under their key, not beside it

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    data = plain(document)
    dumped = yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=4096)
    lines = dumped.splitlines()
    marks = dict(_marks(yaml.compose(dumped)))
    for path, reason in sorted(_reasons(document), key=lambda found: -marks[found[0]][0]):
        line, column = marks[path]
        lines[line:line] = _comment_lines(reason, " " * column)
    return "\n".join(lines) + "\n"


def _marks(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], tuple[int, int]]]:
    """Path of each value → line and column where its comment belongs: those of its key, or of its dash."""
    if node.id == "mapping":
        for key, value in node.value:
            yield (*path, key.value), (key.start_mark.line, key.start_mark.column)
            yield from _marks(value, (*path, key.value))
    elif node.id == "sequence":
        for index, value in enumerate(node.value):
            yield (*path, index), (value.start_mark.line, value.start_mark.column - 2)
            yield from _marks(value, (*path, index))


def _reasons(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(document, Why):
        if not _absent(document):
            yield path, document.reason
            yield from _reasons(document.value, path)
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from _reasons(value, (*path, key))
    elif isinstance(document, (list, tuple)):
        for index, value in enumerate(each for each in document if not _absent(each)):
            yield from _reasons(value, (*path, index))


def quote(text: str) -> str:
    """A word of a shell; `$HOME` at its start stays to be expanded there."""
    if text.startswith("$HOME/"):
        return f'"$HOME"/{shlex.quote(text.removeprefix("$HOME/"))}'
    return shlex.quote(text)


def exports(variables: dict[str, str]) -> str:
    """`export NAME=value` lines, each value quoted for a shell."""
    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in variables.items())
