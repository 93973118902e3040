"""Make the kept store of this version: ``python -m tests.kept_stores`` writes it beside this file.

Run it once for each release, and add the archive to the repository. It holds the store of a broker that was
stopped (``store``), the files that the broker offloaded (``tier``), and what is in them (``expected.json``).
"""

import json
import tarfile
import tempfile
from pathlib import Path

import geminga
from tests.kept_stores.content import SETTINGS, fill


def make(archive: Path) -> None:
    """Fill a new store and pack it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tier = str(folder / "tier")
        with geminga.embedded(folder / "store", offload_location=tier, **SETTINGS) as broker:
            expected = fill(broker)
        claim = folder / "tier/_claim.json"
        claim.write_text(json.dumps(json.loads(claim.read_text()) | {"who": "a kept store"}))
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
        with tarfile.open(archive, "w:xz") as packed:
            for part in ("expected.json", "store", "tier"):
                packed.add(folder / part, part, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    return member.replace(uid=0, gid=0, uname="", gname="", deep=False)


if __name__ == "__main__":
    target = Path(__file__).parent / f"{geminga.__version__}.tar.xz"
    make(target)
    print(f"{target}: {target.stat().st_size} bytes")
