"""Compile ``pulsar_wire.proto`` to its Python module and type stub: ``make proto``.

``--check`` compares with what is checked in and exits 1 on drift, touching nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO = Path(__file__).parent.parent / "src/geminga/wire/proto"
NAMES = ("pulsar_wire_pb2.py", "pulsar_wire_pb2.pyi")


def compile_to(folder: Path) -> None:
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}",
            f"--python_out={folder}", f"--pyi_out={folder}", str(PROTO / "pulsar_wire.proto"),
        ],
        check=True,
    )  # fmt: skip
    stub = folder / NAMES[1]
    # ``Schema.Type.None`` is fine at run time (through getattr) and no valid Python in a stub.
    stub.write_text(re.sub(r"^ +None: .*\n", "", stub.read_text(), flags=re.MULTILINE))


def main() -> int:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        compile_to(folder)
        fresh = {name: (folder / name).read_text() for name in NAMES}
    if "--check" in sys.argv:
        stale = [name for name in NAMES if (PROTO / name).read_text() != fresh[name]]
        if stale:
            print(f"stale: {', '.join(stale)}; run `make proto`", file=sys.stderr)
        return bool(stale)
    for name, text in fresh.items():
        (PROTO / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
