"""What is installed, built and published: exact versions with hashes, pinned actions and images, a bill of materials."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.metadata import distribution, distributions
from itertools import product

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import albertkit
from tests.conftest import ROOT, program

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

LOCKS = {
    "base": (),
    "frozen": ("frozen",),
    "serve": ("serve",),
    "build": None,
}  # extras; None is the group of that name
PYTHONS = ("3.11", "3.12", "3.13")  # constraints.txt has the versions for these; the lock also those for 3.10
SYSTEMS = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64"), ("win32", "Windows", "AMD64"))  # fmt: skip
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(scope="module")
def sbom():
    return program("docs/sbom")


def environment(python: str, system: tuple[str, str, str]) -> dict[str, str]:
    """The markers of a machine: version of Python, then sys_platform, platform_system and platform_machine."""
    names = ("sys_platform", "platform_system", "platform_machine")
    here = {key: str(value) for key, value in default_environment().items()}
    return {**here, "python_version": python, "python_full_version": f"{python}.1", **dict(zip(names, system, strict=True)), "extra": ""}  # fmt: skip


def pins() -> dict[str, str]:
    """constraints.txt: name → version."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in wanted}


def wanted(lock: str) -> list[Requirement]:
    """The requirements of pyproject.toml that a lock answers."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = LOCKS[lock]
    if extras is None:
        return [Requirement(text) for text in about["dependency-groups"][lock]]
    lists = [about["project"]["dependencies"], *(about["project"]["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(text) for texts in lists for text in texts]


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_locked_with_what_it_requires(sbom, lock):
    here = {key: str(value) for key, value in default_environment().items()} | {"extra": ""}
    locked = {one.name: one.version for one in sbom.read_lock(ROOT / "requirements" / f"{lock}.txt", here)}
    waiting, seen = wanted(lock), set()
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        assert name in locked and one.specifier.contains(locked[name], prereleases=True), f"{one}; run  make lock"
        if name not in seen:
            seen.add(name)
            needed = [Requirement(text) for text in distribution(name).requires or ()]
            waiting += [each for each in needed if each.marker is None or each.marker.evaluate(here)]
    assert seen == set(locked), "nothing else is in it"


@pytest.mark.parametrize("lock", LOCKS)
def test_the_lock_has_the_versions_of_the_constraints(sbom, lock):
    known = pins()
    for python, system in product(PYTHONS, SYSTEMS):
        found = sbom.read_lock(ROOT / "requirements" / f"{lock}.txt", environment(python, system))
        assert {one.name: one.version for one in found} == {one.name: known.get(one.name) for one in found}
    oldest = sbom.read_lock(ROOT / "requirements" / f"{lock}.txt", environment("3.10", SYSTEMS[0]))
    assert {canonicalize_name(one.name) for one in wanted(lock)} <= {one.name for one in oldest}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_version_has_hashes_and_no_index_is_named(sbom, lock):
    path = ROOT / "requirements" / f"{lock}.txt"
    found = sbom.read_lock(path)
    assert found and all(one.hashes for one in found), [one.name for one in found if not one.hashes]
    assert all(re.fullmatch("[0-9a-f]{64}", text) for one in found for text in one.hashes)
    assert len({(one.name, one.version) for one in found}) == len(found)
    text = path.read_text(encoding="utf-8")
    assert "://" not in text and not re.search(r"^(-i|-f|--(index|extra|find|trusted))", text, re.M)
    assert "torch" not in {one.name for one in found}


@pytest.mark.parametrize("lock", ["base", "frozen"])
def test_no_http_library_is_installed_with_the_base(sbom, lock):
    names = {one.name for one in sbom.read_lock(ROOT / "requirements" / f"{lock}.txt")}
    assert names.isdisjoint({"requests", "urllib3", "aiohttp", "httpx", "httpx2", "httpcore", "httpcore2", "h11"})
    assert names.isdisjoint({"tokenizers", "huggingface-hub", "hf-xet", "torch"})


def test_pins_that_need_a_newer_python_say_so():
    """Where a version does not run on Python 3.10, pip may choose an older one there."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    limited = {canonicalize_name(Requirement(line).name) for line in lines if line.endswith('; python_version >= "3.11"')}  # fmt: skip
    oldest = "3.10.13"
    newer = {
        canonicalize_name(one.metadata["Name"])
        for one in distributions()
        if oldest not in SpecifierSet(one.metadata.get("Requires-Python") or "")
    }
    assert newer & set(pins()) == limited & {canonicalize_name(one.metadata["Name"]) for one in distributions()}


def test_actions_are_pinned_by_commit():
    for path in WORKFLOWS:
        uses = re.findall(r"uses: (\S+)(.*)$", path.read_text(encoding="utf-8"), re.M)
        assert uses
        for action, comment in uses:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action), f"{path.name}: {action}"
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), f"{path.name}: {action} does not name its version"


def test_workflows_may_only_read_and_store_no_secret():
    for path in WORKFLOWS:
        about = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert about["permissions"] == {"contents": "read"} and "secrets." not in path.read_text(encoding="utf-8")
        for name, job in about["jobs"].items():
            assert job.get("permissions", {}) in ({}, {"id-token": "write"}), name
            assert all(not step["with"]["persist-credentials"] for step in job["steps"] if "checkout" in step.get("uses", ""))  # fmt: skip


def test_the_image_is_built_from_a_digest_and_from_hashed_packages():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (base,) = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", text, re.M)
    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) == {"${PYTHON_IMAGE}"}
    installs = re.findall(r"pip install ([^&\n]+)", text)
    assert installs
    for command in installs:
        assert "--require-hashes" in command or {"--no-index", "--no-deps"} <= set(command.split()), command


def test_images_have_a_version():
    files = ["Dockerfile", "compose.yaml", "deploy/kubernetes.yaml", "docs/guides/serving.md", "docs/zh/guides/serving.md"]  # fmt: skip
    for name in files:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert ":latest" not in text, name
        tags = re.findall(
            r"(?:image: |docker build -t |-e ALBERTKIT_SERVE_KEYS=one,two |models:ro )albertkit(\S*)", text
        )
        assert tags and set(tags) == {f":{albertkit.__version__}"}, (name, tags)


def test_the_bill_of_materials_is_valid_and_complete(sbom, tmp_path):
    wheel = tmp_path / f"albertkit-{albertkit.__version__}-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    text = sbom.write_sbom(wheel).read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    main = found["metadata"]["component"]
    assert (main["name"], main["version"]) == ("albertkit", albertkit.__version__)
    assert main["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"a wheel").hexdigest()}]
    locked = sbom.read_lock(ROOT / "requirements" / "serve.txt", environment("3.12", SYSTEMS[0]))
    assert {(one["name"], one["version"]) for one in found["components"]} == {(one.name, one.version) for one in locked}
    assert all(one["purl"] == f"pkg:pypi/{one['name']}@{one['version']}" and one["licenses"] for one in found["components"])  # fmt: skip
    edges = {one["ref"]: set(one.get("dependsOn", ())) for one in found["dependencies"]}
    reached, waiting = set(), [main["bom-ref"]]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += edges[ref]
    assert reached == set(edges) and len(reached) == len(locked) + 1, "each package is required by another"
