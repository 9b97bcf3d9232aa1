"""Admission of a worker, inside its process: Ray's setup hook calls `install` before the first task.

Ray assigns a GPU when it dispatches a task, after the process has started. So the tenant is added then, for the
assigned GPU and the assigned fraction. Ray has no hook at that moment. This module therefore replaces two functions of
Ray's worker: the one that sets CUDA_VISIBLE_DEVICES, and the one that looks up the function of a task. If a version of
Ray calls neither, no tenant is added, and CUDA cannot be initialised in the worker.
"""

import json
import os
import subprocess

from .terms import KEY, NEXT_HOOK_VARIABLE, TERMS_VARIABLE, part_of_each

CUDA_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


class GpuRefused(RuntimeError):
    """The worker did not get its part of a GPU; the message says why and what to do."""


def install():
    """Prepares the admission of this worker. An exception ends the worker, and Ray shows its words."""
    import ray._private.utils as utils
    from ray._private.worker import global_worker

    terms = read_terms(os.environ)
    manager = global_worker.function_actor_manager
    for owner, name in ((utils, "set_visible_accelerator_ids"), (manager, "get_execution_info")):
        if not callable(getattr(owner, name, None)):
            raise GpuRefused(f"this version of Ray has no {name}, which vgpu_ray needs; use Ray 2.60")
    admission = Admission(terms, utils.set_visible_accelerator_ids, manager)
    utils.set_visible_accelerator_ids = admission.set_visible_devices
    manager.get_execution_info = admission.get_execution_info
    run_next_hook()


def read_terms(environment):
    """Terms that the plugin gave to this process."""
    told = environment.get(TERMS_VARIABLE)
    if told is None:
        raise GpuRefused(
            f"this node has no plugin for {KEY!r} in runtime_env, so nothing would hold this worker; start Ray here "
            'with RAY_RUNTIME_ENV_PLUGINS=\'[{"class": "vgpu_ray.plugin.VgpuPlugin"}]\''
        )
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        if "libvgpu.so" not in maps.read():
            raise GpuRefused(
                "libvgpu.so is not in this process: LD_PRELOAD was removed after the plugin set it, for example by "
                "py_executable, or the interpreter is static"
            )
    return json.loads(told)


def run_next_hook():
    """Runs the setup hook that the user's environment names."""
    following = os.environ.get(NEXT_HOOK_VARIABLE)
    if following:
        from ray._private.runtime_env.setup_hook import load_and_execute_setup_hook

        error = load_and_execute_setup_hook(following)
        if error is not None:
            raise RuntimeError(error)


class Admission:
    """Admits this worker when Ray dispatches a task to it."""

    def __init__(self, terms, set_visible_devices, manager):
        self.terms = terms
        self.set_devices_of_ray = set_visible_devices
        self.manager = manager
        self.get_info_of_ray = manager.get_execution_info
        # GPUs of the tenant that was added, by Ray's IDs.
        self.admitted = None
        # Why the current task may not run.
        self.refusal = None

    def set_visible_devices(self):
        """Stands for Ray's function: sets CUDA_VISIBLE_DEVICES, and admits the worker for these GPUs."""
        import ray

        before = self.set_devices_of_ray()
        self.refusal = None
        context = ray.get_runtime_context()
        assigned = context.get_assigned_resources().get("GPU", 0)
        if assigned == 0:
            # A task without a GPU that inherited the environment: it costs no part of a GPU and sees none. Ray resets
            # the variable when the task ends.
            before = {**before, CUDA_DEVICES_VARIABLE: os.environ.get(CUDA_DEVICES_VARIABLE)}
            os.environ[CUDA_DEVICES_VARIABLE] = ""
            return before
        try:
            self.admit(assigned, sorted(context.get_accelerator_ids().get("GPU", [])))
        except GpuRefused as why:
            self.refusal = why
            # Ray looks here first; a function that was used before must not run either.
            self.manager.execution_infos.clear()
        return before

    def admit(self, assigned, devices):
        """Adds the tenant of this worker. It ends with the process."""
        wanted = self.terms["gpu"]
        if abs(assigned - wanted) > 1e-4:
            raise GpuRefused(
                f"Ray assigned num_gpus={assigned:g} to this worker, and its runtime_env is for {KEY} gpu={wanted:g}; "
                f"set both together: .options(**vgpu_ray.options(gpu={assigned:g}))"
            )
        if self.admitted is not None and self.admitted != devices:
            raise GpuRefused(
                f"Ray assigned GPU {', '.join(devices)} to a worker that worked on GPU {', '.join(self.admitted)}, and "
                "a process cannot change its GPU; set max_calls=1 for this task, in @ray.remote"
            )
        if self.admitted is None and "VGPU_SOCKET" in os.environ:
            self.add_tenant(devices)
        self.admitted = devices

    def add_tenant(self, devices):
        """Asks vgpud for a tenant with the GPUs and the fraction of this worker."""
        name = f"ray-{os.getpid()}"
        words = [self.terms["program"], "tenant", "add", name, "--socket", self.terms["admin"]]
        words += ["--gpu", f"{part_of_each(self.terms['gpu']):g}", "--devices", ",".join(devices)]
        words += ["--pid", str(os.getpid()), "--wait", self.terms["wait"]]
        if "template" in self.terms:
            words += ["--template", self.terms["template"]]
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        done = subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            hint = {3: "; a worker that waits for another task keeps its part: set max_calls=1 for tasks"}
            raise GpuRefused(f"vgpud did not admit this worker: {done.stderr.strip()}{hint.get(done.returncode, '')}")
        if done.stdout.strip() != os.environ["VGPU_SOCKET"]:
            raise GpuRefused(
                f"vgpud serves this worker at {done.stdout.strip()}, and the worker was started for "
                f"{os.environ['VGPU_SOCKET']}; start Ray with VGPU_RUNTIME_DIR as vgpud's run_dir"
            )

    def get_execution_info(self, job_id, function_descriptor):
        """Stands for Ray's function: the function of a refused task raises the refusal, which Ray gives the caller."""
        info = self.get_info_of_ray(job_id, function_descriptor)
        refusal = self.refusal
        if refusal is None:
            return info

        def refuse(*_arguments, **_keywords):
            raise refusal

        # The worker ends after this call, unless it was of use before.
        return info._replace(function=refuse, max_calls=1)
