"""``geminga token``: files and options of ``pulsar tokens``."""

import base64
import errno
import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from doubles import raising

from geminga.cli.token import command
from geminga.errors import UsageError


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, arguments, input=stdin)


def good(*arguments: str, stdin: str | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output.strip()


def test_a_secret_signs_and_verifies(tmp_path):
    key = tmp_path / "key"
    good("create-secret-key", "--output", str(key))
    assert len(key.read_bytes()) == 32
    assert key.stat().st_mode & 0o777 == 0o600
    token = good("create", "--secret-key", f"file://{key}", "--subject", "joe", "-e", "1h")
    header, claims = good("show", token).split("\n---\n")
    assert json.loads(header) == {"alg": "HS256"}
    assert json.loads(claims)["sub"] == "joe"
    assert 3500 < json.loads(claims)["exp"] - time.time() <= 3600
    as_base64 = base64.b64encode(key.read_bytes()).decode()
    for form in (str(key), f"file://{key}", f"data:;base64,{as_base64}", as_base64):
        assert json.loads(good("validate", "-sk", form, token))["sub"] == "joe"
    (tmp_path / "token").write_text(token + "\n")
    assert good("show", "-f", str(tmp_path / "token")) == good("show", "-i", stdin=token)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES512"])
def test_a_pair_signs_and_verifies(tmp_path, algorithm):
    private, public = str(tmp_path / "private"), str(tmp_path / "public")
    good("create-key-pair", "-a", algorithm, "--output-private-key", private, "--output-public-key", public)
    assert Path(private).stat().st_mode & 0o777 == 0o600
    token = good("create", "--private-key", private, "--subject", "joe", "-hs", "kid=1")
    assert json.loads(good("show", token).split("\n---\n")[0]) == {"alg": algorithm, "kid": "1"}
    assert json.loads(good("validate", "-pk", public, token)) == {"sub": "joe"}
    key = good("create-secret-key", "-b", "-a", "HS512")
    refused = run("validate", "-sk", key, token)
    assert refused.exit_code == 1
    assert "algorithm" in refused.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("create", "-s", "joe"), "either"),
        (("create", "-s", "joe", "-sk", "a", "-pk", "b"), "either"),
        (("create", "-s", "joe", "-sk", "A" * 44, "-a", "HS512"), "does not suit"),
        (("create", "-s", " ", "-sk", "A" * 44), "empty"),
        (("create", "-s", "joe", "-sk", "A" * 44, "-e", "soon"), "is not a time such as"),
        (("create", "-s", "joe", "-sk", "A" * 44, "-hs", "alg=none"), "NAME=VALUE"),
        (("validate", "x.y.z"), "either"),
        (("show",), "give a token"),
    ],
)
def test_wrong_usage_is_explained(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize("key", ["file:///no/such/file", "not base64!", "AAAA", "env:KEY"])
def test_a_key_is_never_shown(key):
    result = run("create", "-s", "joe", "-sk", key)
    assert isinstance(result.exception, UsageError)
    assert key.startswith("file:") or key not in str(result.exception)


@pytest.mark.parametrize("exists", [True, False])
def test_a_key_that_is_written_to_a_link_is_only_for_its_owner(tmp_path, exists):
    target, link = tmp_path / "target", tmp_path / "link"
    if exists:
        target.touch(0o644)
    link.symlink_to(target)
    assert run("create-secret-key", "--output", str(link)).exit_code == 0
    assert link.is_symlink()
    assert (target.stat().st_mode & 0o777, len(target.read_bytes())) == (0o600, 32)


def test_a_key_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    key = tmp_path / "key"
    key.write_bytes(b"before")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
        assert run("create-secret-key", "--output", str(key)).exit_code != 0
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"key": b"before"}
    # Processes of containers often have the same number: the file of a killed one is not in the way.
    (tmp_path / f".key.{os.getpid()}").write_bytes(b"killed")
    good("create-secret-key", "--output", str(key))
    assert len(key.read_bytes()) == 32
