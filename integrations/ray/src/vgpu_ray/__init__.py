"""Holds Ray's actors and tasks to the fraction of a GPU that they ask for.

    Model.options(**vgpu_ray.options(gpu=0.25)).remote()

`options` gives Ray's scheduler and the plugin of this package (`vgpu_ray.plugin`) the same fraction. The plugin starts
the worker under libvgpu.so, and `vgpu_ray.worker` admits it when Ray has assigned a GPU.
"""

from .terms import HOOK_FUNCTION, HOOK_VARIABLE, KEY, check_terms

__all__ = ["options"]


def options(gpu, *, wait=None, template=None, runtime_env=None):
    """Returns `num_gpus` and `runtime_env` for `.options(...)` and `@ray.remote(...)`.

    gpu: part of one GPU from 0.01 to 1, or a whole number of GPUs.
    wait: how long the worker waits for vgpud to have room, like "30s" or "5m" (default "30s").
    template: name of a template in vgpud's file, for the values that a fraction does not give.
    runtime_env: further keys of the runtime environment. The caller's dictionary is not changed.
    """
    terms = {"gpu": gpu}
    if wait is not None:
        terms["wait"] = wait
    if template is not None:
        terms["template"] = template
    check_terms(terms)
    environment = dict(runtime_env or {})
    if environment.get(KEY, terms) != terms:
        raise ValueError(f"runtime_env has the key {KEY!r} already, with other terms: {environment[KEY]!r}")
    variables = dict(environment.get("env_vars") or {})
    # A node on which the plugin is not loaded would ignore the key and run the worker without limits. This hook runs
    # in every worker of the environment, and refuses to serve there.
    variables[HOOK_VARIABLE] = HOOK_FUNCTION
    return {"num_gpus": gpu, "runtime_env": {**environment, "env_vars": variables, KEY: terms}}
