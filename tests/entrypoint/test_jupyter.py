"""Who is let in, from which addresses, and what everybody may see of it."""

from pathlib import Path

import pytest

from entrypoint import jupyter
from entrypoint.errors import SettingError


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"JUPYTER_PASSWORD": ""}, None),
        ({"JUPYTER_PASSWORD": " \n"}, None),
        ({"JUPYTER_PASSWORD": "null"}, None),  # a field of a form that was left empty
        ({"JUPYTER_PASSWORD": '""'}, None),  # an env file with quotes
        ({"JUPYTER_PASSWORD": "a b$c*;x"}, ("JUPYTER_PASSWORD", "a b$c*;x")),
        ({"JUPYTER_PASSWORD": 'it\'s "so"'}, ("JUPYTER_PASSWORD", 'it\'s "so"')),
        ({"JUPYTER_PASSWORD": "pw\r\n"}, ("JUPYTER_PASSWORD", "pw")),  # from a file with Windows line ends
        ({"JUPYTER_PASSWORD": "пароль"}, ("JUPYTER_PASSWORD", "пароль")),
        ({"JUPYTER_TOKEN": "t"}, ("JUPYTER_TOKEN", "t")),
        ({"JUPYTER_LAB_PASSWORD": "l"}, ("JUPYTER_LAB_PASSWORD", "l")),
        ({"JUPYTER_TOKEN": "made up by Vast", "JUPYTER_PASSWORD": "own"}, ("JUPYTER_PASSWORD", "own")),
        ({"JUPYTER_TOKEN": "t", "JUPYTER_PASSWORD": "null"}, ("JUPYTER_TOKEN", "t")),
        ({"JUPYTER_PASSWORD": "p", "JUPYTER_DISABLE": "1"}, None),
        ({"JUPYTER_PASSWORD": "p", "JUPYTER_DISABLE": "True"}, None),
        ({"JUPYTER_PASSWORD": "p", "JUPYTER_DISABLE": "0"}, ("JUPYTER_PASSWORD", "p")),
        ({"JUPYTER_PASSWORD": "p", "JUPYTER_DISABLE": ""}, ("JUPYTER_PASSWORD", "p")),
    ],
)
def test_who_is_let_in(variables, expected):
    secret = jupyter.read_secret(variables)
    assert (secret and (secret.name, secret.value)) == expected


def test_a_password_that_nobody_can_type_is_refused_and_not_shown():
    with pytest.raises(SettingError) as caught:
        jupyter.refuse_untypable(jupyter.read_secret({"JUPYTER_PASSWORD": "first\nsecond"}))
    assert "JUPYTER_PASSWORD" in str(caught.value)
    assert "first" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ()),
        ({"RUNPOD_POD_ID": "abc123"}, ("https://abc123-8888.proxy.runpod.net",)),
        ({"RUNPOD_POD_ID": "x.evil.example/"}, ()),
        ({"JUPYTER_ALLOW_ORIGIN": "https://Lab.Example.org/"}, ("https://lab.example.org",)),  # browsers say lower case
        (
            {"RUNPOD_POD_ID": "abc123", "JUPYTER_ALLOW_ORIGIN": "http://a:8080, https://[fd00::1]:9"},
            ("https://abc123-8888.proxy.runpod.net", "http://a:8080", "https://[fd00::1]:9"),
        ),
    ],
)
def test_only_origins_that_are_ours_are_let_in(variables, expected):
    assert jupyter.origins(variables) == expected


@pytest.mark.parametrize("origin", ["*", "https://*", "https://*.runpod.net", "lab.example.org", "https://a/lab", ".*"])
def test_an_origin_that_means_many_is_refused(origin):
    with pytest.raises(SettingError, match="JUPYTER_ALLOW_ORIGIN"):
        jupyter.origins({"JUPYTER_ALLOW_ORIGIN": origin})


def test_nothing_that_others_see_has_the_secret():
    secret = jupyter.read_secret({"JUPYTER_PASSWORD": "hunter2"})
    services = jupyter.services(secret, Path("/v"), Path("/run/x"), python="python", home="/root", ports=(1, 2))
    seen = [repr(secret), *(repr(service) + repr(dict(service.environment)) for service in services)]
    assert "hunter2" not in "".join(seen)
    assert "JUPYTER_PASSWORD" in services[0].reach
