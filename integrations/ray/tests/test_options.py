"""`options` and the shell text of the plugin, without a cluster."""

import json
import os
import subprocess

import pytest
import vgpu_ray
from vgpu_ray.plugin import VgpuPlugin, make_prefix, read_node
from vgpu_ray.terms import HOOK_FUNCTION, HOOK_VARIABLE

NODE = {
    "program": "/usr/bin/vgpu",
    "library": "/usr/lib/vgpu/lib vgpu.so",
    "runtime_dir": "/run/my vgpu",
    "state_dir": None,
    "daemon": "auto",
}


def test_options_give_ray_and_the_plugin_the_same_fraction():
    given = {"env_vars": {"A": "b"}, "working_dir": "."}
    options = vgpu_ray.options(gpu=0.25, wait="5s", runtime_env=given)
    assert options == {
        "num_gpus": 0.25,
        "runtime_env": {
            "vgpu": {"gpu": 0.25, "wait": "5s"},
            "env_vars": {"A": "b", HOOK_VARIABLE: HOOK_FUNCTION},
            "working_dir": ".",
        },
    }
    assert given == {"env_vars": {"A": "b"}, "working_dir": "."}, "the caller's dictionary is not changed"


@pytest.mark.parametrize("gpu", [0, 0.009, 1.5, -1, True, "0.25", None, float("nan")])
def test_a_fraction_that_no_gpu_has_is_refused_at_once(gpu):
    with pytest.raises(ValueError, match="accepted: a part of one GPU from 0.01 to 1"):
        vgpu_ray.options(gpu=gpu)


@pytest.mark.parametrize("terms", [{}, {"gpus": 1}, 0.25, {"gpu": 0.25, "memory": 1}, {"gpu": 1, "wait": "soon"}])
def test_terms_that_are_not_understood_are_an_error_of_the_environment(terms):
    with pytest.raises(ValueError, match="accepted: "):
        VgpuPlugin.validate({"vgpu": terms})


def test_a_container_of_ray_is_refused():
    with pytest.raises(ValueError, match="image_uri"):
        VgpuPlugin.validate({"vgpu": {"gpu": 0.5}, "image_uri": "image"})


def run_prefix(terms, node, **environment):
    """Environment of the process that the shell becomes, and its number."""
    show = "exec /usr/bin/env python3 -c 'import json, os; print(json.dumps([os.getpid(), dict(os.environ)]))'"
    words = f"{make_prefix(terms, node)} {show}"
    environment = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, text=True)
    return json.loads(done.stdout)


def test_the_shell_text_quotes_paths_and_names_the_worker_by_its_process(tmp_path):
    admin = tmp_path / "it's a run dir"
    admin.mkdir()
    (admin / "admin.sock").touch()
    pid, seen = run_prefix({"gpu": 0.25}, {**NODE, "runtime_dir": str(admin)}, LD_PRELOAD="/x.so", VGPU_MODE="off")
    assert seen["VGPU_SOCKET"] == f"{admin}/tenants/ray-{pid}/vgpud.sock"
    assert seen["LD_PRELOAD"] == "/usr/lib/vgpu/lib vgpu.so:/x.so"
    assert "VGPU_MODE" not in seen and "VGPU_MEMORY_LIMIT" not in seen
    assert seen[HOOK_VARIABLE] == HOOK_FUNCTION


def test_without_a_daemon_the_limits_are_percentages_and_the_users_own_are_gone():
    mine = {"VGPU_MEMORY_LIMIT_3": "unlimited", "VGPU_SM_LIMIT_0": "90", "VGPU_SOCKET": "/x", "VGPU_TENANT": "y"}
    pid, seen = run_prefix({"gpu": 0.333}, NODE, **mine)
    assert {name: seen[name] for name in seen if name.startswith("VGPU_")} == {
        "VGPU_TENANT": f"ray-{pid}",
        "VGPU_MEMORY_LIMIT": "33.3%",
        "VGPU_SM_LIMIT": "33.3",
    }


def test_a_node_that_requires_vgpud_never_falls_back_to_variables():
    pid, seen = run_prefix({"gpu": 0.25}, {**NODE, "daemon": "required"})
    assert seen["VGPU_SOCKET"] == f"/run/my vgpu/tenants/ray-{pid}/vgpud.sock" and "VGPU_MEMORY_LIMIT" not in seen


def test_the_users_setup_hook_runs_too():
    _, seen = run_prefix({"gpu": 0.25}, NODE, **{HOOK_VARIABLE: "mine.hook"})
    assert (seen[HOOK_VARIABLE], seen["RAY_VGPU_NEXT_HOOK"]) == (HOOK_FUNCTION, "mine.hook")


def test_a_node_without_the_library_or_with_a_wrong_setting_is_an_error(tmp_path):
    with pytest.raises(RuntimeError, match="no vgpu on this node's PATH"):
        read_node({"PATH": str(tmp_path)})
    program = tmp_path / "bin" / "vgpu"
    program.parent.mkdir()
    program.touch(mode=0o755)
    with pytest.raises(RuntimeError, match="VGPU_LIBRARY names another"):
        read_node({"PATH": str(program.parent)})
    library = tmp_path / "lib" / "vgpu" / "libvgpu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    assert read_node({"PATH": str(program.parent)})["library"] == str(library)
    with pytest.raises(RuntimeError, match="accepted: auto, required, off"):
        read_node({"PATH": str(program.parent), "RAY_VGPU_DAEMON": "yes"})
