//! The rows of the table of variables.

use super::AcceptedValue::{Text, Words};
use super::VariableEffect::{Honoured, Ignored};
use super::VariableOwner::{Checkout, Hami, Kai, Library, Manager, Nvidia, Simulator, Tools, Volcano};
use super::words::{self, WordVariable};
use super::{AcceptedValue, VariableEffect, VariableOwner, VariableRow};
use crate::limits::listed::LIST_FORM;
use crate::units::bytes::{HAMI_SIZE_FORMS, MEBIBYTES_FORM, SIZE_FORMS};
use crate::units::share::{HAMI_SHARE_FORMS, REQUEST_FORMS, SHARE_FORMS};

const fn single_variable(
    name: &'static str,
    owner: VariableOwner,
    accepted: AcceptedValue,
    effect: VariableEffect,
) -> VariableRow {
    VariableRow { name, per_device: false, owner, accepted, effect }
}

const fn per_device_variable(
    name: &'static str,
    owner: VariableOwner,
    accepted: AcceptedValue,
    effect: VariableEffect,
) -> VariableRow {
    VariableRow { name, per_device: true, owner, accepted, effect }
}

const fn worded_variable(of: WordVariable, owner: VariableOwner, effect: VariableEffect) -> VariableRow {
    single_variable(of.name, owner, Words(of.words), effect)
}

const SWITCH_VALUE: AcceptedValue = Words(&["0", "1"]);
const PATH_VALUE: AcceptedValue = Text("a path");
const ANY_VALUE: AcceptedValue = Text("anything");

