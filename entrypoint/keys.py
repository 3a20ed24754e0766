"""Public keys as people and clouds' forms hand them over → lines of an authorized_keys file. Pure.

Several in one value, on lines of their own or joined in one; with CRLF, or with `\\n` spelt out; as OpenSSH writes them
or as RFC 4716 does (PuTTY's "save public key"). What is not taken is told without a word of it being shown.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from entrypoint.reasons import Finding
from entrypoint.values import clean

# Runpod and most images; latitude.sh; Vast.ai; images that follow ai-dock.
KEY_VARIABLES = ("PUBLIC_KEY", "SSH_KEY", "SSH_PUBLIC_KEY", "SSH_PUBKEY")

_FIELDS = {  # strings in a key's blob after its type (RFC 4253, 5656, 8709; OpenSSH's PROTOCOL.u2f)
    "ssh-ed25519": 1,
    "ssh-rsa": 2,
    "ecdsa-sha2-nistp256": 2,
    "ecdsa-sha2-nistp384": 2,
    "ecdsa-sha2-nistp521": 2,
    "sk-ssh-ed25519@openssh.com": 2,
    "sk-ecdsa-sha2-nistp256@openssh.com": 3,
}
_TYPE = re.compile(r"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9-]+(?:@openssh\.com)?")
_BLOB = "AAAA"  # how each begins: the length of its type has three bytes of zero
_RSA_BYTES = 128  # sshd's RequiredRSASize, 1024 bits

_OPTION = (
    r"(?:(?:no-)?(?:agent-forwarding|port-forwarding|pty|user-rc|x11-forwarding|touch-required)"
    r"|cert-authority|restrict|verify-required"
    r'|(?:command|environment|expiry-time|from|permitlisten|permitopen|principals|tunnel)="(?:[^"\\]|\\.)*")'
)
_OPTIONS = re.compile(f"{_OPTION}(?:,{_OPTION})*", re.IGNORECASE)
_WORD = re.compile(r'(?:(?<==)"(?:[^"\\]|\\.)*"|\S)+')
_SPELT_OUT = re.compile(r'(=)("(?:[^"\\\n]|\\.)*")|\\r\\n|\\n|\\r')  # not inside an option's value
_JOINED = re.compile(rf"[,;](?={_TYPE.pattern}\s+{_BLOB})")

_PRIVATE = re.compile(
    r"-{4,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY ?-{4,5}.*?(?:-{4,5} ?END [A-Z0-9 ]*PRIVATE KEY ?-{4,5}|\Z)"
    r"|PuTTY-User-Key-File-\d.*?(?:Private-(?:MAC|Hash): *\w+|\Z)"
    r"|b3BlbnNzaC1rZXktdjE[\w+/=]*(?:\n[\w+/=]+(?=\n|\Z))*",  # OpenSSH's own, without its first line
    re.DOTALL,
)
_RFC_4716 = re.compile(r"-{4} ?BEGIN SSH2 PUBLIC KEY ?-{4}(.*?)-{4} ?END SSH2 PUBLIC KEY ?-{4}", re.DOTALL)
_RFC_COMMENT = re.compile(r'^\s*comment: *(?:"([^"]*)"|([^\n]*(?:(?<=\\)\n[^\n]*)*))', re.IGNORECASE | re.MULTILINE)
_RFC_HEADER = re.compile(r"^[\w@.-]+:.*(?:(?<=\\)\n.*)*$", re.MULTILINE)
_PEM = re.compile(r"-{5}BEGIN [A-Z ]*PUBLIC KEY-{5}.*?(?:-{5}END [A-Z ]*PUBLIC KEY-{5}|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Keys:
    """`lines` of authorized_keys, each key once; `refused`: what was not taken, and why."""

    lines: tuple[str, ...] = ()
    refused: tuple[Finding, ...] = ()


def is_off(text: str) -> bool:
    """Nothing, or the word that a form sends for it."""
    return clean(text).lower() in ("", "null")


def holds_private(text: str) -> bool:
    """A private key is in it: it must be written nowhere."""
    return _PRIVATE.search(_lines(text)) is not None


def read_keys(variables: Mapping[str, str]) -> Keys:
    """The keys of all variables that may hold some."""
    found: dict[str, str] = {}  # blob → line
    refused: list[Finding] = []
    for name in KEY_VARIABLES:
        text = _lines(variables.get(name, ""))
        if is_off(text):
            continue
        text, privates = _PRIVATE.subn("\n", text)
        if privates:
            refused.append(_private(name))
        for number, key in enumerate(_keys(text), start=1):
            if key.wrong:
                refused.append(_refusal(name, number, key.wrong))
            else:
                found.setdefault(key.blob, key.line)
    return Keys(tuple(found.values()), tuple(refused))


def _private(name: str) -> Finding:
    return Finding(
        "warn",
        f"{name} holds a private key: refused, and written nowhere",
        f"give the public half, the file that ends in .pub, in {name}; make a new pair, for this one has been seen",
    )


def _refusal(name: str, number: int, wrong: str) -> Finding:
    return Finding(
        "warn",
        f"{name}: key {number} {wrong}",
        "give whole lines as `cat ~/.ssh/id_ed25519.pub` prints them",
    )


@dataclass(frozen=True, slots=True)
class _Key:
    line: str = ""
    blob: str = ""
    wrong: str = ""


def _lines(text: str) -> str:
    """With real line ends only."""
    text = _SPELT_OUT.sub(lambda found: found[0] if found[1] else "\n", clean(text))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _keys(text: str) -> Iterator[_Key]:
    text = _RFC_4716.sub(lambda block: f"\n{_of_rfc_4716(block[1])}\n", text)
    text = _PEM.sub("\nPEM\n", text)
    for line in _JOINED.sub("\n", text).split("\n"):
        if line.strip() and not line.lstrip().startswith("#"):
            yield from _keys_of_line(line)


def _of_rfc_4716(body: str) -> str:
    """One line, as OpenSSH would write it. The lines of the block may have been joined by blanks."""
    comment = _RFC_COMMENT.search(body)
    about = " ".join((comment[1] or comment[2] or "").replace("\\\n", "").split()) if comment else ""
    blob = "".join(_RFC_HEADER.sub("", _RFC_COMMENT.sub("", body)).split())
    return f"{_type_in(blob) or 'ssh2-public-key'} {blob} {about}"


def _keys_of_line(line: str) -> Iterator[_Key]:
    """Each key begins at a type with a blob behind it; what lies between is a comment, and the next one's options."""
    words = _WORD.findall(line)
    starts = [i for i, word in enumerate(words[:-1]) if _TYPE.fullmatch(word) and words[i + 1].startswith(_BLOB)]
    if not starts:
        yield _Key(wrong=_why_none(words))
        return
    options = " ".join(words[: starts[0]])
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        comment = words[start + 2 : end]
        next_options = comment.pop() if end < len(words) and comment and _OPTIONS.fullmatch(comment[-1]) else ""
        yield _key(options, words[start], words[start + 1], comment)
        options = next_options


