"""The chart without a cluster: lint, schemas of Kubernetes, values, and what is made from it."""

import copy
import os
import pathlib
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
