"""Terms of a worker, as the key `vgpu` of a runtime environment names them."""

import re

KEY = "vgpu"
# Variable by which Ray's worker finds its setup hook, and the value that this package gives it.
HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
HOOK_FUNCTION = "vgpu_ray.worker.install"
# Variables by which the plugin tells the worker its terms, and the setup hook of the user.
TERMS_VARIABLE = "RAY_VGPU_TERMS"
NEXT_HOOK_VARIABLE = "RAY_VGPU_NEXT_HOOK"
# Time that a worker waits for room. Ray counts a part as free as soon as a worker has ended, vgpud a moment later.
DEFAULT_WAIT = "30s"

ACCEPTED = {
    "gpu": "a part of one GPU from 0.01 to 1, or a whole number of GPUs",
    "wait": "a time like '30s' or '5m'",
    "template": "the name of a template in vgpud's file",
}


def check_terms(terms):
    """Raises ValueError with the key, its value and the accepted values."""
    if not isinstance(terms, dict) or "gpu" not in terms:
        raise ValueError(f"{KEY} = {terms!r} has no terms; accepted: a dictionary with gpu, like {{'gpu': 0.25}}")
    for name, value in terms.items():
        if name not in ACCEPTED:
            raise ValueError(f"{KEY}.{name} is not a key; accepted: {', '.join(ACCEPTED)}")
        if not is_accepted(name, value):
            raise ValueError(f"{KEY}.{name} = {value!r} is not accepted; accepted: {ACCEPTED[name]}")


def is_accepted(name, value):
    """True if `value` can be that of the key `name`."""
    if name == "gpu":
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and (0.01 <= value <= 1 or (value > 1 and value == int(value)))
    if name == "wait":
        return isinstance(value, str) and re.fullmatch(r"(\d+(ms|s|m|h))+", value) is not None
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", value) is not None


def part_of_each(gpu):
    """Part of each assigned GPU: several GPUs are whole ones."""
    return min(gpu, 1)