def _key(options: str, kind: str, blob: str, comment: list[str]) -> _Key:
    if options and not _OPTIONS.fullmatch(options):  # to drop a restriction would open more than was meant
        return _Key(wrong="has words before its type that are no options of OpenSSH's")
    if wrong := _wrong(kind, blob):
        return _Key(wrong=wrong)
    line = " ".join(filter(None, (options, kind, blob, *comment)))
    return _Key("".join(letter for letter in line if letter.isprintable()), blob)


def _why_none(words: list[str]) -> str:
    if words == ["PEM"]:
        return "is in PEM's form, which OpenSSH does not read: `ssh-keygen -i -m PKCS8 -f FILE` converts it"
    if any(word in _FIELDS for word in words):
        return "is cut off after its type"
    return "is no public key"


def _wrong(kind: str, blob: str) -> str:
    """Why sshd would not take it; empty: it would."""
    if kind not in _FIELDS:
        return f"is of type {kind}, which sshd does not take here"
    strings = _strings(blob)
    if len(strings) != 1 + _FIELDS[kind] or strings[0] != kind.encode():
        return f"of type {kind} is cut off or damaged"
    first = strings[1]
    if kind == "ssh-rsa" and len(strings[2].lstrip(b"\0")) < _RSA_BYTES:
        return "of type ssh-rsa is shorter than the 1024 bits that sshd wants"
    if (kind.endswith("ed25519") or "ed25519@" in kind) and len(first) != 32:
        return f"of type {kind} is cut off or damaged"
    if "nistp" in kind and first.decode(errors="replace") not in kind:
        return f"of type {kind} is cut off or damaged"
    return ""


def _type_in(blob: str) -> str:
    strings = _strings(blob)
    return strings[0].decode(errors="replace") if strings and strings[0].decode(errors="replace") in _FIELDS else ""


def _strings(blob: str) -> list[bytes]:
    """The length-prefixed strings of a blob; none at all where they do not fill it."""
    try:
        rest = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError):
        return []
    strings = []
    while rest:
        length = int.from_bytes(rest[:4], "big")
        if len(rest) < 4 + length:
            return []
        strings.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    return strings
