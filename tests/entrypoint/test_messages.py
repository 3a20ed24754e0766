"""What comes over the wire is a message of ours, or refused; nothing else can happen."""

import asyncio
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint import messages
from entrypoint.messages import MessageError, Secret, length, pack, rank_of, text_of, unpack

WORDS = st.text(max_size=50)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)


async def read(data):
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    return await messages.receive(reader)


@given(st.dictionaries(WORDS, VALUES, max_size=8), WORDS)
def test_what_is_packed_is_received(fields, kind):
    message = fields | {"kind": kind}
    assert asyncio.run(read(pack(message) + b"more")) == message


@given(st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(data):
    try:
        message = asyncio.run(read(data))
    except (MessageError, EOFError):
        return
    assert isinstance(message["kind"], str)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_any_body_is_a_message_or_refused(body):
    with contextlib.suppress(MessageError):
        assert isinstance(unpack(body)["kind"], str)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60000,
        b'{"kind":' + b"9" * 6000 + b"}",
        b'{"kind":1}',
        b"[]",
        b"null",
        b'{"kin":"x"}',
        b"\xff\xfe",
        b"\x80\x04\x95",  # the beginning of a pickle
    ],
)
def test_bodies_that_are_no_message(body):
    with pytest.raises(MessageError):
        unpack(body)


@pytest.mark.parametrize("head", [b"GET ", b"\x16\x03\x01\x02", b"\0\0\0\0", b"\0\0\0\1", b"\0\1\0\1", b"\xff" * 4])
def test_first_bytes_of_other_protocols_are_refused_before_anything_is_stored(head):
    with pytest.raises(MessageError):
        length(head)


def test_64_kb_are_the_limit_for_both_sides():
    most = {"kind": "x", "text": "a" * (messages.MAX_BYTES - 22)}
    assert asyncio.run(read(pack(most))) == most
    with pytest.raises(ValueError, match="65537 bytes"):
        pack({"kind": "x", "text": "a" * (messages.MAX_BYTES - 21)})


def test_a_proof_needs_the_key_the_words_and_their_order():
    secret = Secret("file", b"k" * 32)
    proof = secret.proof("node", "ab", "c")
    assert secret.proves(proof, "node", "ab", "c")
    assert not secret.proves(proof, "node", "a", "bc")
    assert not secret.proves(proof, "primary", "ab", "c")
    assert not Secret("file", b"l" * 32).proves(proof, "node", "ab", "c")
    assert not Secret("run", b"k" * 32).proves(proof, "node", "ab", "c")
    for other in (None, 3, "", "é", proof[:-1]):
        assert not secret.proves(other, "node", "ab", "c")


def test_a_secret_is_not_shown():
    assert "hidden" not in repr(Secret("TRAIN_TOKEN", b"hidden"))


@pytest.mark.parametrize("rank", [-1, 2, True, "0", None, 0.0, 10**30])
def test_a_rank_that_is_none_is_refused(rank):
    with pytest.raises(MessageError):
        rank_of({"rank": rank}, 2)


def test_text_from_another_node_cannot_move_the_cursor():
    assert text_of({"host": "a\x1b[2Jb\nc"}, "host") == "a?[2Jb?c"
    assert len(text_of({"host": "a" * 9999}, "host", limit=64)) == 64
