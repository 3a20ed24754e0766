"""Asking a cloud to stop this machine: a real client before a real server that fails, stalls and answers."""

import time

import pytest
from clouds import OK, Api

from entrypoint import stop_machine
from entrypoint.ending import Cloud
from entrypoint.stop_machine import Interrupted, ask

KEY = "rpa_TOPSECRET"
KEYS = {"RUNPOD_API_KEY": KEY, "CONTAINER_API_KEY": KEY}
POD, INSTANCE = Cloud("runpod", "abc123"), Cloud("vast", "4711")
NO, DENIED = (500, "down"), (401, {"error": f"bad key {KEY}"})
GRAPHQL_NO = (200, {"errors": [{"message": "Unauthorized"}], "data": {"podStop": None}})
GRAPHQL_YES = (200, {"data": {"podStop": {"id": "abc123", "desiredStatus": "EXITED"}}})


class Fast:
    """Time that passes as it is waited for: hours of backoff in a moment. Real waits for answers stay real."""

    def __init__(self) -> None:
        self.now, self.pauses = 0.0, []

    def wait(self, seconds: float) -> bool:
        if seconds > 0.1:
            self.pauses.append(seconds)
            self.now += seconds
        else:
            time.sleep(0.01)
        return False


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(stop_machine, "REQUEST_SECONDS", 0.5)

    def run(api, cloud=INSTANCE, action="stop", **options):
        fast, said = Fast(), []
        answer = ask(
            cloud,
            action,
            KEYS | {"TRAIN_CLOUD_API": api.url},
            say=said.append,
            wait=options.pop("wait", fast.wait),
            clock=lambda: fast.now,
            **options,
        )
        assert KEY not in repr((answer, said))
        return answer, said, fast

    return run


@pytest.mark.parametrize(
    ("script", "kind", "requests", "said"),
    [
        ([OK], "accepted", 1, "answers 200"),
        ([(202, "")], "accepted", 1, "answers 202"),
        ([NO, NO, OK], "accepted", 3, "answers 200"),
        ([(503, "<html>busy</html>"), OK], "accepted", 2, "answers 200"),
        ([(429, {"msg": "too many"}), OK], "accepted", 2, "answers 200"),
        (["reset", OK], "accepted", 2, "answers 200"),
        (["stall", OK], "accepted", 2, "answers 200"),
        (["drip", OK], "accepted", 2, "answers 200"),
        ([DENIED], "refused", 1, "answers 401: bad key ***"),
        ([(404, {"msg": "no such instance"})], "refused", 1, "no such instance"),
        ([(200, {"success": False, "msg": "not yours"})], "refused", 1, "not yours"),
        ([(302, "", {"Location": "http://127.0.0.1:9/"})], "refused", 1, "answers 302"),
        ([NO], "later", 16, "answers 500: down"),
    ],
)
def test_it_is_asked_until_it_is_taken_or_refused_or_the_time_is_over(asked, script, kind, requests, said):
    with Api(script) as api:
        answer, lines, _ = asked(api)
    assert answer.kind == kind
    assert len(api.seen) == requests
    assert said in answer.text
    assert len(lines) == requests - 1  # each that did not help is told


def test_the_pauses_double_up_to_a_minute_and_end_with_the_deadline(asked):
    with Api([NO]) as api:
        _, _, fast = asked(api, deadline=200)
    assert fast.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 17]


@pytest.mark.parametrize(
    ("cloud", "action", "method", "path", "body"),
    [
        (POD, "stop", "POST", "/rest.runpod.io/v1/pods/abc123/stop", None),
        (POD, "terminate", "DELETE", "/rest.runpod.io/v1/pods/abc123", None),
        (INSTANCE, "stop", "PUT", "/console.vast.ai/api/v0/instances/4711/", {"state": "stopped"}),
        (INSTANCE, "terminate", "DELETE", "/console.vast.ai/api/v0/instances/4711/", None),
        (Cloud("runpod", "a/../b?c"), "stop", "POST", "/rest.runpod.io/v1/pods/a%2F..%2Fb%3Fc/stop", None),
    ],
)
def test_what_each_cloud_is_sent(asked, cloud, action, method, path, body):
    with Api() as api:
        answer, _, _ = asked(api, cloud, action)
    assert answer.kind == "accepted"
    (seen,) = api.seen
    assert (seen.method, seen.path, seen.body) == (method, path, body)
    assert seen.headers["Authorization"] == f"Bearer {KEY}"
    assert "urllib" not in seen.headers["User-Agent"]  # their proxy turns Python's own away


@pytest.mark.parametrize(
    ("script", "kind", "requests"),
    [
        ([(401, {"error": "pod keys are not taken here"}), GRAPHQL_YES], "accepted", 2),
        ([(403, ""), GRAPHQL_NO], "refused", 2),
        ([NO, OK], "accepted", 2),  # not taken for a refusal: the same again
        ([(404, ""), (200, {"errors": [{"message": "x", "extensions": {"code": "INTERNAL_SERVER_ERROR"}}]}),
          (404, ""), GRAPHQL_YES], "accepted", 4),
    ],
)  # fmt: skip
def test_runpods_other_api_is_asked_where_the_first_refuses(asked, script, kind, requests):
    with Api(script) as api:
        answer, _, _ = asked(api, POD)
    assert answer.kind == kind
    assert len(api.seen) == requests
    if requests == 2 and script[0] != NO:
        assert api.seen[1].path == "/api.runpod.io/graphql"
        assert api.seen[1].body["variables"] == {"input": {"podId": "abc123"}}
        assert "podStop" in api.seen[1].body["query"]


def test_a_name_that_has_no_address_is_tried_again(asked):
    class Nowhere:
        url = "http://no-such-host.invalid"

    answer, lines, _ = asked(Nowhere, deadline=3)
    assert answer.kind == "later"
    assert len(lines) >= 2


def test_a_redirect_takes_the_key_nowhere(asked):
    with Api() as other, Api([(307, "", {"Location": f"{other.url}/steal"})]) as api:
        assert asked(api)[0].kind == "refused"
    assert other.seen == []


def test_a_key_that_no_header_can_hold_is_refused_and_not_shown():
    answer = ask(INSTANCE, "stop", {"CONTAINER_API_KEY": "a\nb: TOPSECRET"}, say=print, wait=lambda _: False)
    assert answer.kind == "refused"
    assert "TOPSECRET" not in answer.text


def test_a_request_to_end_does_not_wait_for_a_server_that_stalls(asked):
    began = time.monotonic()
    with Api(["stall"]) as api, pytest.raises(Interrupted):
        asked(api, wait=lambda seconds: bool(api.seen))
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        ("echo $WHAT", "accepted", "ended with 0"),
        ("echo no >&2; exit 3", "later", "ended with 3: no"),
        ('test -e "$FLAG" || { touch "$FLAG"; exit 1; }', "accepted", "ended with 0"),
    ],
)
def test_a_command_of_the_users_is_run_again_until_it_works(tmp_path, command, kind, said):
    variables = {"PATH": "/usr/bin:/bin", "TRAIN_STOP_COMMAND": command, "FLAG": str(tmp_path / "flag")}
    fast = Fast()
    answer = ask(Cloud("command", "m"), "stop", variables, say=print, wait=fast.wait, clock=lambda: fast.now)
    assert (answer.kind, said in answer.text) == (kind, True)
