"""Fetch onnxruntime-web from npm into .cache/web, in the version and with the hashes of `onnxruntime-web.json`.

Run by `make web`. `albertkit export --web` and the tests in Chromium find it there. Nothing fetched is executed.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from albertkit.errors import AlbertkitError
from albertkit.file_io import read_json
from albertkit.interop.web_export import CLONE_FOLDER, WEB, runtime_files


def is_there() -> bool:
    """Whether the files were fetched before."""
    try:
        return bool(runtime_files(CLONE_FOLDER))
    except AlbertkitError:
        return False


def main() -> int:
    pinned = read_json(WEB / "onnxruntime-web.json")
    package = f"onnxruntime-web@{pinned['version']}"
    if is_there():
        print(f"{package} is there: {CLONE_FOLDER}")
        return 0
    if shutil.which("npm") is None:
        print("npm is not installed; install Node.js 20 or newer")
        return 1
    CLONE_FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CLONE_FOLDER.parent) as folder:
        work = Path(folder)
        command = ["npm", "pack", "--silent", "--fetch-retries=1", package]
        if subprocess.run(command, cwd=work, stdout=subprocess.DEVNULL).returncode:
            print(f"npm cannot fetch {package}; check the connection")
            return 1
        (archive,) = work.glob("*.tgz")
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if found != pinned["integrity"]:
            print(f"{package} has the hash {found}, but {pinned['integrity']} is pinned")
            return 1
        (work / "package" / "dist").mkdir(parents=True)
        with tarfile.open(archive) as tar:
            for name in pinned["files"]:
                file = tar.extractfile(f"package/dist/{name}")
                assert file is not None, name
                (work / "package" / "dist" / name).write_bytes(file.read())
        runtime_files(work / "package")
        shutil.rmtree(CLONE_FOLDER, ignore_errors=True)
        (work / "package").rename(CLONE_FOLDER)
    print(f"{package}: {CLONE_FOLDER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
