"""The chart without a cluster: lint, schemas of Kubernetes, values, and what is made from it."""

import copy
import os
import pathlib
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

from cluster import CACHE, ROOT

CHART = ROOT / "integrations/kubernetes/chart"
HELM = CACHE / "kubernetes/tools/helm"
EVERYTHING = "serviceMonitor.enabled=true,prometheusRule.enabled=true,grafana.enabled=true"
# The oldest schema is the oldest of the package. A real API server of 1.20 reads the chart in test_install.py.
OLDEST, NEWEST = 25, 37


@pytest.fixture(scope="module")
def helm(tmp_path_factory):
    home = tmp_path_factory.mktemp("helm")

    def run(*words, check=True):
        done = subprocess.run([HELM, *words], env={**os.environ, "HOME": str(home)}, capture_output=True, text=True)
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


def objects(helm, *words):
    text = helm("template", "vgpu", CHART, "--namespace", "vgpu-system", *words).stdout
    return {one["kind"]: one for one in yaml.safe_load_all(text) if one}


def validate(one, minor):
    kubernetes_validate.validate(one, f"1.{minor}", strict=True)


def test_the_linter_finds_nothing(helm):
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, "--set", EVERYTHING).stdout


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_the_schemas_of_kubernetes_accept_every_object(helm, minor):
    found = objects(helm, "--set", EVERYTHING)
    for kind in ("ServiceMonitor", "PrometheusRule"):
        # Objects of Prometheus' operator, whose schema is not Kubernetes'.
        assert found.pop(kind)["apiVersion"] == "monitoring.coreos.com/v1"
    assert set(found) == {"ServiceAccount", "ConfigMap", "DaemonSet", "Service", "NetworkPolicy"}
    for one in found.values():
        validate(one, minor)
    # The check can fail.
    wrong = copy.deepcopy(found["DaemonSet"])
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(wrong, minor)


def containers(daemon_set):
    spec = daemon_set["spec"]["template"]["spec"]
    return {one["name"]: one for one in spec["initContainers"] + spec["containers"]}


def test_nothing_is_privileged_and_the_page_lists_every_capability_and_host_path(helm):
    daemon_set = objects(helm)["DaemonSet"]
    page = (ROOT / "docs/kubernetes.md").read_text()
    table = page.split("## Rights")[1].split("\n## ")[0]
    rights = set()
    for one in containers(daemon_set).values():
        context = one["securityContext"]
        assert not context.get("privileged") and context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True and context["capabilities"]["drop"] == ["ALL"]
        rights |= set(context["capabilities"].get("add", []))
    spec = daemon_set["spec"]["template"]["spec"]
    assert not spec.get("hostNetwork") and not spec.get("hostIPC")
    assert spec["automountServiceAccountToken"] is False
    listed = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    paths = {volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    assert listed == {f"CAP_{right}" for right in rights} | paths | {"hostPID"}


def test_the_yaml_of_the_page_is_part_of_a_pod_with_slices_and_annotations_that_the_page_names():
    page = (ROOT / "docs/kubernetes.md").read_text()
    texts = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    slices = set(re.findall(r'kubernetes = "(\w+)"', page))
    row = next(line for line in page.splitlines() if line.startswith("| `vgpu.internal/container.NAME.KEY` |"))
    keys = set(re.findall(r"`([\w-]+)`", row))
    annotations, resources = {}, {}
    for block in map(yaml.safe_load, texts):
        annotations |= block.get("metadata", {}).get("annotations", {})
        resources |= block.get("resources", {}).get("limits", {})
    assert annotations and {key.removeprefix("vgpu.internal/container.main.") for key in annotations} <= keys
    assert resources and {key.removeprefix("vgpu.internal/") for key in resources} <= slices
    container = {"name": "main", "image": "localhost/vgpu:0.1.0", "resources": {"limits": resources}}
    metadata = {"name": "first", "annotations": annotations}
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}, NEWEST)


