"""Asks the cloud to stop or to terminate this machine, until it says yes, says no, or the time is over.

Runpod: `POST /v1/pods/{id}/stop` and `DELETE /v1/pods/{id}` of its REST API; where that does not take the pod's own
key, the mutations `podStop` and `podTerminate` of its GraphQL API, which `runpodctl` uses in a pod. Vast.ai:
`PUT /api/v0/instances/{id}/` and DELETE. Both APIs are behind a proxy that turns Python's own User-Agent away (403,
"error code: 1010"). Keys go into one header and nowhere else; a redirect is not followed, since it would take them
along.
"""

import json
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from http.client import HTTPException
from typing import IO, Any, Literal
from urllib.parse import quote, urlsplit

from entrypoint.ending import Action, Cloud
from entrypoint.values import clean

REQUEST_SECONDS = 30.0
COMMAND_SECONDS = 120.0
DEADLINE_SECONDS = 600.0
_LONGEST_DELAY = 60.0
_LATER = (408, 425, 429)  # beside 5xx: the same request may be taken in a while
_AGENT = "roundhouse (+stop)"

Kind = Literal["accepted", "refused", "later"]
Wait = Callable[[float], bool]  # seconds → whether this process is asked to end


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one request; `text` has no secret in it."""

    kind: Kind
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request."""

    method: str
    url: str
    key: str = field(repr=False)
    body: Any = None


class Interrupted(Exception):
    """This process was asked to end meanwhile: most likely the stop has come."""


