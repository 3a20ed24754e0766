"""Every form in which a public key arrives. Keys are made here by OpenSSH itself where it is installed."""

import base64
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.keys import holds_private, is_off, read_keys


def blob(kind, *strings):
    parts = (kind.encode(), *strings)
    return base64.b64encode(b"".join(len(part).to_bytes(4, "big") + part for part in parts)).decode()


POINT = b"\x04" + bytes(range(64))
ED = f"ssh-ed25519 {blob('ssh-ed25519', bytes(range(32)))}"
RSA = f"ssh-rsa {blob('ssh-rsa', b'123', bytes([0, *[200] * 256]))}"
EC = f"ecdsa-sha2-nistp256 {blob('ecdsa-sha2-nistp256', b'nistp256', POINT)}"
SK = f"sk-ssh-ed25519@openssh.com {blob('sk-ssh-ed25519@openssh.com', bytes(32), b'ssh:')}"
SK_EC = f"sk-ecdsa-sha2-nistp256@openssh.com {blob('sk-ecdsa-sha2-nistp256@openssh.com', b'nistp256', POINT, b'ssh:')}"
FROM = 'from="10.0.0.0/8, 192.168.1.1",no-pty'
COMMAND = r'command="echo \"hello\nworld\""'


def rfc_4716(key, *headers):
    code = key.split()[1]
    lines = [code[i : i + 70] for i in range(0, len(code), 70)]
    return ["---- BEGIN SSH2 PUBLIC KEY ----", *headers, *lines, "---- END SSH2 PUBLIC KEY ----"]


PUTTY = rfc_4716(RSA, 'Comment: "rsa-key-20260101"')
LONG_HEADER = rfc_4716(ED, "Subject: me", "Comment: a key that \\", "goes on", "x-made-by: me")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (ED, [ED]),
        (f"{ED} me@laptop", [f"{ED} me@laptop"]),
        (f"  {ED} me@laptop\n\n", [f"{ED} me@laptop"]),
        (f'"{ED} me@laptop"', [f"{ED} me@laptop"]),  # an env file that kept its quotes
        (f"{ED} a\n{RSA} b", [f"{ED} a", f"{RSA} b"]),
        (f"{ED} a\r\n{RSA} b\r\n", [f"{ED} a", f"{RSA} b"]),
        (f"{ED} a\\n{RSA} b\\n", [f"{ED} a", f"{RSA} b"]),
        (f"{ED} a\\r\\n{RSA} b", [f"{ED} a", f"{RSA} b"]),
        (f"{ED} {RSA}", [ED, RSA]),
        (f"{ED} my own key {RSA} the other key", [f"{ED} my own key", f"{RSA} the other key"]),
        (f"{ED} a,{RSA} b;{EC} c", [f"{ED} a", f"{RSA} b", f"{EC} c"]),
        (f"{ED} a\n{ED} the same again", [f"{ED} a"]),
        (f"# mine\n\n{ED} a", [f"{ED} a"]),
        ("\n".join((ED, RSA, EC, SK, SK_EC)), [ED, RSA, EC, SK, SK_EC]),
        (f"{FROM} {ED} a", [f"{FROM} {ED} a"]),
        (f"{COMMAND} {ED} a", [f"{COMMAND} {ED} a"]),  # the \n in it is the command's own
        (f"{ED} a {FROM} {RSA} b", [f"{ED} a", f"{FROM} {RSA} b"]),
        (f"{ED} ssh-rsa was my old one", [f"{ED} ssh-rsa was my old one"]),
        (f'{ED} 5" disk\n{RSA} 3" disk', [f'{ED} 5" disk', f'{RSA} 3" disk']),
        ("\n".join(PUTTY), [f"{RSA} rsa-key-20260101"]),
        ("\r\n".join(PUTTY), [f"{RSA} rsa-key-20260101"]),
        ("\\n".join(PUTTY), [f"{RSA} rsa-key-20260101"]),
        (" ".join(PUTTY), [f"{RSA} rsa-key-20260101"]),
        ("\n".join((*PUTTY, f"{ED} a")), [f"{RSA} rsa-key-20260101", f"{ED} a"]),
        ("\n".join(LONG_HEADER), [f"{ED} a key that goes on"]),
    ],
)
def test_each_valid_key_is_a_line_once(text, lines):
    keys = read_keys({"PUBLIC_KEY": text})
    assert list(keys.lines) == lines
    assert keys.refused == ()


SECRET = "SeCrEt"
DAMAGED = ED[:-8]


@pytest.mark.parametrize(
    ("text", "lines", "why"),
    [
        (f"{ED} a\nssh-ed25519 AAAA{SECRET} b\n{RSA} c", [f"{ED} a", f"{RSA} c"], "key 2 of type ssh-ed25519 is cut"),
        (f"{ED} a ssh-rsa AAAA{SECRET} b {RSA} c", [f"{ED} a", f"{RSA} c"], "key 2 of type ssh-rsa is cut off"),
        (DAMAGED, [], "key 1 of type ssh-ed25519 is cut off"),
        (f"{EC[:-4]}AAAA", [], "key 1 of type ecdsa-sha2-nistp256 is cut off"),
        ("ssh-ed25519", [], "key 1 is cut off after its type"),
        (f"hello {SECRET}", [], "key 1 is no public key"),
        (f"no-such-option {ED}", [], "has words before its type"),
        (f"ssh-dss {blob('ssh-dss', b'1', b'2', b'3', b'4')}", [], "type ssh-dss, which sshd does not take"),
        (f"ssh-rsa {blob('ssh-rsa', b'123', bytes([200] * 64))}", [], "shorter than the 1024 bits"),
        (f"-----BEGIN PUBLIC KEY-----\n{SECRET}\n-----END PUBLIC KEY-----", [], "ssh-keygen -i -m PKCS8"),
        ("\n".join((PUTTY[0], *PUTTY[3:])), [], "key 1 is no public key"),
    ],
)  # fmt: skip
def test_what_is_no_key_is_told_without_being_shown(text, lines, why):
    keys = read_keys({"SSH_KEY": text})
    assert list(keys.lines) == lines
    (refused,) = keys.refused
    assert refused.text.startswith("SSH_KEY: ")
    assert why in refused.text
    assert refused.fix
    assert SECRET not in f"{refused}"


