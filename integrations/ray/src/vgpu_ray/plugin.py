"""The plugin that Ray's runtime environment agent loads: it starts workers under libvgpu.so.

    RAY_RUNTIME_ENV_PLUGINS='[{"class": "vgpu_ray.plugin.VgpuPlugin"}]' ray start ...

Ray calls the plugin once for an environment and a node, and reuses the result for all its workers. Therefore the
command that starts a worker decides everything that differs from worker to worker.
"""

import json
import os
import shlex
import shutil

from ray._private.runtime_env.plugin import RuntimeEnvPlugin

from .terms import DEFAULT_WAIT, HOOK_FUNCTION, HOOK_VARIABLE, KEY, NEXT_HOOK_VARIABLE, TERMS_VARIABLE
from .terms import check_terms, part_of_each

# The setting of a node that does without vgpud or insists on it.
DAEMON_VARIABLE = "RAY_VGPU_DAEMON"


class VgpuPlugin(RuntimeEnvPlugin):
    """Sets the limits of a worker that an environment with the key `vgpu` asks for."""

    name = KEY
    # The last plugin: the others have set their variables and commands before.
    priority = 100

    @staticmethod
    def validate(runtime_env_dict):
        """Raises ValueError if the terms are not accepted. Ray shows the words as the error of the actor or task."""
        check_terms(runtime_env_dict[KEY])
        for key in ("container", "image_uri"):
            if runtime_env_dict.get(key):
                raise ValueError(f"{KEY} cannot be used with {key}: the library does not reach into that container")

    def modify_context(self, uris, runtime_env, context, logger):
        """Adds shell commands in front of the worker's. They run after Ray has set the environment's `env_vars`."""
        context.command_prefix.append(make_prefix(runtime_env[KEY], read_node(os.environ)))


def read_node(environment):
    """Settings of this node from the environment of `ray start`. A runtime environment cannot change them."""
    program = shutil.which("vgpu", path=environment.get("PATH"))
    if program is None:
        raise RuntimeError("there is no vgpu on this node's PATH; install vgpu's package on every node with a GPU")
    program = os.path.realpath(program)
    beside = os.path.join(os.path.dirname(program), "libvgpu.so")
    installed = os.path.join(os.path.dirname(os.path.dirname(program)), "lib", "vgpu", "libvgpu.so")
    library = environment.get("VGPU_LIBRARY") or next(filter(os.path.exists, (beside, installed)), installed)
    # The loader ignores a library that is not there, and the worker would run without limits.
    if not os.path.isabs(library) or not os.path.exists(library):
        raise RuntimeError(f"{library} is no absolute path of libvgpu.so on this node; VGPU_LIBRARY names another")
    daemon = environment.get(DAEMON_VARIABLE) or "auto"
    if daemon not in ("auto", "required", "off"):
        raise RuntimeError(f"{DAEMON_VARIABLE} = {daemon!r} is not accepted; accepted: auto, required, off")
    return {
        "program": program,
        "library": library,
        "runtime_dir": runtime_directory(environment),
        "state_dir": environment.get("VGPU_STATE_DIR"),
        "daemon": daemon,
    }


def runtime_directory(environment):
    """Directory of vgpud's sockets, by the rule of `vgpu` and `vgpud`."""
    if environment.get("VGPU_RUNTIME_DIR"):
        return environment["VGPU_RUNTIME_DIR"]
    if os.geteuid() == 0:
        return "/run/vgpu"
    if environment.get("XDG_RUNTIME_DIR"):
        return os.path.join(environment["XDG_RUNTIME_DIR"], "vgpu")
    return f"/tmp/vgpu-{os.geteuid()}"


def make_prefix(terms, node):
    """Shell text that sets the variables of one worker. `$$` is the worker's process, because the shell becomes it."""
    admin = os.path.join(node["runtime_dir"], "admin.sock")
    tenants = os.path.join(node["runtime_dir"], "tenants")
    library, quote = node["library"], shlex.quote
    told = {"wait": DEFAULT_WAIT, **terms, "program": node["program"], "admin": admin}
    percent = f"{part_of_each(terms['gpu']) * 100:g}"
    state = f"export VGPU_STATE_DIR={quote(node['state_dir'])}" if node["state_dir"] else "unset VGPU_STATE_DIR"
    # The daemon sets the limits. The tenant of this socket does not exist before `vgpu_ray.worker` adds it, and until
    # then every CUDA initialisation of this process fails.
    with_daemon = f"export VGPU_SOCKET={quote(tenants)}/ray-$$/vgpud.sock"
    alone = (
        "unset VGPU_SOCKET VGPU_SHARED_UIDS ${!VGPU_MEMORY_LIMIT@} ${!VGPU_SM_LIMIT@} ${!VGPU_SM_REQUEST@}; "
        f"{state}; export VGPU_TENANT=ray-$$ VGPU_MEMORY_LIMIT={percent}% VGPU_SM_LIMIT={percent}"
    )
    by_daemon = {"auto": f"if [ -e {quote(admin)} ]; then {with_daemon}; else {alone}; fi"}
    return "; ".join(
        [
            f"export LD_PRELOAD={quote(library)}${{LD_PRELOAD:+:$LD_PRELOAD}}",
            "unset VGPU_MODE VGPU_ON_ERROR VGPU_DEEPBIND CUDA_DISABLE_CONTROL",
            by_daemon.get(node["daemon"], with_daemon if node["daemon"] == "required" else alone),
            # Ray and vgpud then count GPUs in the same order.
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            f"export {TERMS_VARIABLE}={quote(json.dumps(told))}",
            f'if [ "${HOOK_VARIABLE}" = {HOOK_FUNCTION} ]; then unset {NEXT_HOOK_VARIABLE}; '
            f'else export {NEXT_HOOK_VARIABLE}="${HOOK_VARIABLE}"; fi',
            f"export {HOOK_VARIABLE}={HOOK_FUNCTION};",
        ]
    )
