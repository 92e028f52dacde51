"""Write the bill of materials of a release as CycloneDX JSON. Run by `make dist`, with the wheel as its argument.

In: requirements/serve.txt, the metadata of the installed packages (licences, and which package requires which), and a
wheel. Out: `albertkit-VERSION.cdx.json` beside the wheel. It lists what the image installs: `albertkit[serve]` on
Python 3.12 and Linux. The hashes of a package are those of all its files.
"""

from __future__ import annotations

import hashlib
import re
import sys
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from dependencies import ROOT, declared, licence
from packageurl import PackageURL
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

IMAGE = {  # the markers of the image
    "python_version": "3.12", "python_full_version": "3.12.0", "os_name": "posix", "sys_platform": "linux",
    "platform_system": "Linux", "platform_machine": "x86_64", "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}  # fmt: skip


@dataclass(frozen=True)
class Locked:
    """One version in a lock, and the SHA-256 of each of its files."""

    name: str
    version: str
    hashes: tuple[str, ...]


def read_lock(path: Path, environment: dict[str, str] | None = None) -> list[Locked]:
    """The versions in a file that `make lock` has written; with an environment, only those that are installed there."""
    lines = path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        wanted = Requirement(line.partition(" --hash")[0])
        if environment is None or wanted.marker is None or wanted.marker.evaluate(dict(environment)):
            version = str(wanted.specifier).removeprefix("==")
            found.append(Locked(canonicalize_name(wanted.name), version, tuple(re.findall(r"sha256:(\w+)", line))))
    return found


def component(one: Locked) -> Component:
    found = distribution(one.name)
    if found.version != one.version:
        raise SystemExit(
            f"{one.name} {found.version} is installed: the image has {one.version}, and its licence is read from the "
            "installed package. Run `make dist` with Python 3.11 or newer."
        )
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/project/{one.name}/{one.version}/"),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=text) for text in one.hashes],
    )
    purl = PackageURL("pypi", None, one.name, one.version)
    terms = LicenseFactory().make_from_string(licence(found))
    return Component(
        name=one.name, version=one.version, purl=purl, bom_ref=str(purl), licenses=[terms], external_references=[files]
    )


def required(names: list[str], known: dict[str, Component]) -> list[Component]:
    return [known[canonicalize_name(name)] for name in names]


def write_sbom(wheel: Path) -> Path:
    """The bill of materials of this wheel, beside it."""
    version = wheel.name.split("-")[1]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    main = Component(
        name="albertkit", version=version, type=ComponentType.APPLICATION, bom_ref="albertkit",
        purl=PackageURL("pypi", None, "albertkit", version), licenses=[LicenseFactory().make_from_string("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )  # fmt: skip
    image = {**{key: str(value) for key, value in default_environment().items()}, **IMAGE, "extra": ""}
    known = {one.name: component(one) for one in read_lock(ROOT / "requirements" / "serve.txt", image)}
    bom = Bom(components=known.values(), serial_number=uuid5(NAMESPACE_URL, digest))
    bom.metadata.component = main
    own = declared()
    bom.register_dependency(main, required([*own["base"], *own["serve"]], known))
    for name, one in known.items():
        asked = [Requirement(text) for text in distribution(name).requires or ()]
        names = sorted({r.name for r in asked if r.marker is None or r.marker.evaluate(dict(image))})
        bom.register_dependency(one, required(names, known))
    path = wheel.with_name(f"albertkit-{version}.cdx.json")
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    print(write_sbom(Path(sys.argv[1])))