def ask(
    cloud: Cloud,
    action: Action,
    variables: Mapping[str, str],
    *,
    say: Callable[[str], None],
    wait: Wait,
    deadline: float = DEADLINE_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> Answer:
    """The last answer: accepted, refused, or `later` where the time is over. Interrupted where `wait` says so."""
    began, delay = clock(), 1.0
    while True:
        answer = _ask_once(cloud, action, variables, wait)
        left = deadline - (clock() - began)
        if answer.kind != "later" or left <= 0:
            return answer
        pause = min(delay, left)
        say(f"{cloud.name} was asked to {action} this machine: {answer.text}; again in {pause:.0f} s")
        if wait(pause):
            raise Interrupted
        delay = min(2 * delay, _LONGEST_DELAY)


def _ask_once(cloud: Cloud, action: Action, variables: Mapping[str, str], wait: Wait) -> Answer:
    if cloud.kind == "command":
        return _beside(partial(_run, variables), COMMAND_SECONDS + 5, wait)
    answer = Answer("refused", "there is no way to ask")
    for call in calls(cloud, action, variables):  # the next way only where the one before was refused
        answer = _beside(partial(_send, call, variables.get("TRAIN_CLOUD_API")), REQUEST_SECONDS, wait)
        if answer.kind != "refused":
            break
    return answer


def _beside(do: Callable[[], Answer], seconds: float, wait: Wait) -> Answer:
    """`do` in a thread, which is left behind where it takes longer: a server may send a byte a minute."""
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    threading.Thread(target=lambda: answers.put(do()), daemon=True).start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not answers.empty():
            return answers.get()
        if wait(0.1):
            raise Interrupted
    return Answer("later", f"no answer in {seconds:g} s")


def calls(cloud: Cloud, action: Action, variables: Mapping[str, str]) -> Iterator[Call]:
    """The requests that do it, in the order in which they are tried."""
    machine = quote(cloud.machine, safe="")
    if cloud.kind == "runpod":
        key = variables.get("RUNPOD_API_KEY", "").strip()
        pod = f"https://rest.runpod.io/v1/pods/{machine}"
        yield Call("POST", f"{pod}/stop", key) if action == "stop" else Call("DELETE", pod, key)
        name = "podStop" if action == "stop" else "podTerminate"
        kind, wanted = f"{name[0].upper()}{name[1:]}Input", " { id desiredStatus }" if action == "stop" else ""
        query = f"mutation ($input: {kind}!) {{ {name}(input: $input){wanted} }}"
        body = {"query": query, "variables": {"input": {"podId": cloud.machine}}}
        yield Call("POST", "https://api.runpod.io/graphql", key, body)
    else:
        key = variables.get("CONTAINER_API_KEY", "").strip()
        instance = f"https://console.vast.ai/api/v0/instances/{machine}/"
        yield Call("PUT", instance, key, {"state": "stopped"}) if action == "stop" else Call("DELETE", instance, key)


def placed(call: Call, base: str | None) -> str:
    """Its address; `base` takes the place of scheme and host, for tests."""
    if not base:
        return call.url
    parts = urlsplit(call.url)
    return f"{base.rstrip('/')}/{parts.netloc}{parts.path}"


class _StayHere(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like another: followed, it would take the key to another host."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayHere)


def _send(call: Call, base: str | None) -> Answer:
    headers = {"Authorization": f"Bearer {call.key}", "User-Agent": _AGENT, "Accept": "application/json"}
    data = None if call.body is None else json.dumps(call.body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    where = urlsplit(call.url).netloc
    try:
        request = urllib.request.Request(placed(call, base), data=data, headers=headers, method=call.method)
        with _OPENER.open(request, timeout=REQUEST_SECONDS) as answer:
            return _judge(where, answer.status, answer.read(1 << 16), call.key)
    except urllib.error.HTTPError as error:
        with error:
            return _judge(where, error.code, _read(error), call.key)
    except (OSError, HTTPException) as error:  # a name without address, a connection that is refused or reset
        return Answer("later", f"{where}: {_masked(str(error) or type(error).__name__, call.key)}")
    except ValueError:
        return Answer("refused", f"{where} was not asked: the key has characters that no header can hold")


def _read(error: urllib.error.HTTPError) -> bytes:
    try:
        return error.read(1 << 16)
    except (OSError, HTTPException):
        return b""


def _judge(where: str, status: int, body: bytes, key: str) -> Answer:
    """What an answer means. GraphQL and Vast.ai say no with a status of 200."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    said = _masked(_words(document, body), key)
    text = f"{where} answers {status}" + (f": {said}" if said else "")
    if status >= 500 or status in _LATER:
        return Answer("later", text)
    if not 200 <= status < 300:
        return Answer("refused", text)
    if isinstance(document, dict) and (document.get("errors") or document.get("success") is False):
        return Answer("later" if "INTERNAL_SERVER_ERROR" in str(document.get("errors")) else "refused", text)
    return Answer("accepted", f"{where} answers {status}")


def _words(document: Any, body: bytes) -> str:
    """The sentence in an answer: the APIs call it error, msg, message, or put it into a list of errors."""
    if isinstance(document, dict):
        errors = document.get("errors")
        first = errors[0] if isinstance(errors, list) and errors else document
        if isinstance(first, dict):
            found = next((first[name] for name in ("message", "msg", "error", "detail") if first.get(name)), "")
            return " ".join(str(found).split())[:200]
    text = body.decode(errors="replace")
    return "" if text.lstrip().startswith("<") else " ".join(text.split())[:200]  # a proxy's page says nothing


def _masked(text: str, key: str) -> str:
    return text.replace(key, "***") if key else text


def _run(variables: Mapping[str, str]) -> Answer:
    """The person's own command; its output is theirs, and its last line is told where it fails."""
    command = ["bash", "-c", clean(variables.get("TRAIN_STOP_COMMAND", ""))]
    try:
        done = subprocess.run(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Answer("later", f"it did not end in {COMMAND_SECONDS:g} s")
    except OSError as error:
        return Answer("refused", f"bash: {error.strerror}")
    if done.returncode == 0:
        return Answer("accepted", "it ended with 0")
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
    return Answer("later", f"it ended with {done.returncode}" + (f": {last[0][:200]}" if last else ""))
