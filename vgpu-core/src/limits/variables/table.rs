//! The rows of the table of variables.

use super::Accepted::{Text, Words};
use super::Effect::{Honoured, Ignored};
use super::Owner::{Checkout, Hami, Kai, Library, Nvidia, Simulator, Tools, Volcano};
use super::words::{self, Worded};
use super::{Accepted, Effect, Owner, Row};
use crate::units::bytes::{HAMI_SIZE_FORMS, SIZE_FORMS};
use crate::units::share::{HAMI_SHARE_FORMS, REQUEST_FORMS, SHARE_FORMS};

const fn one(name: &'static str, owner: Owner, accepted: Accepted, effect: Effect) -> Row {
    Row { name, per_device: false, owner, accepted, effect }
}

const fn each(name: &'static str, owner: Owner, accepted: Accepted, effect: Effect) -> Row {
    Row { name, per_device: true, owner, accepted, effect }
}

const fn worded(of: Worded, owner: Owner, effect: Effect) -> Row {
    one(of.name, owner, Words(of.words), effect)
}

const SWITCH: Accepted = Words(&["0", "1"]);
const PATH: Accepted = Text("a path");
const ANY: Accepted = Text("anything");

/// Every variable, grouped by owner.
pub const TABLE: &[Row] = &[
    each(
        "VGPU_MEMORY_LIMIT",
        Library,
        Text(SIZE_FORMS),
        Honoured(
            "most device memory of all the tenant's processes together, for each device; a percentage is of the memory that \
             programs can have (CUDA's total), as with the daemon",
        ),
    ),
    each(
        "VGPU_SM_LIMIT",
        Library,
        Text(SHARE_FORMS),
        Honoured("ceiling on the device's time; a ceiling also for a tenant that is alone on the device"),
    ),
    each(
        "VGPU_SM_REQUEST",
        Library,
        Text(REQUEST_FORMS),
        Honoured(
            "floor: time that is guaranteed when it is wanted. Nobody can guarantee it without the daemon: until one grants it, asking is an error",
        ),
    ),
    worded(
        words::MODE,
        Library,
        Honoured(
            "`enforce` (default) keeps the limits; `observe` charges and measures, and refuses, delays and shows nothing; `off` is as if nothing had been asked. With VGPU_SOCKET the mode is the daemon's, and this word counts for nothing",
        ),
    ),
    one(
        "VGPU_TENANT",
        Library,
        Text("1 to 64 of A-Z a-z 0-9 . _ -"),
        Honoured("whose limits these are: programs with one name share them; else the container, by its namespaces"),
    ),
    one(
        "VGPU_SOCKET",
        Library,
        PATH,
        Honoured("the tenant's socket of vgpud: its limits hold, and variables only tighten them"),
    ),
    one(
        "VGPU_STATE_DIR",
        Library,
        Text("the absolute path of a directory"),
        Honoured("without a daemon: where the tenant's ledger is kept, and nowhere else"),
    ),
    worded(
        words::SHARED_UIDS,
        Library,
        Honoured("1: several users of one container share its ledger; with a daemon all users of a tenant do"),
    ),
    worded(words::STRICT, Library, Honoured("1: lookups that would allocate or launch past the library are refused")),
    worded(
        words::DEEPBIND,
        Library,
        Honoured("keep: RTLD_DEEPBIND is left to libraries that want it; each is an open door"),
    ),
    worded(
        words::CHARGE_COPIES,
        Library,
        Honoured(
            "1: under a ceiling, fills and copies that stay on devices pay device time; from and to the host they do not",
        ),
    ),
    worded(
        words::ON_ERROR,
        Library,
        Honoured("open: what cannot be enforced becomes a warning; does not count with VGPU_SOCKET"),
    ),
    worded(words::LOG, Library, Honoured("off: not even the one line is said")),
    one("VGPU_LOG_FILE", Library, PATH, Honoured("the one line goes there instead of standard error")),
    one("VGPU_LIBRARY", Tools, PATH, Honoured("libvgpu.so for `vgpu`, instead of the one beside it")),
    one("VGPU_RUNTIME_DIR", Tools, Text("a directory"), Honoured("where the daemon's administrative socket is")),
    one("VGPU_SIM_DIR", Simulator, Text("a directory"), Honoured("the simulated machine's state")),
    one(
        "VGPU_SIM_PROFILE",
        Simulator,
        Text("devices like h200, 2xt4 or t4,h200"),
        Honoured("which devices a fresh machine has"),
    ),
    one("VGPU_SIM_DRIVER", Simulator, Words(&["535", "580"]), Honoured("which driver it imitates")),
    one("VGPU_SIM_FAULTS", Simulator, Text("see docs/simulated-device.md"), Honoured("calls that fail on purpose")),
    one("VGPU_SIM_TRACE", Simulator, ANY, Honoured("what NVML's clients ask and get, on standard error")),
    one("VGPU_SIM_ACCOUNTING", Simulator, ANY, Honoured("set: accounting is on, as an administrator switches it on")),
    one("VGPU_BUILD", Checkout, Text("a directory"), Honoured("tests, demo and benchmarks take programs from there")),
    one("VGPU_LIB_DIR", Checkout, Text("a directory"), Honoured("tests take libvgpu.so from there")),
    one("VGPU_SIM_LIB_DIR", Checkout, Text("a directory"), Honoured("tests take the simulated driver from there")),
    one("VGPU_CACHE", Checkout, Text("a directory"), Honoured("tests/setup keeps what it downloads there")),
    one("VGPU_REQUIRE_ALL", Checkout, SWITCH, Honoured("1: an optional part that is missing fails its tests")),
    one("VGPU_SOAK_SECONDS", Checkout, Text("seconds"), Honoured("how long `make soak` runs")),
    one("VGPU_KILLS", Checkout, Text("a number"), Honoured("how often the test of random kills kills")),
    one("VGPU_NVIDIA_SMI", Checkout, PATH, Honoured("nvidia-smi for tests, by tests/setup")),
    one("VGPU_PYTHON", Checkout, PATH, Honoured("Python with the clients, by tests/setup")),
    one("VGPU_ORACLE_LIBCUDA", Checkout, PATH, Honoured("a real libcuda.so.1 that the simulated one is compared with")),
    one(
        "VGPU_ORACLE_LIBNVML",
        Checkout,
        PATH,
        Honoured("a real libnvidia-ml.so.1 that the simulated one is compared with"),
    ),
    one("VGPU_TEST_HOLD", Checkout, ANY, Honoured("makes a test's own child hold memory")),
    one("VGPU_DOCKER", Checkout, PATH, Honoured("docker for tests, by tests/setup")),
    one(
        "VGPU_SEED",
        Checkout,
        Text("a number"),
        Honoured("what chaos, the soak's inputs and histories begin with, as a failure prints it"),
    ),
    one("VGPU_ROUNDS", Checkout, Text("a number"), Honoured("how many rounds the test of concurrent members has")),
    one(
        "VGPU_CHAOS_SECONDS",
        Checkout,
        Text("seconds"),
        Honoured("how long the test that kills and changes everything runs"),
    ),
    one("VGPU_CHAOS_STEPS", Checkout, Text("a number"), Honoured("most steps that it does")),
    one("VGPU_CHAOS_LIES", Checkout, SWITCH, Honoured("1: its members also write any bytes into their pages")),
    one(
        "VGPU_FAMILIES_SEED",
        Checkout,
        Text("a number"),
        Honoured("the one seed that the test of all families of allocation runs"),
    ),
    one("VGPU_FAMILIES_WITHOUT", Checkout, Text("words"), Honoured("steps that it leaves out")),
    one("VGPU_FAMILIES_CHURN_WITHOUT", Checkout, Text("words"), Honoured("the same where members come and go")),
    one("VGPU_DOCKERD", Checkout, PATH, Honoured("dockerd, beside VGPU_DOCKER, by tests/setup")),
    one("VGPU_COMPOSE", Checkout, PATH, Honoured("docker-compose, beside VGPU_DOCKER, by tests/setup")),
    one("VGPU_PODMAN", Checkout, PATH, Honoured("podman for tests, by tests/setup")),
    one("VGPU_PROMTOOL", Checkout, PATH, Honoured("promtool for tests, by tests/setup")),
    one(
        "VGPU_MIXED_SECONDS",
        Checkout,
        Text("whole seconds, 1 to 86400"),
        Honoured("how long the test of mixed tenants measures"),
    ),
    one("VGPU_DEBIAN_ROOTS", Checkout, Text("a directory"), Honoured("root file systems of Debian, by tests/setup")),
    one(
        "VGPU_DEBIAN_MIRROR",
        Checkout,
        Text("an address"),
        Honoured("where tests/setup takes their packages from, instead of debootstrap's own place"),
    ),
    one("VGPU_DIR", Checkout, Text("a directory"), Honoured("that of libvgpu.so, for examples/compose")),
    one("VGPU_TENANTS", Checkout, Text("a directory"), Honoured("those of the tenants' sockets, for examples/compose")),
    one("VGPU_TORCH", Checkout, Text("a directory"), Honoured("PyTorch for tests, by tests/setup")),
    one("VGPU_JEMALLOC", Checkout, PATH, Honoured("jemalloc for tests, by tests/setup")),
    one("VGPU_TCMALLOC", Checkout, PATH, Honoured("tcmalloc for tests, by tests/setup")),
    one("VGPU_ORACLE_VERSION", Checkout, Text("a version"), Honoured("that of the real libraries, by tests/setup")),
    one(
        "VGPU_APT_DIR",
        Checkout,
        Text("a directory"),
        Honoured("where tests/setup finds the machine's package sources, instead of /etc/apt"),
    ),
    one("VGPU_FUZZ_TARGET", Checkout, Text("a name"), Honoured("the target that `make fuzz` runs, by make/fuzz")),
    one("VGPU_FUZZ_SEEDS", Checkout, Text("a directory"), Honoured("where its seeds are written, by make/fuzz")),
    one("VGPU_PROBE", Checkout, PATH, Honoured("gpu-probe for the tests of the hardware suite")),
    one("VGPU_NVRTC", Checkout, PATH, Honoured("NVRTC for the programs of the hardware suite")),
    each(
        "CUDA_DEVICE_MEMORY_LIMIT",
        Hami,
        Text(HAMI_SIZE_FORMS),
        Honoured("as VGPU_MEMORY_LIMIT; if both are set the lower holds"),
    ),
    each(
        "CUDA_DEVICE_SM_LIMIT",
        Hami,
        Text(HAMI_SHARE_FORMS),
        Honoured("as VGPU_SM_LIMIT; if both are set the lower holds"),
    ),
    one(
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        Hami,
        PATH,
        Honoured(
            "without a daemon the ledger is kept in the directory of that file, unless VGPU_STATE_DIR names another; the file itself is neither read nor written",
        ),
    ),
    worded(
        words::PRIORITY,
        Hami,
        Honoured(
            "0, high: the class `latency`; 1, low, as if it were not set: `normal`, and so is every higher number. For the daemon's arbiter: without one nobody orders tenants",
        ),
    ),
    worded(
        words::POLICY,
        Hami,
        Honoured(
            "disable: CUDA_DEVICE_SM_LIMIT is not kept; VGPU_SM_LIMIT and the daemon's ceiling still are. default and force: a ceiling is a ceiling",
        ),
    ),
    worded(
        words::CONTROL,
        Hami,
        Honoured("true: as VGPU_MODE=off, unless VGPU_MODE says otherwise; with VGPU_SOCKET it counts for nothing"),
    ),
    one(
        "ACTIVE_OOM_KILLER",
        Hami,
        ANY,
        Ignored("an allocation beyond the limit is refused with CUDA's own error; no process is killed for it"),
    ),
    one(
        "CUDA_OVERSUBSCRIBE",
        Hami,
        ANY,
        Ignored(
            "device memory is not oversubscribed: the limit that was set holds, and beyond it allocations are refused",
        ),
    ),
    one("LIBCUDA_LOG_LEVEL", Hami, ANY, Ignored("there are no levels: at most one line is said, see VGPU_LOG")),
    one("CUDA_REDIRECT", Hami, ANY, Ignored("functions are found in the library itself, not in another file")),
    one(
        "RECORD_KERNEL_INTERVAL",
        Hami,
        ANY,
        Ignored("it paces a time stamp in a file that HAMi's monitor reads and this library does not write"),
    ),
    one("LIBVGPU_HOSTPID_BROKER", Hami, ANY, Ignored("limits and measurements need no process number of the host")),
    one("LIBVGPU_LIMITER", Hami, ANY, Ignored("device time has one governor here, by measured time")),
    one("HAMI_WATCHER_TICK_MS", Hami, ANY, Ignored("no thread samples the utilisation")),
    one("VOLCANO_GPU_ALLOCATED", Volcano, ANY, Ignored("it informs the program; Volcano itself limits nothing by it")),
    one("VOLCANO_GPU_MEMORY_TOTAL", Volcano, ANY, Ignored("it informs the program of the size of the device")),
    one("VOLCANO_GPU_TOTAL", Volcano, ANY, Ignored("an older name of VOLCANO_GPU_MEMORY_TOTAL")),
    one(
        "GPU_PORTION",
        Kai,
        ANY,
        Ignored(
            "it informs the program of its fraction; KAI enforces none. Let KAI's ConfigMap or the pod set VGPU_MEMORY_LIMIT beside it",
        ),
    ),
    one("GPU_MEMORY_LIMIT", Kai, ANY, Ignored("it informs the program; no unit is agreed on. Set VGPU_MEMORY_LIMIT")),
    one("RUNAI_NUM_OF_GPUS", Kai, ANY, Ignored("an older name of GPU_PORTION")),
    one(
        "RUNAI-VISIBLE-DEVICES",
        Kai,
        ANY,
        Ignored("a key of KAI's ConfigMap from which NVIDIA_VISIBLE_DEVICES is made; it has no meaning as a variable"),
    ),
    one(
        "CUDA_VISIBLE_DEVICES",
        Nvidia,
        Text("as the driver reads it"),
        Honoured(
            "by the driver: which devices CUDA shows. Limits name devices by NVML's number, which it does not change",
        ),
    ),
    one(
        "CUDA_DEVICE_ORDER",
        Nvidia,
        Text("as the driver reads it"),
        Honoured(
            "by the driver: how CUDA counts devices. Limits name devices by NVML's number, which it does not change",
        ),
    ),
    one(
        "NVIDIA_VISIBLE_DEVICES",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts: which devices are in the container at all"),
    ),
    one(
        "NVIDIA_IMEX_CHANNELS",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
    one(
        "NVIDIA_GDS",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
    one(
        "NVIDIA_GDRCOPY",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
    one(
        "NVIDIA_MOFED",
        Nvidia,
        Text("as the container toolkit reads it"),
        Honoured("by the container toolkit, before the program starts; no limit depends on it"),
    ),
];
