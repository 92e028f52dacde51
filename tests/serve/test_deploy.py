"""The container, compose and Kubernetes files: in step with the server they start."""

from __future__ import annotations

import dataclasses
import re

import yaml

from albertkit.serve.app import ENDPOINTS
from albertkit.serve.serve_settings import PREFIX, ServeSettings
from tests.conftest import ROOT

FILES = ("Dockerfile", "compose.yaml", "deploy/kubernetes.yaml", "docs/guides/serving.md")


def test_every_variable_is_a_setting():
    known = {f.name.upper() for f in dataclasses.fields(ServeSettings)} | {
        "MODELS",
        "KEYS",
        "ADMIN_KEY",
        "PARENT",
        "OPTION",
    }
    for name in FILES:
        found = set(re.findall(rf"{PREFIX}([A-Z_]+)", (ROOT / name).read_text(encoding="utf-8")))
        assert found and found <= known, (name, found - known)


def test_probes_ask_what_is_there_and_needs_no_key():
    open_paths = {e.path for e in ENDPOINTS if e.is_public}
    kinds = {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8"))}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] in open_paths
    assert container["ports"][0]["containerPort"] == ServeSettings().port
    assert set(container["resources"]) == {"requests", "limits"} and pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] > ServeSettings().shutdown_timeout + 5
    assert kinds["Service"]["spec"]["selector"].items() <= kinds["Deployment"]["spec"]["template"]["metadata"]["labels"].items()  # fmt: skip
    (service,) = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert service["ports"] == ["127.0.0.1:8080:8080"] and service["read_only"]


def test_the_image_copies_only_what_is_there():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY ([^-].*) \S+$", text, re.M) for name in line.split()]
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)
    assert sorted(copied) == sorted(kept) and all((ROOT / name).exists() for name in copied)
    assert re.search(r"/health\b", text) and "USER 10001" in text
