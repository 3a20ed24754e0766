"""How a field is read: small functions that take the variables and answer with a value and the name it came from.

A row of `providers.ROWS` is made of these. `None` means "this platform does not say"; SettingError means that it
says something impossible, or two things at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from entrypoint import values
from entrypoint.errors import SettingError

T = TypeVar("T")

_FILE_LIMIT = 1 << 20  # characters; the lists that platforms write are far smaller


@dataclass(frozen=True, slots=True)
class Variables:
    """The process's variables without empty ones, and the files of its machine."""

    texts: Mapping[str, str]
    root: Path = Path("/")

    @classmethod
    def cleaned(cls, variables: Mapping[str, str], root: Path) -> "Variables":
        texts = {name: values.clean(text) for name, text in variables.items()}
        return cls({name: text for name, text in texts.items() if text}, root)

    def get(self, name: str) -> str | None:
        return self.texts.get(name)

    def has(self, *names: str) -> bool:
        return all(name in self.texts for name in names)

    def has_any(self, *names: str) -> bool:
        return any(name in self.texts for name in names)

    def file(self, path: str) -> str | None:
        """The text of a file that a platform wrote; None if there is none."""
        file = self.root / path.lstrip("/")
        try:
            if not file.is_file():  # a device or a pipe would never end
                return None
            with file.open(encoding="utf-8-sig") as stream:
                return stream.read(_FILE_LIMIT)
        except (OSError, ValueError) as error:
            raise SettingError(
                f"{values.shown(path)} cannot be read: {type(error).__name__}",
                fix="make it readable for this user, or give TRAIN_NODES, TRAIN_NODE_RANK and TRAIN_PRIMARY",
            ) from None


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """A value, the name it came from, and how a message quotes it."""

    value: T
    source: str
    quote: str


Reader = Callable[[Variables], Told[T] | None]
Condition = Callable[[Variables], bool]


def nothing(seen: Variables) -> None:
    """The reader of a field that a platform never tells."""


def unrecognised(seen: Variables) -> bool:
    """The condition that never holds."""
    return False


def has(*names: str) -> Condition:
    """Recognised where all of these are set."""
    return lambda seen: seen.has(*names)


def has_any(*names: str) -> Condition:
    """Recognised where at least one of these is set."""
    return lambda seen: seen.has_any(*names)


def first_set(parse: Callable[[str, str], T], names: tuple[str, ...]) -> Reader[T]:
    """The first of these variables that is set, parsed."""

    def read(seen: Variables) -> Told[T] | None:
        for name in names:
            text = seen.get(name)
            if text is not None:
                return Told(parse(name, text), name, values.quoted(name, text))
        return None

    return read


def count(*names: str) -> Reader[int]:
    """A number of nodes, or of processes where there is at least this one."""
    return first_set(lambda name, text: values.parse_count(name, text, least=1), names)


def number(*names: str) -> Reader[int]:
    """A rank, or a number of processes or GPUs; there 0 means "see for yourself"."""
    return first_set(values.parse_count, names)


def address(*names: str) -> Reader[str]:
    """A host, whatever port or prefix length is written behind it."""
    return first_set(values.parse_address, names)


def port(*names: str) -> Reader[int]:
    """A TCP port."""
    return first_set(values.parse_port, names)


def port_in(name: str) -> Reader[int]:
    """The port inside `host:port`, if one is there."""

    def read(seen: Variables) -> Told[int] | None:
        text = seen.get(name)
        found = values.parse_endpoint(name, text).port if text else None
        return Told(found, name, values.quoted(name, text)) if found else None

    return read


def interfaces(*names: str) -> Reader[str]:
    """Names of network interfaces."""
    return first_set(values.parse_interfaces, names)


def hosts(*names: str) -> Reader[tuple[str, ...]]:
    """A list of nodes by lines or commas."""
    return first_set(values.parse_hosts, names)


def node_list(*names: str) -> Reader[tuple[str, ...]]:
    """A list of nodes in Slurm's short form."""
    return first_set(values.parse_node_list, names)


def either(*readers: Reader[T]) -> Reader[T]:
    """The first reader that knows, in order of trust."""
    return lambda seen: next((told for told in (reader(seen) for reader in readers) if told), None)


def same(*readers: Reader[T]) -> Reader[T]:
    """Documented aliases: all that are set must agree, for somebody changed the one that does not."""

    def read(seen: Variables) -> Told[T] | None:
        told = [answer for answer in (reader(seen) for reader in readers) if answer]
        for other in told[1:]:
            if values.comparable(other.value) != values.comparable(told[0].value):
                raise SettingError(
                    f"{told[0].quote} and {other.quote} should say the same and do not",
                    fix="set both alike, unset one, or let TRAIN_PRIMARY, TRAIN_NODES or TRAIN_NODE_RANK decide",
                )
        return told[0] if told else None

    return read


def size_of(reader: Reader[tuple[str, ...]]) -> Reader[int]:
    """How many nodes a list names."""

    def read(seen: Variables) -> Told[int] | None:
        told = reader(seen)
        return Told(len(told.value), told.source, f"{len(told.value)} nodes in {told.source}") if told else None

    return read


def first_of(reader: Reader[tuple[str, ...]]) -> Reader[str]:
    """The first node of a list; schedulers put node rank 0 there."""

    def read(seen: Variables) -> Told[str] | None:
        told = reader(seen)
        if told is None:
            return None
        return Told(values.parse_address(told.source, told.value[0]), told.source, told.quote)

    return read


def quietly(reader: Reader[T]) -> Reader[T]:
    """The reader where an override has decided already: what the platform contradicts there no longer matters."""

    def read(seen: Variables) -> Told[T] | None:
        try:
            return reader(seen)
        except SettingError:
            return None

    return read
