"""Pods of a real kubelet are held to their slices. The simulated device's own record judges, never vgpu's."""

import contextlib
import signal

import pytest

from cluster import eventually
from node import GIB, OUT_OF_MEMORY, Agent, pause

# Shares are compared on a busy host; a window without backlog is taken again.
WINDOWS = 6
POINTS = 4


@contextlib.contextmanager
def running_agent(node, text):
    """An agent with another file."""
    node.agent = Agent(node.cluster, text)
    try:
        yield node.agent
    finally:
        node.clear()
        node.agent.stop()


def test_two_pods_get_their_memory_to_the_last_byte_and_their_time(node):
    small, big = node.create("small", "small").begin(), node.create("big", "big").begin()
    for program, limit in ((small, 4 * GIB), (big, 8 * GIB)):
        free, total = program.memory()
        assert total == limit
        assert program.ask(f"alloc {free}")[0] == 0, "all of it"
        assert program.ask("alloc 1")[0] == OUT_OF_MEMORY, "one byte more"
        assert node.truth(program.name)["physical_bytes"] <= limit
    shares = []
    for _ in range(WINDOWS):
        small.tell("work 500000 4000 16")
        big.tell("work 500000 4000 16")
        pause(1)
        before = [node.truth(name)["busy_ns"] for name in ("small", "big")]
        pause(2)
        after = [node.truth(name)["busy_ns"] for name in ("small", "big")]
        assert small.answer()[0] == 0 and big.answer()[0] == 0
        used = [late - early for early, late in zip(before, after)]
        shares.append(100 * used[0] / sum(used))
        if abs(shares[-1] - 30) <= POINTS:
            return
    pytest.fail(f"the pod with a floor of 30 % gets {shares} %")


def test_a_pod_that_does_not_fit_waits_with_a_reason_and_starts_when_there_is_room(node):
    node.create("first", "small").begin()
    third = node.create("third", "small")
    reason = "Insufficient vgpu.internal/small"
    eventually("the scheduler says why", lambda: any(reason in message for message in node.events("third")))
    assert node.phase("third") == "Pending"
    node.delete("first")
    assert third.begin().memory()[1] == 4 * GIB


def test_a_pod_that_asks_for_two_slices_of_one_resource_is_never_started(bare_node):
    text = '[[device]]\nid = 0\n[[tenant]]\nname = "q"\nreplicas = 4\ndevices = [0]\nlabels = { kubernetes = "small" }\n'
    with running_agent(bare_node, text):
        bare_node.await_allocatable("small", 4)
        bare_node.create("greedy", "small", count=2)
        bare_node.await_phase("greedy", "Failed")
        assert "a container gets 2 slices; accepted: one" in bare_node.pod("greedy")["status"]["message"]


@pytest.mark.parametrize("end", ["deleted", "evicted"])
def test_the_slice_of_a_pod_that_ended_is_free_and_empty(node, end):
    program = node.create("pod", "small").begin()
    assert program.ask(f"alloc {3 * GIB}")[0] == 0
    assert len(node.agent.tenant("small")["members"]) == 1
    if end == "evicted":
        eviction = '{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"pod","namespace":"default"}}'
        node.kubectl("create", "--raw", "/api/v1/namespaces/default/pods/pod/eviction", "-f", "-", text=eviction)
    else:
        node.kubectl("delete", "pod", "pod", "--wait=false")
    eventually("the pod is gone", lambda: node.phase("pod") == "gone")
    eventually("the tenant has no member", lambda: not node.agent.tenant("small")["members"])
    assert node.truth("pod") is None
    free, total = node.create("next", "small").begin().memory()
    assert total == 4 * GIB and free > 3 * GIB


def test_a_pod_in_a_crash_loop_is_held_each_time_and_leaks_nothing(node):
    script = (
        f"printf 'init 0\\nretain 0\\ninfo\\nalloc {3 * GIB}\\ninfo\\nexit 1\\n' | /talk/member-loop dlsym >>/talk/out; exit 1"
    )
    program = node.create("loop", "small", script=script, restartPolicy="Always")
    answers = [program.answer() for _ in range(3 * 6 - 3)]
    infos = [answer[1:] for answer in answers if len(answer) == 3]
    assert {total for _, total in infos} == {4 * GIB}
    # Each start sees the same, so the one before left no charge.
    assert len(set(map(tuple, infos[0::2]))) == 1 and len(set(map(tuple, infos[1::2]))) == 1, infos
    node.delete("loop")
    assert not node.agent.tenant("small")["members"]


def test_an_agent_that_is_killed_in_the_middle_of_an_allocation_starts_no_pod_without_limits(node):
    # A stopped agent takes the kubelet's call and does not answer it.
    node.agent.processes["agent"].send_signal(signal.SIGSTOP)
    program = node.create("unlucky", "small")
    eventually("the pod is on the node", lambda: node.pod("unlucky")["spec"].get("nodeName"))
    pause(2)
    assert node.phase("unlucky") == "Pending"
    node.agent.kill("agent")
    node.await_phase("unlucky", "Failed")
    assert program.lines() == [], "its program ran"
    node.agent.start("agent")
    node.await_allocatable("small", 1)
    assert node.create("lucky", "small").begin().memory()[1] == 4 * GIB


@pytest.mark.parametrize("part", ["kubelet", "containerd", "vgpud", "agent"])
def test_a_part_that_is_killed_changes_no_limit_and_new_pods_get_theirs(node, part):
    program = node.create("old", "small").begin()
    free, total = program.memory()
    if part in ("kubelet", "containerd"):
        node.cluster.restart_part(part)
    else:
        node.agent.restart(part)
    assert program.memory() == (free, total)
    assert program.ask(f"alloc {total}")[0] == OUT_OF_MEMORY
    assert node.create_until_admitted("new", "big").begin().memory()[1] == 8 * GIB
    eventually("vgpud knows both", lambda: all(len(node.agent.tenant(name)["members"]) == 1 for name in ("small", "big")))
    # The old pod still has its slice: another one waits.
    node.create("third", "small")
    eventually("the third waits", lambda: any("Insufficient" in message for message in node.events("third")))
    assert program.memory() == (free, total)


def test_a_container_does_not_start_while_vgpud_is_down_and_starts_with_its_limits_afterwards(node):
    node.agent.kill("vgpud")
    program = node.create("pod", "small")
    eventually("the kubelet says why", lambda: any("does not answer" in message for message in node.events("pod")))
    assert program.lines() == []
    node.agent.start("vgpud")
    assert program.begin().memory()[1] == 4 * GIB


# Engine: kubelet with the device plugin, ours: refused
def test_a_pod_that_names_another_tenants_socket_gets_nothing(node):
    node.create("big", "big").begin()
    path = node.agent.home / "run/tenants/big/vgpud.sock"
    program = node.create("thief", "small", env={"VGPU_SOCKET": str(path)})
    node.await_phase("thief", "Running")
    program.answer()
    assert program.ask("init 0")[0] != 0, "it is under no limit"
    assert str(path) in program.errors()
    assert len(node.agent.tenant("big")["members"]) == 1


def test_a_pod_without_a_slice_gets_no_library(node):
    program = node.create("bare").begin()
    assert program.memory()[1] > 100 * GIB
    assert not any(tenant["members"] for tenant in node.agent.status()["tenants"])
