"""Builds `src/albertkit/native/layers_*.so` before the package is installed or packed.

This needs Linux on x86-64 and a C compiler. Elsewhere, or with ALBERTKIT_NATIVE=0, the package is pure Python, and
onnxruntime computes the layers.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = (
    *("-O3", "-march=x86-64-v4", "-mavx512vnni", "-Wall", "-Wextra"),
    "-ffp-contract=off",  # a * b - c is rounded as it is written: the difference of two equal products is 0
    *("-shared", "-fPIC", "-fvisibility=hidden", "-pthread"),
)
BF16 = ["-mavx512bf16"]
LIBRARIES: dict[str, list[str]] = {
    "vnni": [],
    "bf16": BF16,
    "amx": [*BF16, "-mamx-tile", "-mamx-int8", "-mamx-bf16"],
}


def glibc_tag() -> str:
    """The tag of wheels for this C library and later ones."""
    _, version = platform.libc_ver()
    return f"py3-none-manylinux_{version.replace('.', '_')}_x86_64" if version else "py3-none-linux_x86_64"


def build(library: Path, options: list[str], compiler: list[str]) -> str:
    """Compile a library that is older than its sources. Returns the compiler's message if it fails."""
    sources = [Path(__file__), *library.parent.glob("*.[ch]")]
    if library.exists() and library.stat().st_mtime > max(source.stat().st_mtime for source in sources):
        return ""
    made = library.with_suffix(f".{os.getpid()}.so")
    command = [*compiler, *FLAGS, *options, "-o", str(made), str(library.parent / "layers.c"), "-lm"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:  # for example, a compiler that does not know these instructions
        made.unlink(missing_ok=True)
        library.unlink(missing_ok=True)
        return ran.stderr.strip()[-400:] or f"the compiler ended with code {ran.returncode}"
    made.replace(library)
    return ""


class NativeBuildHook(BuildHookInterface):
    """Compiles the libraries, and names the wheel for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before a wheel or an editable install."""
        folder = Path(self.root) / "src" / "albertkit" / "native"
        compiler = shlex.split(os.environ.get("CC") or "cc")
        is_here = sys.platform == "linux" and platform.machine() == "x86_64"
        if not is_here or os.environ.get("ALBERTKIT_NATIVE") == "0":
            return
        if shutil.which(compiler[0]) is None:
            self.app.display_warning(f"There is no compiler {compiler[0]!r}: onnxruntime will compute the layers.")
            return
        for name, options in LIBRARIES.items():
            library = folder / f"layers_{name}.so"
            error = build(library, options, compiler)
            if error:
                self.app.display_warning(f"{library.name} was not built: {error}")
                continue
            build_data["pure_python"] = False
            build_data["tag"] = glibc_tag()
            build_data["artifacts"].append(f"/src/albertkit/native/{library.name}")