/// Every variable, grouped by owner.
pub const VARIABLES: &[VariableRow] = &[
    per_device_variable(
        "VGPU_MEMORY_LIMIT",
        Library,
        Text(SIZE_FORMS),
        Honoured(
            "most device memory of all the tenant's processes together, for each device; a percentage is of the memory that \
             programs can have (CUDA's total), as with the daemon; on a device that uses the host's memory (GB10) a \
             percentage is an error",
        ),
    ),
    per_device_variable(
        "VGPU_SM_LIMIT",
        Library,
        Text(SHARE_FORMS),
        Honoured("ceiling on the device's time; a ceiling also for a tenant that is alone on the device"),
    ),
    per_device_variable(
        "VGPU_SM_REQUEST",
        Library,
        Text(REQUEST_FORMS),
        Honoured(
            "floor: device time that is guaranteed while the tenant wants it. Only the daemon can guarantee it. The value may be at most the tenant's `sm_request` in the daemon's file. Without a daemon, without an `sm_request`, or with a higher value, the variable is an error",
        ),
    ),
    worded_variable(
        words::MODE,
        Library,
        Honoured(
            "`enforce` (default) keeps the limits; `observe` charges and measures, and refuses, delays and shows \
             nothing; `off` acts as if no limit was set. With VGPU_SOCKET the daemon sets the mode, and this \
             variable has no effect",
        ),
    ),
    single_variable(
        "VGPU_TENANT",
        Library,
        Text("1 to 64 of A-Z a-z 0-9 . _ -"),
        Honoured(
            "name of the tenant: programs with one name share its limits; without a name, the container's \
             namespaces are the tenant",
        ),
    ),
    single_variable(
        "VGPU_SOCKET",
        Library,
        PATH_VALUE,
        Honoured("the tenant's socket of vgpud: its limits hold, and variables only tighten them"),
    ),
    single_variable(
        "VGPU_STATE_DIR",
        Library,
        Text("the absolute path of a directory"),
        Honoured("without a daemon: where the tenant's ledger is kept, and nowhere else"),
    ),
    worded_variable(
        words::SHARED_UIDS,
        Library,
        Honoured("1: several users of one container share its ledger; with a daemon all users of a tenant do"),
    ),
    worded_variable(
        words::STRICT,
        Library,
        Honoured("1: lookups that would allocate or launch past the library are refused"),
    ),
    worded_variable(
        words::DEEPBIND,
        Library,
        Honoured("keep: RTLD_DEEPBIND is left to libraries that use it; each use is a bypass"),
    ),
    worded_variable(
        words::CHARGE_COPIES,
        Library,
        Honoured(
            "1: under a ceiling, fills and copies that stay on devices pay device time; from and to the host they do not",
        ),
    ),
    worded_variable(
        words::ON_ERROR,
        Library,
        Honoured("open: a limit that cannot be enforced becomes a warning; no effect with VGPU_SOCKET"),
    ),
    worded_variable(words::LOG, Library, Honoured("off: not even the one line is printed")),
    single_variable(
        "VGPU_LOG_FILE",
        Library,
        PATH_VALUE,
        Honoured("the one line goes there instead of standard error"),
    ),
    single_variable(
        "VGPU_LIBRARY",
        Tools,
        PATH_VALUE,
        Honoured(
            "libvgpu.so for `vgpu`, instead of the one next to \
         it",
        ),
    ),
    single_variable(
        "VGPU_RUNTIME_DIR",
        Tools,
        Text("a directory"),
        Honoured("where the daemon's administrative socket is"),
    ),
    single_variable(
        "VGPU_ADMIN_SOCKET",
        Tools,
        Text("a path"),
        Honoured(
            "the daemon's administrative socket for `vgpu` and `vgpu-checkpoint`; the daemon sets it for the program of an action",
        ),
    ),
    single_variable(
        "VGPU_EVENT",
        Tools,
        Text("a kind of event"),
        Honoured("the daemon sets it for the program of an action (docs/actions.md): the event that started it"),
    ),
    single_variable(
        "VGPU_EVENT_TENANT",
        Tools,
        Text("a tenant's name"),
        Honoured("the same: the tenant that the event is about, if it is about one"),
    ),
    single_variable(
        "VGPU_EVENT_DEVICE",
        Tools,
        Text("a UUID, or a name of the file"),
        Honoured("the same: the device that the event is about, if it is about one"),
    ),
    single_variable("VGPU_SIM_DIR", Simulator, Text("a directory"), Honoured("the simulated machine's state")),
    single_variable(
        "VGPU_SIM_PROFILE",
        Simulator,
        Text("devices like h200, 2xt4 or t4,h200"),
        Honoured("which devices a fresh machine has"),
    ),
    single_variable("VGPU_SIM_DRIVER", Simulator, Words(&["535", "580"]), Honoured("which driver it imitates")),
    single_variable(
        "VGPU_SIM_FAULTS",
        Simulator,
        Text("see docs/simulated-device.md"),
        Honoured("calls that fail on purpose"),
    ),
    single_variable(
        "VGPU_SIM_TRACE",
        Simulator,
        ANY_VALUE,
        Honoured("prints each question of NVML's clients and its answer to standard error"),
    ),
    single_variable(
        "VGPU_SIM_ACCOUNTING",
        Simulator,
        ANY_VALUE,
        Honoured("set: accounting is on, as an administrator switches it on"),
    ),
    single_variable(
        "VGPU_BUILD",
        Checkout,
        Text("a directory"),
        Honoured("tests, demo and benchmarks take programs from there"),
    ),
    single_variable("VGPU_LIB_DIR", Checkout, Text("a directory"), Honoured("tests take libvgpu.so from there")),
    single_variable(
        "VGPU_SIM_LIB_DIR",
        Checkout,
        Text("a directory"),
        Honoured("tests take the simulated driver from there"),
    ),
    single_variable("VGPU_CACHE", Checkout, Text("a directory"), Honoured("tests/setup keeps what it downloads there")),
    single_variable(
        "VGPU_REQUIRE_ALL",
        Checkout,
        SWITCH_VALUE,
        Honoured("1: an optional part that is missing fails its tests"),
    ),
    single_variable("VGPU_SOAK_SECONDS", Checkout, Text("seconds"), Honoured("how long `make soak` runs")),
    single_variable("VGPU_KILLS", Checkout, Text("a number"), Honoured("how often the test of random kills kills")),
    single_variable("VGPU_NVIDIA_SMI", Checkout, PATH_VALUE, Honoured("nvidia-smi for tests, by tests/setup")),
    single_variable("VGPU_PYTHON", Checkout, PATH_VALUE, Honoured("Python with the clients, by tests/setup")),
    single_variable(
        "VGPU_ORACLE_LIBCUDA",
        Checkout,
        PATH_VALUE,
        Honoured("a real libcuda.so.1 that the simulated one is compared with"),
    ),
    single_variable(
        "VGPU_ORACLE_LIBNVML",
        Checkout,
        PATH_VALUE,
        Honoured("a real libnvidia-ml.so.1 that the simulated one is compared with"),
    ),
    single_variable("VGPU_TEST_HOLD", Checkout, ANY_VALUE, Honoured("makes a test's own child hold memory")),
    single_variable("VGPU_DOCKER", Checkout, PATH_VALUE, Honoured("docker for tests, by tests/setup")),
    single_variable(
        "VGPU_SEED",
        Checkout,
        Text("a number"),
        Honoured("what chaos, the soak's inputs and histories begin with, as a failure prints it"),
    ),
    single_variable(
        "VGPU_ROUNDS",
        Checkout,
        Text("a number"),
        Honoured("how many rounds the test of concurrent members has"),
    ),
    single_variable(
        "VGPU_CHAOS_SECONDS",
        Checkout,
        Text("seconds"),
        Honoured("how long the test that kills and changes everything runs"),
    ),
    single_variable("VGPU_CHAOS_STEPS", Checkout, Text("a number"), Honoured("most steps that it does")),
    single_variable(
        "VGPU_CHAOS_LIES",
        Checkout,
        SWITCH_VALUE,
        Honoured("1: its members also write any bytes into their pages"),
    ),
    single_variable(
        "VGPU_FAMILIES_SEED",
        Checkout,
        Text("a number"),
        Honoured("the one seed that the test of all families of allocation runs"),
    ),
    single_variable("VGPU_FAMILIES_WITHOUT", Checkout, Text("words"), Honoured("steps that it leaves out")),
    single_variable(
        "VGPU_FAMILIES_CHURN_WITHOUT",
        Checkout,
        Text("words"),
        Honoured("the same where members come and go"),
    ),
    single_variable("VGPU_DOCKERD", Checkout, PATH_VALUE, Honoured("dockerd, next to VGPU_DOCKER, by tests/setup")),
    single_variable(
        "VGPU_COMPOSE",
        Checkout,
        PATH_VALUE,
        Honoured("docker-compose, next to VGPU_DOCKER, by tests/setup"),
    ),
    single_variable("VGPU_PODMAN", Checkout, PATH_VALUE, Honoured("podman for tests, by tests/setup")),
    single_variable(
        "VGPU_CONTAINERD",
        Checkout,
        Text("a directory"),
        Honoured("containerd's programs, by tests/setup"),
    ),
    single_variable("VGPU_RUNC", Checkout, PATH_VALUE, Honoured("runc for that containerd, by tests/setup")),
    single_variable(
        "VGPU_KUBERNETES",
        Checkout,
        Text("a directory"),
        Honoured("programs of a Kubernetes cluster, by tests/setup"),
    ),
    single_variable("VGPU_HELM", Checkout, PATH_VALUE, Honoured("helm for the chart's tests, by tests/setup")),
    single_variable(
        "VGPU_KUBERNETES_PYTHON",
        Checkout,
        PATH_VALUE,
        Honoured("Python with the cluster's tests, by tests/setup"),
    ),
    single_variable("VGPU_K8S", Checkout, PATH_VALUE, Honoured("vgpu-k8s that the cluster's tests run")),
    single_variable("VGPU_IMAGE", Checkout, PATH_VALUE, Honoured("the image that the cluster's tests import")),
    single_variable("VGPU_KEEP_WORK", Checkout, Text("any text"), Honoured("keeps the source that tests/setup built")),
    single_variable("VGPU_RAY", Checkout, PATH_VALUE, Honoured("Python with Ray, by tests/setup")),
    single_variable("VGPU_SLURMCTLD", Checkout, PATH_VALUE, Honoured("Slurm's controller, by tests/setup")),
    single_variable("VGPU_PROMTOOL", Checkout, PATH_VALUE, Honoured("promtool for tests, by tests/setup")),
    single_variable(
        "VGPU_MIXED_SECONDS",
        Checkout,
        Text("whole seconds, 1 to 86400"),
        Honoured("how long the test of mixed tenants measures"),
    ),
    single_variable(
        "VGPU_DEBIAN_ROOTS",
        Checkout,
        Text("a directory"),
        Honoured("root file systems of Debian, by tests/setup"),
    ),
    single_variable(
        "VGPU_DEBIAN_MIRROR",
        Checkout,
        Text("an address"),
        Honoured("where tests/setup takes their packages from, instead of debootstrap's own place"),
    ),
    single_variable("VGPU_DIR", Checkout, Text("a directory"), Honoured("that of libvgpu.so, for examples/compose")),
    single_variable(
        "VGPU_TENANTS",
        Checkout,
        Text("a directory"),
        Honoured("those of the tenants' sockets, for examples/compose"),
    ),
    single_variable("VGPU_TORCH", Checkout, Text("a directory"), Honoured("PyTorch for tests, by tests/setup")),
    single_variable(
        "VGPU_TEST_CC",
        Checkout,
        Text("a command"),
        Honoured("the C compiler of the test programs, instead of cc"),
    ),
    single_variable(
        "VGPU_TEST_EMULATOR",
        Checkout,
        Text("a command"),
        Honoured("qemu-user, which runs the test programs where they are for another machine"),
    ),
    single_variable("VGPU_JEMALLOC", Checkout, PATH_VALUE, Honoured("jemalloc for tests, by tests/setup")),
    single_variable("VGPU_TCMALLOC", Checkout, PATH_VALUE, Honoured("tcmalloc for tests, by tests/setup")),
    single_variable(
        "VGPU_ORACLE_VERSION",
        Checkout,
        Text("a version"),
        Honoured("that of the real libraries, by tests/setup"),
    ),
    single_variable(
        "VGPU_APT_DIR",
        Checkout,
        Text("a directory"),
        Honoured("where tests/setup finds the machine's package sources, instead of /etc/apt"),
    ),
    single_variable(
        "VGPU_FUZZ_TARGET",
        Checkout,
        Text("a name"),
        Honoured("the target that `make fuzz` runs, by make/fuzz"),
    ),
    single_variable(
        "VGPU_FUZZ_SEEDS",
        Checkout,
        Text("a directory"),
        Honoured("where its seeds are written, by make/fuzz"),
    ),
    single_variable("VGPU_PROBE", Checkout, PATH_VALUE, Honoured("gpu-probe for the tests of the hardware suite")),
    single_variable("VGPU_NVRTC", Checkout, PATH_VALUE, Honoured("NVRTC for the programs of the hardware suite")),
    per_device_variable(
        "CUDA_DEVICE_MEMORY_LIMIT",
        Hami,
        Text(HAMI_SIZE_FORMS),
        Honoured("as VGPU_MEMORY_LIMIT; if both are set the lower holds"),
    ),
    per_device_variable(
        "CUDA_DEVICE_SM_LIMIT",
        Hami,
        Text(HAMI_SHARE_FORMS),
        Honoured("as VGPU_SM_LIMIT; if both are set the lower holds"),
    ),
    single_variable(
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        Hami,
        PATH_VALUE,
        Honoured(
            "without a daemon the ledger is kept in the directory of that file, unless VGPU_STATE_DIR names another; the file itself is neither read nor written",
        ),
    ),
    worded_variable(
        words::PRIORITY,
        Hami,
        Honoured(
            "no effect: a number is accepted and any other word is an error. A tenant's priority is its `class` in the daemon's file; a process cannot raise it",
        ),
    ),
    worded_variable(
        words::POLICY,
        Hami,
        Honoured(
            "disable: CUDA_DEVICE_SM_LIMIT is not kept; VGPU_SM_LIMIT and the daemon's ceiling still are. default and force: a ceiling is a ceiling",
        ),
    ),
    worded_variable(
        words::CONTROL,
        Hami,
        Honoured("true: as VGPU_MODE=off, unless VGPU_MODE says otherwise; no effect with VGPU_SOCKET"),
    ),
    single_variable(
        "ACTIVE_OOM_KILLER",
        Hami,
        ANY_VALUE,
        Ignored("an allocation beyond the limit is refused with CUDA's own error; no process is killed for it"),
    ),
    single_variable(
        "CUDA_OVERSUBSCRIBE",
        Hami,
        ANY_VALUE,
        Ignored(
            "device memory is not oversubscribed: the limit that was set holds, and beyond it allocations are refused",
        ),
    ),
    single_variable(
        "LIBCUDA_LOG_LEVEL",
        Hami,
        ANY_VALUE,
        Ignored("there are no levels: at most one line is printed, see VGPU_LOG"),
    ),
    single_variable(
        "CUDA_REDIRECT",
        Hami,
        ANY_VALUE,
        Ignored("functions are found in the library itself, not in another file"),
    ),
    single_variable(
        "RECORD_KERNEL_INTERVAL",
        Hami,
        ANY_VALUE,
        Ignored("it paces a time stamp in a file that HAMi's monitor reads and this library does not write"),
    ),
    single_variable(
        "LIBVGPU_HOSTPID_BROKER",
        Hami,
        ANY_VALUE,
        Ignored("limits and measurements need no process number of the host"),
    ),
    single_variable("LIBVGPU_LIMITER", Hami, ANY_VALUE, Ignored("device time has one governor here, by measured time")),
    single_variable("HAMI_WATCHER_TICK_MS", Hami, ANY_VALUE, Ignored("no thread samples the utilisation")),
    single_variable(
        "VOLCANO_GPU_ALLOCATED",
        Volcano,
        ANY_VALUE,
        Ignored("it informs the program; Volcano itself limits nothing by it"),
    ),
    single_variable(
        "VOLCANO_GPU_MEMORY_TOTAL",
        Volcano,
        ANY_VALUE,
        Ignored("it informs the program of the size of the device"),
    ),
    single_variable("VOLCANO_GPU_TOTAL", Volcano, ANY_VALUE, Ignored("an older name of VOLCANO_GPU_MEMORY_TOTAL")),
    single_variable(
        "GPU_PORTION",
        Kai,
        ANY_VALUE,
        Ignored(
            "it informs the program. KAI's hamicore sets CUDA_DEVICE_MEMORY_LIMIT too; without that, `vgpu-k8s nri` \
             makes it a limit",
        ),
    ),
    single_variable(
        "GPU_MEMORY_LIMIT",
        Kai,
        ANY_VALUE,
        Ignored("it informs the program; no unit is agreed on. Set VGPU_MEMORY_LIMIT"),
    ),
    single_variable("RUNAI_NUM_OF_GPUS", Kai, ANY_VALUE, Ignored("an older name of GPU_PORTION")),
    single_variable(
        "RUNAI-VISIBLE-DEVICES",
        Kai,
        ANY_VALUE,
        Ignored("a key of KAI's ConfigMap from which NVIDIA_VISIBLE_DEVICES is made; it has no meaning as a variable"),
    ),
    single_variable(
        "VGPU_POD_NAME",
        Manager,
        ANY_VALUE,
        Ignored("vgpu-manager names the pod by it; this library does not read it"),
    ),
    single_variable(
        "VGPU_POD_NAMESPACE",
        Manager,
        ANY_VALUE,
        Ignored("vgpu-manager names the pod's namespace by it; this library does not read it"),
    ),
    single_variable(
        "VGPU_POD_UID",
        Manager,
        ANY_VALUE,
        Ignored("vgpu-manager names the pod by it; this library does not read it"),
    ),
    single_variable(
        "VGPU_CONTAINER_NAME",
        Manager,
        ANY_VALUE,
        Ignored("vgpu-manager names the container by it; this library does not read it"),
    ),
    single_variable(
        "CUDA_VISIBLE_DEVICES",
        Nvidia,
        Text("as the driver reads it"),
        Honoured(
            "by the driver: which devices CUDA shows. Limits name devices by NVML's number, which it does not change",
        ),
    ),
    single_variable(
        "CUDA_DEVICE_ORDER",
        Nvidia,
        Text("as the driver reads it"),
        Honoured(
            "by the driver: how CUDA counts devices. Limits name devices by NVML's number, which it does not change",
        ),
    ),
    single_variable(
        "NVIDIA_VISIBLE_DEVICES",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts: which devices are in the container at all"),
    ),
    single_variable(
        "NVIDIA_IMEX_CHANNELS",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
    single_variable(
        "NVIDIA_GPU_MEMORY_LIMIT",
        Nvidia,
        Text(MEBIBYTES_FORM),
        Honoured(
            "as VGPU_MEMORY_LIMIT, for every device; if both are set the lower holds. The container toolkit gives it \
             to the driver as well, which keeps it by its own means",
        ),
    ),
    single_variable(
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        Nvidia,
        Text(LIST_FORM),
        Honoured(
            "as VGPU_MEMORY_LIMIT, for each device that it names; if others are set the lowest holds. CUDA counts the \
             devices that the process sees. MPS, where it runs, keeps the list by its own means",
        ),
    ),
    single_variable(
        "NVIDIA_GDS",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
    single_variable(
        "NVIDIA_GDRCOPY",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
    single_variable(
        "NVIDIA_MOFED",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
];
