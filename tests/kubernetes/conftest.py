"""One cluster for all tests, and an agent of its own for each test that wants one."""

import os

# Before the first import of these modules, and for their subprocesses.
os.environ.pop("LD_PRELOAD", None)

import pytest

import node as parts
from cluster import Cluster, PROGRAMS


def pytest_collection_modifyitems(items):
    """Tests that start a cluster of their own come before the cluster of the others."""
    items.sort(key=lambda item: item.path.name not in ("test_chart.py", "test_traces.py", "test_page.py"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if not (PROGRAMS / "kubelet").exists():
        assert os.environ.get("VGPU_REQUIRE_ALL") != "1", "required and missing: tests/setup/kubernetes"
        pytest.skip("run tests/setup/kubernetes")
    cluster = Cluster.start()
    try:
        cluster.import_image(parts.make_image(tmp_path_factory.mktemp("image")))
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def member(tmp_path_factory):
    return parts.compile_member(tmp_path_factory.mktemp("member"))


@pytest.fixture
def bare_node(cluster, member):
    """The node without an agent."""
    node = parts.Node(cluster, member)
    yield node
    node.clear()


@pytest.fixture
def node(cluster, member):
    """The node with vgpud and the agent as processes of the host: a slice `small` and a slice `big`."""
    node = parts.Node(cluster, member, parts.Agent(cluster))
    node.await_allocatable("small", 1)
    node.await_allocatable("big", 1)
    yield node
    node.clear()
    node.agent.stop()
    node.await_allocatable("small", 0)
