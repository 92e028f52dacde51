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


def test_the_server_in_a_container_has_keys():
    """A missing or empty secret stops it; it is never open by mistake."""
    text = (ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8")
    kinds = {d["kind"]: d for d in yaml.safe_load_all(text)}
    (container,) = kinds["Deployment"]["spec"]["template"]["spec"]["containers"]
    secrets = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e}
    assert set(secrets) == {f"{PREFIX}KEYS", f"{PREFIX}ADMIN_KEY"}
    assert not any(secret.get("optional") for secret in secrets.values())
    hosts = next(e["value"] for e in container["env"] if e["name"] == f"{PREFIX}HOSTS").split(",")
    assert kinds["Service"]["metadata"]["name"] in hosts and "*" not in hosts
    (service,) = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert service["environment"][f"{PREFIX}KEYS"].startswith(f"${{{PREFIX}KEYS:?")
    assert service["environment"][f"{PREFIX}ADMIN_KEY"] is None  # compose passes it on only if it is set
    for name in ("Dockerfile", "compose.yaml", "deploy/kubernetes.yaml"):
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        assert not any("no-auth" in line and not line.startswith("#") for line in lines), name
    assert "SERVE_AUTH" not in text + (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_pods_are_reached_at_one_port_and_reach_nothing():
    kinds = {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8"))}
    template = kinds["Deployment"]["spec"]["template"]
    policy = kinds["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == template["metadata"]["labels"]
    assert policy["policyTypes"] == ["Ingress", "Egress"] and not policy.get("egress")
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": ServeSettings().port}]}]


def test_pods_have_no_rights():
    kinds = {d["kind"]: d for d in yaml.safe_load_all((ROOT / "deploy/kubernetes.yaml").read_text(encoding="utf-8"))}
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    limits = container["securityContext"]
    assert limits["readOnlyRootFilesystem"] and limits["allowPrivilegeEscalation"] is False
    assert limits["capabilities"] == {"drop": ["ALL"]}
    (service,) = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"].values()
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]


def test_the_image_copies_only_what_is_there():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY ([^-].*) \S+$", text, re.M) for name in line.split()]
    kept = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.M)
    assert sorted(copied) == sorted(kept) and all((ROOT / name).exists() for name in copied)
    assert re.search(r"/health\b", text) and "USER 10001" in text
