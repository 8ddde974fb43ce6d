"""Write ``src/partage/edges/kubelet/_generated`` anew from the files in this folder: ``make proto``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent
PACKAGE = "partage/edges/kubelet/_generated"
SOURCE = HERE.parent / "src"


def main() -> int:
    """The compiler's exit code. Its plugin for grpclib stands beside the interpreter."""
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    outputs = [f"--{kind}_out={SOURCE}" for kind in ("python", "pyi", "grpclib_python")]
    files = [f"{PACKAGE}/{path.name}" for path in sorted(HERE.glob("*.proto"))]
    arguments = ["protoc", f"-I{PACKAGE}={HERE}", *outputs, *files]
    return int(protoc.main(arguments))  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    sys.exit(main())
