"""``geminga token``: keys and tokens, compatible with ``pulsar tokens``."""

import base64
import datetime as dt
import json
import os
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import click

from geminga.broker.rules.tokens import (
    CURVE_ALGORITHMS,
    RSA_ALGORITHMS,
    SECRET_ALGORITHMS,
    TokenMethod,
    jwt_library,
    load_private_key,
    load_public_key,
    make_token,
    parts_of,
    secret_algorithms,
)
from geminga.broker.serving.credentials import read_key, read_secret
from geminga.cli.common import Commands, with_options, write_private
from geminga.cli.units import SPAN
from geminga.errors import UsageError

_RSA_BITS = {"RS256": 2048, "RS384": 3072, "RS512": 4096, "PS256": 2048, "PS384": 3072, "PS512": 4096}
_PAIR_ALGORITHMS = (*RSA_ALGORITHMS, *CURVE_ALGORITHMS.values())


@click.group("token", cls=Commands)
def command() -> None:
    """Create keys and tokens for brokers with authentication, and show or verify tokens.

    The options are those of `pulsar tokens`. A KEY is a file, file:///PATH, data:;base64,... or base64.
    """


@command.command("create-secret-key")
@click.option(
    "-a", "--signature-algorithm", "algorithm", type=click.Choice(tuple(SECRET_ALGORITHMS)), default="HS256",
    show_default=True, help="Signature algorithm.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
    help="Output file; without: standard output.",
)  # fmt: skip
@click.option("-b", "--base64", "as_base64", is_flag=True, help="Encode the key as base64.")
def create_secret_key(algorithm: str, output: Path | None, as_base64: bool) -> None:
    """Create a secret key that signs and verifies tokens."""
    key = secrets.token_bytes(SECRET_ALGORITHMS[algorithm])
    data = base64.b64encode(key) if as_base64 else key
    if output is not None:
        write_private(output, data)
        return
    if sys.stdout.isatty() and not as_base64:
        raise UsageError("the secret is 32 bytes or more, not text: give --output FILE or --base64")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@command.command("create-key-pair")
@click.option(
    "-a", "--signature-algorithm", "algorithm", type=click.Choice(_PAIR_ALGORITHMS), default="RS256",
    show_default=True, help="Signature algorithm.",
)  # fmt: skip
@click.option(
    "--output-private-key", "private_key", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="File for the private key, which signs tokens.",
)  # fmt: skip
@click.option(
    "--output-public-key", "public_key", required=True, type=click.Path(dir_okay=False, path_type=Path),
    help="File for the public key, which the broker needs.",
)  # fmt: skip
def create_key_pair(algorithm: str, private_key: Path, public_key: Path) -> None:
    """Create a private key that signs tokens, and its public key."""
    jwt_library()
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    if algorithm in _RSA_BITS:
        key = rsa.generate_private_key(65_537, _RSA_BITS[algorithm])
    else:
        curves = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}
        key = ec.generate_private_key(curves[algorithm])
    write_private(private_key, key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))
    write_private(public_key, key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


@command.command("create")
@click.option("-s", "--subject", required=True, help="Role of the token.")
@click.option("-e", "--expiry-time", "span", type=SPAN, help="Validity, such as 1h or 3d.  [default: no end]")
@click.option("-sk", "--secret-key", metavar="KEY", help="Secret key to sign with.")
@click.option("-pk", "--private-key", metavar="KEY", help="Private key to sign with.")
@click.option(
    "-a", "--signature-algorithm", "algorithm", type=click.Choice((*SECRET_ALGORITHMS, *_PAIR_ALGORITHMS)),
    help="Signature algorithm.  [default: the shortest that suits the key]",
)  # fmt: skip
@click.option(
    "-hs", "--headers", multiple=True, metavar="NAME=VALUE", help="Further header; may be repeated."
)
def create(
    subject: str,
    span: dt.timedelta | None,
    secret_key: str | None,
    private_key: str | None,
    algorithm: str | None,
    headers: tuple[str, ...],
) -> None:
    """Sign a token for a role and print it."""
    key: Any
    if (secret_key is None) == (private_key is None):
        raise click.UsageError("give either --secret-key or --private-key")
    if secret_key is not None:
        key = read_secret(secret_key, "--secret-key")
        possible = secret_algorithms(key)
    else:
        key, possible = load_private_key(read_key(str(private_key), "--private-key"))
    if algorithm is not None and algorithm not in possible:
        raise click.UsageError(
            f"--signature-algorithm {algorithm} does not suit the key; {', '.join(possible)} do"
        )
    if not subject.strip():
        raise click.UsageError("--subject must not be empty")
    if span == dt.timedelta():
        raise click.UsageError("--expiry-time 0: the token would never be valid; leave it out for no end")
    extra: dict[str, Any] = {}
    for header in headers:
        name, equals, value = header.partition("=")
        if not equals or name in ("alg", "crit", "b64"):
            raise click.UsageError(f"--headers {header} is not NAME=VALUE with a name of your own")
        extra[name] = value
    expires = None if span is None else int(time.time() + span.total_seconds())
    click.echo(make_token(subject, key, algorithm or possible[0], expires_at=expires, headers=extra))


_token_options = with_options(
    click.option("-f", "--token-file", type=click.Path(path_type=Path), help="Read the token from a file."),
    click.option("-i", "--stdin", "from_stdin", is_flag=True, help="Read the token from standard input."),
    click.argument("token", required=False),
)


def _given_token(token: str | None, from_stdin: bool, file: Path | None) -> str:
    if from_stdin:
        return sys.stdin.read().strip()
    if file is not None:
        return file.read_text().strip()
    found = token or os.environ.get("TOKEN")
    if not found:
        raise click.UsageError("give a token, --stdin, --token-file, or the variable TOKEN")
    return found.strip()


@command.command("show")
@_token_options
def show(token: str | None, from_stdin: bool, token_file: Path | None) -> None:
    """Print header and claims of a token without verifying it."""
    header, claims = parts_of(_given_token(token, from_stdin, token_file))
    click.echo(f"{header}\n---\n{claims}")


@command.command("validate")
@_token_options
@click.option("-sk", "--secret-key", metavar="KEY", help="Secret key of the signature.")
@click.option("-pk", "--public-key", metavar="KEY", help="Public key of the signature.")
def validate(
    token: str | None,
    from_stdin: bool,
    token_file: Path | None,
    secret_key: str | None,
    public_key: str | None,
) -> None:
    """Verify a token and print its claims; fails if the signature is wrong or the token has expired."""
    from geminga.broker.rules.authentication import Unauthenticated

    key: Any
    if (secret_key is None) == (public_key is None):
        raise click.UsageError("give either --secret-key or --public-key")
    if secret_key is not None:
        key = read_secret(secret_key, "--secret-key")
        algorithms = secret_algorithms(key)
    else:
        key, algorithms = load_public_key(read_key(str(public_key), "--public-key"))
    text = _given_token(token, from_stdin, token_file)
    try:
        claims = TokenMethod(key, algorithms).claims(text.encode(), time.time_ns() // 1_000_000)
    except Unauthenticated as error:
        raise click.ClickException(str(error)) from None
    click.echo(json.dumps(claims, separators=(",", ":")))