# The first version with resource.k8s.io/v1.
FIRST_WITH_CLAIMS = 34
CLAIM_KINDS = {"ClusterRole", "ClusterRoleBinding", "DeviceClass"}


@pytest.mark.parametrize("minor", range(FIRST_WITH_CLAIMS, NEWEST + 1))
def test_the_schemas_of_kubernetes_accept_the_driver_of_claims_which_is_off_by_default(helm, minor):
    assert not CLAIM_KINDS & set(objects(helm)) and "dra" not in containers(objects(helm)["DaemonSet"])
    for more in ("dra.gpuCdi=nvidia.com/gpu,dra.cores=both", "dra.companionOf=gpu.nvidia.com"):
        found = objects(helm, "--set", f"dra.enabled=true,{more}")
        assert CLAIM_KINDS <= set(found)
        for one in found.values():
            validate(one, minor)
        wrong = copy.deepcopy(found["DeviceClass"])
        wrong["spec"]["selector"] = wrong["spec"].pop("selectors")
        with pytest.raises(kubernetes_validate.ValidationError):
            validate(wrong, minor)


def test_the_driver_of_claims_has_the_rights_of_the_page_and_the_other_containers_get_none(helm):
    found = objects(helm, "--set", "dra.enabled=true")
    manifests = ROOT / "integrations/kubernetes/manifests"
    assert found["ClusterRole"]["rules"] == yaml.safe_load((manifests / "dra-rights.yaml").read_text())["rules"]
    classes = {one["kind"]: one for one in yaml.safe_load_all((manifests / "dra.yaml").read_text())}
    assert found["DeviceClass"]["spec"] == classes["DeviceClass"]["spec"]
    account = {"kind": "ServiceAccount", "name": "vgpu", "namespace": "vgpu-system"}
    assert found["ClusterRoleBinding"]["subjects"] == [account]
    assert found["NetworkPolicy"]["spec"]["egress"] and not objects(helm)["NetworkPolicy"]["spec"]["egress"]
    daemon_set = found["DaemonSet"]
    assert daemon_set["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    for name, one in containers(daemon_set).items():
        mounts = {mount["name"]: mount for mount in one["volumeMounts"]}
        assert ("account" in mounts) == (name == "dra"), name
        assert one["securityContext"]["capabilities"].get("add", []) == [] or name == "vgpud"
        if name == "dra":
            assert one["securityContext"] == containers(daemon_set)["agent"]["securityContext"]
            fields = [variable["valueFrom"]["fieldRef"]["fieldPath"] for variable in one["env"]]
            assert fields == ["spec.nodeName"] and one["env"][0]["name"] == "NODE_NAME"
    paths = [
        {volume["hostPath"]["path"] for volume in one["spec"]["template"]["spec"]["volumes"] if "hostPath" in volume}
        for one in (daemon_set, objects(helm)["DaemonSet"])
    ]
    table = (ROOT / "docs/kubernetes.md").read_text().split("### In the chart")[1].split("\n### ")[0]
    assert {line.split("`")[1] for line in table.splitlines() if line.startswith("| `/")} == paths[0] - paths[1]


def test_the_agent_accepts_the_options_of_the_driver_of_claims(helm):
    # That of the image, or the one that the agent's tests build.
    built = [ROOT / f"target/kubernetes/{profile}/vgpu-k8s" for profile in ("release", "debug")]
    given = [pathlib.Path(path) for path in (os.environ.get("VGPU_K8S"),) if path]
    agent = next((agent for agent in given + built if agent.exists()), None)
    if agent is None:
        assert os.environ.get("VGPU_REQUIRE_ALL") != "1", "run make kubernetes"
        pytest.skip("run make kubernetes")
    for more in ("dra.gpuCdi=nvidia.com/gpu,dra.cores=both", "dra.companionOf=gpu.nvidia.com"):
        command = containers(objects(helm, "--set", f"dra.enabled=true,{more}")["DaemonSet"])["dra"]["command"]
        library = [word for word in command if word.startswith("--library=")]
        done = subprocess.run([agent, *command[1:], "--node-name=n"], capture_output=True, text=True)
        # The options are understood, and the library is not there.
        assert done.returncode == 1 and library[0].split("=")[1] in done.stderr, done.stderr


def test_a_companion_shows_no_gpu_itself(helm):
    both = "dra.enabled=true,dra.companionOf=gpu.nvidia.com,dra.gpuCdi=nvidia.com/gpu"
    refused = helm("template", "vgpu", CHART, "--set", both, check=False)
    assert refused.returncode != 0 and "exclude each other" in refused.stderr, refused.stderr


def test_a_changed_file_replaces_the_pods_one_after_the_other(helm):
    before, after = objects(helm)["DaemonSet"], objects(helm, "--set-string", "config=[[device]]\nid = 0\n")["DaemonSet"]
    marks = [one["spec"]["template"]["metadata"]["annotations"]["vgpu.internal/config"] for one in (before, after)]
    assert marks[0] != marks[1]
    assert before["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("placement=nearest", "/placement"),
        ("hostPaths.run=run/vgpu", "/hostPaths/run"),
        ("hostPaths.run=/run/../etc", "/hostPaths/run"),
        ("config=[daemon]", "/config"),
        ("metrics.port=80", "/metrics/port"),
        ("domain=vgpu", "/domain"),
        ("dra.cores=ceiling", "/dra/cores"),
        ("dra.enable=true", "enable"),
        ("nodeSelectors.a=b", "nodeSelectors"),
        ("image.tga=1", "tga"),
    ],
)
def test_a_value_that_is_wrong_or_misspelt_is_refused_and_named(helm, value, word):
    refused = helm("template", "vgpu", CHART, "--set", value, check=False)
    assert refused.returncode != 0 and word in refused.stderr, refused.stderr


