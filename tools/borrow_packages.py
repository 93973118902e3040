"""Let another virtual environment have this one's packages, behind its own.

    python tools/borrow_packages.py .venv-spark-4.2

What is installed into it comes first; everything else is found here.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def main() -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    theirs = Path(sys.argv[1]) / "lib" / version / "site-packages"
    folders = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (theirs / "borrowed.pth").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
