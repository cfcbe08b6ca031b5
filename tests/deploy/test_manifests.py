"""What the manifests in deploy/ promise. Where the tools are there (`make check-deploy`), they are rendered by
kustomize and held against Kubernetes' own schemas; the rest needs only YAML."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
RENDERED = ("base", "overlays/cpu", "overlays/gpu")
CORE = ("apps/", "v1", "policy/", "networking.k8s.io/", "autoscaling/")
Document = dict[str, Any]


def documents() -> Iterator[Document]:
    """Every manifest as it stands, patches and kustomizations aside."""
    for path in sorted([*KUBERNETES.rglob("*.yaml"), DEPLOY / "knative" / "service.yaml"]):
        if path.name != "kustomization.yaml":
            yield from (document for document in yaml.safe_load_all(path.read_text()) if document)


def pods() -> dict[str, Document]:
    """The pod of each Deployment and of the Knative service, by name."""
    return {
        f"{document['kind']}/{document['metadata']['name']}": document["spec"]["template"]["spec"]
        for document in documents()
        if "template" in document.get("spec", {})
    }


def rendered(folder: str) -> list[Document]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUBERNETES / folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def settings_named() -> set[str]:
    return set(re.findall(r"\| `(LLM_\w+)` \|", (ROOT / "docs" / "configuration.md").read_text()))


def variables(pod: Document) -> dict[str, Document]:
    return {entry["name"]: entry for container in pod["containers"] for entry in container.get("env", ())}


def test_there_is_something_to_look_at() -> None:
    assert len(pods()) == 5


@pytest.mark.parametrize("name", pods())
def test_a_container_may_do_nothing_that_it_needs_not(name: str) -> None:
    pod = pods()[name]

    for container in pod["containers"]:
        context = pod.get("securityContext", {}) | container["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {"/tmp", "/cache"} <= {mount["mountPath"] for mount in container["volumeMounts"]}  # noqa: S108
        assert container["resources"]["limits"]["memory"]
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("name", [name for name in pods() if name.startswith("Deployment/")])
def test_a_pod_has_time_to_drain(name: str) -> None:
    """preStop, LLM_DRAIN_TIMEOUT_S and the last words have to fit before Kubernetes loses patience."""
    pod = pods()[name]
    literals = yaml.safe_load((KUBERNETES / "base" / "kustomization.yaml").read_text())["configMapGenerator"][
        0
    ]
    drain = dict(item.split("=", 1) for item in literals["literals"])["LLM_DRAIN_TIMEOUT_S"]
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])

    assert before + float(drain) + 10 <= pod["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", pods())
def test_a_pod_is_probed_and_a_gateway_s_life_hangs_on_no_backend(name: str) -> None:
    container = pods()[name]["containers"][0]
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("liveness", "readiness")}
    runner = any("Runner" in word for word in container.get("args", ()))

    assert paths == (
        {"liveness": "/livez", "readiness": "/readyz"}
        if runner
        else {"liveness": "/health", "readiness": "/ready"}
    )


@pytest.mark.parametrize("name", pods())
def test_every_variable_is_one_that_the_service_knows(name: str) -> None:
    known = settings_named()
    ours = {variable for variable in variables(pods()[name]) if variable.startswith("LLM_")}

    assert {variable for variable in ours if not variable.startswith("LLM_ARGS__")} <= known


@pytest.mark.parametrize("name", pods())
def test_secrets_come_by_reference(name: str) -> None:
    for variable, entry in variables(pods()[name]).items():
        if re.search(r"TOKEN(S?)$|KEY$", variable):
            assert "secretKeyRef" in entry["valueFrom"], variable


def test_runners_are_reached_by_gateways_only() -> None:
    policy = next(document for document in documents() if document["metadata"]["name"] == "inference-runners")
    (guarded,) = [
        set(rule["values"])
        for rule in policy["spec"]["podSelector"]["matchExpressions"]
        if rule["key"] == "app.kubernetes.io/component"
    ]
    runners = {
        document["metadata"]["labels"]["app.kubernetes.io/component"]
        for document in documents()
        if document["kind"] == "Deployment" and "gateway" not in document["metadata"]["name"]
    }

    assert runners == guarded
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"


def test_no_service_s_name_makes_kubernetes_invent_settings() -> None:
    """Kubernetes puts NAME_SERVICE_HOST and the like into every pod; LLM_… would be taken for settings."""
    names = [document["metadata"]["name"] for document in documents() if document["kind"] == "Service"]

    assert not [name for name in names if name.startswith("llm")]


def test_the_autoscalers_ask_for_metrics_that_exist() -> None:
    exported = set(re.findall(r"`(llm:\w+)`", (ROOT / "docs" / "metrics.md").read_text()))
    scaled = next(document for document in documents() if document["kind"] == "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]

    assert set(re.findall(r"llm:\w+", query)) <= exported


def test_the_gpu_runner_asks_for_a_gpu_and_a_node_that_has_one() -> None:
    pod = pods()["Deployment/inference-vllm"]

    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod["nodeSelector"] == {"nvidia.com/gpu.present": "true"}


@pytest.mark.deploy
@pytest.mark.parametrize("folder", RENDERED)
def test_kustomize_renders_it_and_selectors_find_their_pods(folder: str) -> None:
    found = rendered(folder)
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in found
        if document["kind"] == "Deployment"
    ]

    for document in found:
        if document["kind"] in ("Service", "PodDisruptionBudget", "Deployment"):
            selector = document["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            assert sum(wanted <= pod.items() for pod in labels) == 1, document["metadata"]["name"]


@pytest.mark.deploy
@pytest.mark.parametrize("folder", RENDERED)
def test_it_is_what_kubernetes_accepts(folder: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make check-deploy installs it")

    for document in rendered(folder):
        if document["apiVersion"].startswith(CORE):
            kubernetes_validate.validate(document, "1.31", strict=True)


@pytest.mark.deploy
def test_the_pod_inside_the_knative_service_is_what_kubernetes_accepts() -> None:
    """Knative's own fields aside, its template is a pod."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="make check-deploy installs it")
    pod = pods()["Service/inference"]
    own = ("containerConcurrency", "timeoutSeconds", "responseStartTimeoutSeconds")

    kubernetes_validate.validate(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "inference"},
            "spec": {name: value for name, value in pod.items() if name not in own},
        },
        "1.31",
        strict=True,
    )


class TestCompose:
    FILE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())

    def test_the_contract_s_name_and_port_are_published(self) -> None:
        for name in ("api", "gateway"):
            service = self.FILE["services"][name]

            assert service["container_name"] == "didiAI-llm-api"
            assert service["ports"] == ["${LLM_PORT:-14011}:14011"]

    def test_a_runner_is_not_published(self) -> None:
        assert "ports" not in self.FILE["services"]["llamacpp"]

    def test_no_profile_needs_what_only_another_one_uses(self) -> None:
        """Compose asks for required variables whichever profile is started."""
        assert not re.search(r"\$\{\w+:?\?", (DEPLOY / "compose.yaml").read_text())

    def test_docker_waits_longer_than_the_drain(self) -> None:
        for service in self.FILE["services"].values():
            assert int(service["stop_grace_period"].removesuffix("s")) >= 25 + 30

    def test_every_volume_is_declared(self) -> None:
        used = {
            volume.split(":")[0]
            for service in self.FILE["services"].values()
            for volume in service["volumes"]
        }

        assert used == set(self.FILE["volumes"])