def test_a_monitor_without_metrics_is_refused(helm):
    refused = helm("template", "vgpu", CHART, "--set", "serviceMonitor.enabled=true,metrics.enabled=false", check=False)
    assert refused.returncode != 0 and "serviceMonitor.enabled needs metrics.enabled" in refused.stderr


def test_without_metrics_no_port_is_open(helm):
    found = objects(helm, "--set", "metrics.enabled=false")
    assert "Service" not in found and found["NetworkPolicy"]["spec"]["ingress"] == []
    assert "ports" not in containers(found["DaemonSet"])["vgpud"]
    assert 'listen = "none"' in found["ConfigMap"]["data"]["vgpud.toml"]


def test_rules_and_dashboard_are_those_of_the_examples(helm):
    for name in ("alerts.yml", "grafana.json"):
        example = (ROOT / "examples/monitoring" / name).read_text()
        assert (CHART / "files" / name).read_text() == example, f"cp examples/monitoring/{name} {CHART}/files"
    rules = objects(helm, "--set", "prometheusRule.enabled=true")["PrometheusRule"]["spec"]
    assert rules == yaml.safe_load((ROOT / "examples/monitoring/alerts.yml").read_text())


def test_the_plain_manifests_are_those_of_the_chart():
    manifests = ROOT / "integrations/kubernetes/manifests"
    now = subprocess.run([manifests / "generate", HELM], capture_output=True, text=True, check=True).stdout
    assert (manifests / "vgpu.yaml").read_text() == now, "run make manifests"
    for one in yaml.safe_load_all(now):
        validate(one, NEWEST)


def test_vgpud_accepts_the_file_of_the_default_values(helm, tmp_path):
    daemon = pathlib.Path(os.environ.get("VGPU_BUILD") or ROOT / "target/release") / "vgpud"
    if not daemon.exists():
        pytest.skip("run make build")
    path = tmp_path / "vgpud.toml"
    text = objects(helm)["ConfigMap"]["data"]["vgpud.toml"]
    # Without a driver the file must name the size of the device.
    assert 'id = "*"' in text
    path.write_text(text.replace('id = "*"', 'id = 0\nmemory = "80GiB"'))
    checked = subprocess.run([daemon, "--driver", "none", "--check", path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