OPENSSH_PRIVATE = (
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAASeCrEt\nSeCrEt==\n-----END OPENSSH PRIVATE KEY-----"
)
PPK = f"""PuTTY-User-Key-File-3: ssh-ed25519
Encryption: none
Public-Lines: 1
{ED.split()[1]}
Private-Lines: 1
SeCrEt
Private-MAC: 00ff"""


@pytest.mark.parametrize(
    "private",
    [
        OPENSSH_PRIVATE,
        OPENSSH_PRIVATE.replace("\n", "\\n"),
        OPENSSH_PRIVATE.replace("\n", " "),
        OPENSSH_PRIVATE.rpartition("\n")[0],  # cut off
        "\n".join(OPENSSH_PRIVATE.split("\n")[1:-1]),
        "-----BEGIN RSA PRIVATE KEY-----\nSeCrEt\n-----END RSA PRIVATE KEY-----",
        "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\nSeCrEt\n---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        PPK,
    ],
)
def test_a_private_key_is_refused_and_nothing_of_it_is_told(private):
    keys = read_keys({"PUBLIC_KEY": f"{ED} a\n{private}"})
    assert keys.lines == (f"{ED} a",)
    assert [finding.text for finding in keys.refused] == [
        "PUBLIC_KEY holds a private key: refused, and written nowhere"
    ]
    assert SECRET not in f"{keys}"
    assert holds_private(private)


@pytest.mark.parametrize("text", [ED, "\n".join(PUTTY), "null", "", f"{RSA} my private laptop"])
def test_a_public_key_is_not_taken_for_a_private_one(text):
    assert not holds_private(text)


@pytest.mark.parametrize(
    ("text", "off"), [("", True), ("null", True), (" 'null' \n", True), ("NULL", True), (ED, False), ("nullify", False)]
)
def test_nothing_and_null_mean_off(text, off):
    assert is_off(text) == off
    assert read_keys({"PUBLIC_KEY": text}).lines == (() if off or text == "nullify" else (ED,))


def test_all_variables_count_and_a_key_in_two_of_them_is_one_line():
    keys = read_keys({"PUBLIC_KEY": f"{ED} a", "SSH_KEY": f"{ED} b\n{RSA} b", "SSH_PUBLIC_KEY": EC, "SSH_PUBKEY": SK})
    assert keys.lines == (f"{ED} a", f"{RSA} b", EC, SK)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="no ssh-keygen here")
@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa -b 256", "ecdsa -b 384", "ecdsa -b 521"])
def test_openssh_counts_as_many_keys_as_we_do(tmp_path, kind):
    for name in ("one", "two"):
        command = ["ssh-keygen", "-q", "-t", *kind.split(), "-N", "", "-C", f"key {name}", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    one, two = ((tmp_path / f"{name}.pub").read_text().strip() for name in ("one", "two"))
    converted = subprocess.run(
        ["ssh-keygen", "-e", "-f", str(tmp_path / "two.pub")], check=True, capture_output=True, text=True
    ).stdout
    private = (tmp_path / "one").read_text()
    for text in (f"{one} {two}", f"{one}\\n{two}", f"{one}\n{converted}", f"{one}\n{converted}\n{private}"):
        lines = read_keys({"PUBLIC_KEY": text}).lines
        (tmp_path / "authorized_keys").write_text("".join(f"{line}\n" for line in lines))
        listed = subprocess.run(
            ["ssh-keygen", "-lf", str(tmp_path / "authorized_keys")], check=True, capture_output=True, text=True
        )
        assert len(listed.stdout.splitlines()) == 2
        assert [line.split()[1] for line in lines] == [one.split()[1], two.split()[1]]


PARTS = st.sampled_from(
    [
        ED,
        RSA,
        EC,
        DAMAGED,
        *PUTTY,
        OPENSSH_PRIVATE,
        FROM,
        COMMAND,
        "null",
        "ssh-rsa",
        "AAAA",
        '"',
        "\\n",
        "\r\n",
        ",",
        "#",
    ]
)


@given(st.lists(PARTS | st.text(max_size=20), max_size=12), st.sampled_from(["", " ", "\n", ";"]))
def test_whatever_is_given_what_comes_out_is_lines_that_sshd_can_read(parts, between):
    keys = read_keys({"PUBLIC_KEY": between.join(parts)})
    for line in keys.lines:
        assert line.isprintable()
        assert any(key.split()[1] in line for key in (ED, RSA, EC, SK))
        assert "PRIVATE" not in line
    assert len(keys.lines) <= 3
