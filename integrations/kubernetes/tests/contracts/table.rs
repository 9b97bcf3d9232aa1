//! Variables and files that schedulers and device plugins of others put into containers, and their effect here. Names
//! are word for word where the sources were read. docs/contracts.md is written from this table, and each case runs in a
//! container.

/// Whence a contract is known.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Names, values and files are those that the project's source writes.
    WordForWord,
    /// Names are those that the project documents.
    Documentation,
}

/// A variable, with the form of its value and what it does here.
pub struct ContractVariable {
    pub name: &'static str,
    pub form: &'static str,
    pub does: &'static str,
}

/// A file in the container, the host's file behind it, and what it is here.
pub struct ContractFile {
    pub place: &'static str,
    pub host: &'static str,
    pub does: &'static str,
}

/// Device memory that a program in the container sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// A number of MiB, rounded down.
    Mebibytes(u64),
    /// All memory of the device: nothing limits it.
    WholeDevice,
    /// Nothing: the container does not start, and these words say why.
    Refused(&'static str),
}

/// A container that is run.
pub struct Case {
    pub words: &'static str,
    pub annotations: &'static [(&'static str, &'static str)],
    pub variables: &'static [(&'static str, &'static str)],
    /// Places in the container and names of the files or directories behind them (`HOST_FILES` in the test).
    pub mounts: &'static [(&'static str, &'static str)],
    /// Options of the NRI plugin; `None`: it does not run.
    pub plugin: Option<&'static [&'static str]>,
    pub sees: Sees,
}

pub struct Contract {
    pub title: &'static str,
    /// Address of the source or the documentation.
    pub source: &'static str,
    pub evidence: Evidence,
    pub variables: &'static [ContractVariable],
    pub files: &'static [ContractFile],
    pub cases: &'static [Case],
}

const fn variable(name: &'static str, form: &'static str, does: &'static str) -> ContractVariable {
    ContractVariable { name, form, does }
}

const fn file(place: &'static str, host: &'static str, does: &'static str) -> ContractFile {
    ContractFile { place, host, does }
}

/// The library as this project's own ways mount it.
const PRELOADED: &[(&str, &str)] = &[("/vgpu", "vgpu"), ("/etc/ld.so.preload", "own.preload")];

const HAMI_VARIABLES: &[(&str, &str)] = &[
    ("NVIDIA_VISIBLE_DEVICES", "GPU-0a1b2c3d-0000-0000-0000-000000000000"),
    ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
    ("CUDA_DEVICE_SM_LIMIT", "30"),
    ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/usr/local/vgpu/5f3c.cache"),
    ("CUDA_OVERSUBSCRIBE", "true"),
    ("LIBCUDA_LOG_LEVEL", "3"),
    ("GPU_CORE_UTILIZATION_POLICY", "default"),
    ("CUDA_TASK_PRIORITY", "1"),
];

/// The mounts of HAMi's device plugin; the library's file is `libvgpu.so.VERSION`.
const HAMI_MOUNTS: &[(&str, &str)] = &[
    ("/usr/local/vgpu", "hami/containers/uid_main"),
    ("/usr/local/vgpu/libvgpu.so", "hami/libvgpu.so.v2.10.0"),
    ("/tmp/vgpulock", "hami/vgpulock"),
    ("/etc/ld.so.preload", "hami/ld.so.preload"),
];

/// The same after HAMi's pod started again and copied its own library back.
const HAMI_MOUNTS_COPIED_BACK: &[(&str, &str)] = &[
    ("/usr/local/vgpu", "hami/containers/uid_main"),
    ("/usr/local/vgpu/libvgpu.so", "hami/copied-back.so"),
    ("/tmp/vgpulock", "hami/vgpulock"),
    ("/etc/ld.so.preload", "hami/ld.so.preload"),
];

/// The mounts of KAI's resource isolator: a directory, and a file of it by subPath.
const KAI_MOUNTS: &[(&str, &str)] =
    &[("/usr/local/vgpu", "isolator"), ("/etc/ld.so.preload", "isolator/ld.so.preload")];

const KAI_VARIABLES: &[(&str, &str)] = &[
    ("NVIDIA_VISIBLE_DEVICES", "GPU-0a1b2c3d-0000-0000-0000-000000000000"),
    ("RUNAI_NUM_OF_GPUS", "0.05"),
    ("GPU_PORTION", "0.05"),
    ("CUDA_DEVICE_MEMORY_LIMIT", "7188m"),
    ("POD_UID", "5f3c"),
    ("CONTAINER_NAME", "main"),
    ("CONTAINER_VGPU_MOUNT", "/usr/local/vgpu/containers"),
];

const PORTION: &[(&str, &str)] = &[("RUNAI_NUM_OF_GPUS", "0.05"), ("GPU_PORTION", "0.05")];

const FRACTIONING: &[(&str, &str)] = &[
    ("NVIDIA_GPU_MEMORY_REQUEST", "4096"),
    ("NVIDIA_GPU_MEMORY_LIMIT", "4096"),
    ("CUDA_MPS_PIPE_DIRECTORY", "/run/nvidia-mps"),
    ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4096M"),
];

const FRACTIONING_ANNOTATIONS: &[(&str, &str)] =
    &[("nvidia.com/container.main.gpu-memory.request", "2Gi"), ("nvidia.com/container.main.gpu-memory.limit", "4Gi")];

const VGPU_MANAGER: &[(&str, &str)] = &[
    ("CUDA_MEM_LIMIT_0", "4096m"),
    ("CUDA_CORE_LIMIT_0", "30"),
    ("CUDA_CORE_SOFT_LIMIT_0", "50"),
    ("CUDA_MEM_RATIO", "1.00"),
    ("VGPU_POD_NAME", "train"),
    ("VGPU_POD_NAMESPACE", "lab"),
    ("VGPU_POD_UID", "5f3c"),
    ("VGPU_CONTAINER_NAME", "main"),
];

const CASE: Case =
    Case { words: "", annotations: &[], variables: &[], mounts: PRELOADED, plugin: None, sees: Sees::WholeDevice };

pub const CONTRACTS: &[Contract] = &[
    Contract {
        title: "HAMi 2.x: its device plugin's answer",
        source: "https://github.com/Project-HAMi/HAMi/blob/4707fb02/pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go",
        evidence: Evidence::WordForWord,
        variables: &[
            variable("NVIDIA_VISIBLE_DEVICES", "UUIDs, comma", "nothing: NVIDIA's runtime reads it"),
            variable(
                "CUDA_DEVICE_MEMORY_LIMIT_<i>",
                "`<MiB>m`; i counts the container's devices",
                "memory limit of device i",
            ),
            variable("CUDA_DEVICE_SM_LIMIT", "percent, of the first device for all", "ceiling of device time"),
            variable("CUDA_DEVICE_MEMORY_SHARED_CACHE", "a path", "its directory holds the ledger"),
            variable("CUDA_OVERSUBSCRIBE, LIBCUDA_LOG_LEVEL", "`true`; a number", "nothing; `vgpu doctor` says so"),
            variable("GPU_CORE_UTILIZATION_POLICY", "`default`, `force`, `disable`", "`disable`: no ceiling"),
            variable("CUDA_TASK_PRIORITY", "0, 1", "nothing: the tenant's class decides"),
        ],
        files: &[
            file("/usr/local/vgpu/libvgpu.so", "libvgpu.so.VERSION", "HAMi's library, or this one in its place"),
            file("/usr/local/vgpu", "containers/PODUID_CONTAINER, writable", "the ledger"),
            file("/tmp/vgpulock", "the same", "not used"),
            file("/etc/ld.so.preload", "ld.so.preload", "preloads /usr/local/vgpu/libvgpu.so"),
        ],
        cases: &[
            Case {
                words: "this library is in the place of libvgpu.so.VERSION",
                variables: HAMI_VARIABLES,
                mounts: HAMI_MOUNTS,
                sees: Sees::Mebibytes(3000),
                ..CASE
            },
            Case {
                words: "HAMi's pod has copied its own library back; `vgpu-k8s nri --replace-library /usr/local/vgpu/libvgpu.so`",
                variables: HAMI_VARIABLES,
                mounts: HAMI_MOUNTS_COPIED_BACK,
                plugin: Some(&["--replace-library", "/usr/local/vgpu/libvgpu.so"]),
                sees: Sees::Mebibytes(3000),
                ..CASE
            },
        ],
    },
    Contract {
        title: "KAI 0.17: its plugin hamicore, and the resource isolator",
        source: "https://github.com/NVIDIA/KAI-Scheduler/tree/d5bc503a/pkg/binder/plugins/hamicore",
        evidence: Evidence::WordForWord,
        variables: &[
            variable("NVIDIA_VISIBLE_DEVICES", "a UUID, or a CDI name with it", "nothing: NVIDIA's runtime reads it"),
            variable("RUNAI_NUM_OF_GPUS, GPU_PORTION", "a part, like 0.05", "nothing, as there is a limit"),
            variable(
                "CUDA_DEVICE_MEMORY_LIMIT",
                "`<MiB>m`: the part of the node's label nvidia.com/gpu.memory",
                "memory limit",
            ),
            variable("POD_UID, CONTAINER_NAME, CONTAINER_VGPU_MOUNT", "words of the isolator", "nothing"),
        ],
        files: &[
            file("/usr/local/vgpu", "/usr/local/vgpu", "a directory with the library"),
            file("/etc/ld.so.preload", "its file ld.so.preload", "preloads /usr/local/vgpu/libvgpu.so"),
        ],
        cases: &[Case {
            words: "hamicore is on, and the node has its label",
            variables: KAI_VARIABLES,
            mounts: KAI_MOUNTS,
            sees: Sees::Mebibytes(7188),
            ..CASE
        }],
    },
    Contract {
        title: "KAI: GPU_PORTION without a limit",
        source: "https://github.com/NVIDIA/KAI-Scheduler/blob/d5bc503a/pkg/binder/common/gpu_access.go",
        evidence: Evidence::WordForWord,
        variables: &[variable(
            "GPU_PORTION",
            "a part, like 0.05",
            "by itself nothing; the NRI plugin makes it a memory limit or an error",
        )],
        files: &[],
        cases: &[
            Case {
                words: "the node has no label nvidia.com/gpu.memory, so hamicore sets nothing, and nobody says so",
                variables: PORTION,
                sees: Sees::WholeDevice,
                ..CASE
            },
            Case {
                words: "the same with `vgpu-k8s nri` (`--gpu-portion limit`): a part of what the driver leaves to programs",
                variables: PORTION,
                mounts: &[],
                plugin: Some(&[]),
                sees: Sees::Mebibytes(7158),
                ..CASE
            },
            Case {
                words: "the same with `vgpu-k8s nri --gpu-portion refuse`",
                variables: PORTION,
                mounts: &[],
                plugin: Some(&["--gpu-portion", "refuse"]),
                sees: Sees::Refused("GPU_PORTION=0.05 and no memory limit"),
                ..CASE
            },
        ],
    },
    Contract {
        title: "GPU fractioning of NVIDIA, with KAI's annotations",
        source: "https://docs.nvidia.com/dynamo/v1.6.2/many-model-serving/build-the-kai-scheduler-and-gpu-fractioning-forks",
        evidence: Evidence::Documentation,
        variables: &[
            variable("NVIDIA_GPU_MEMORY_LIMIT", "whole MiB", "memory limit"),
            variable("NVIDIA_GPU_MEMORY_REQUEST", "whole MiB", "nothing"),
            variable("NVIDIA_GPU_MEMORY_LIMITS, NVIDIA_GPU_MEMORY_REQUESTS", "earlier names", "nothing: not read"),
            variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "`0=<MiB>M`", "memory limit of CUDA's device 0"),
            variable("CUDA_MPS_PIPE_DIRECTORY", "a path", "nothing: MPS reads it"),
        ],
        files: &[file("/run/nvidia-mps", "the same", "MPS's pipe; not used")],
        cases: &[
            Case { words: "by its variables", variables: FRACTIONING, sees: Sees::Mebibytes(4096), ..CASE },
            Case {
                words: "by its annotations gpu-memory.request and .limit, with `vgpu-k8s nri`",
                annotations: FRACTIONING_ANNOTATIONS,
                mounts: &[],
                plugin: Some(&[]),
                sees: Sees::Mebibytes(4096),
                ..CASE
            },
        ],
    },
    Contract {
        title: "Volcano: its vGPU plugin, and the older GPU sharing",
        source: "https://github.com/volcano-sh/volcano/blob/master/docs/user-guide/how_to_use_vgpu.md",
        evidence: Evidence::Documentation,
        variables: &[
            variable("CUDA_DEVICE_MEMORY_LIMIT_<i>, CUDA_DEVICE_SM_LIMIT", "as HAMi's", "as HAMi's"),
            variable("CUDA_DEVICE_MEMORY_SHARED_CACHE", "a path below /tmp/vgpu", "its directory holds the ledger"),
            variable("VOLCANO_GPU_ALLOCATED, VOLCANO_GPU_TOTAL", "MiB; they inform the program", "nothing"),
        ],
        files: &[
            file("/usr/local/vgpu/libvgpu.so", "libvgpu.so", "the library"),
            file("/tmp/vgpu", "a directory of the container", "the ledger"),
            file("/etc/ld.so.preload", "ld.so.preload", "preloads /usr/local/vgpu/libvgpu.so"),
        ],
        cases: &[
            Case {
                words: "the vGPU plugin",
                variables: &[
                    ("CUDA_DEVICE_MEMORY_LIMIT_0", "2000m"),
                    ("CUDA_DEVICE_SM_LIMIT", "50"),
                    ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/vgpu/5f3c.cache"),
                ],
                mounts: &[
                    ("/usr/local/vgpu/libvgpu.so", "hami/libvgpu.so.v2.10.0"),
                    ("/tmp/vgpu", "hami/containers/uid_main"),
                    ("/tmp/vgpulock", "hami/vgpulock"),
                    ("/etc/ld.so.preload", "hami/ld.so.preload"),
                ],
                sees: Sees::Mebibytes(2000),
                ..CASE
            },
            Case {
                words: "the older sharing, which limits nothing",
                variables: &[("VOLCANO_GPU_ALLOCATED", "2000"), ("VOLCANO_GPU_TOTAL", "143771")],
                sees: Sees::WholeDevice,
                ..CASE
            },
        ],
    },
    Contract {
        title: "vgpu-manager 1.0",
        source: "https://github.com/coldzerofear/vgpu-manager/blob/main/pkg/deviceplugin/vgpu/vnum_plugin.go",
        evidence: Evidence::WordForWord,
        variables: &[
            variable("CUDA_MEM_LIMIT_<i>", "`<MiB>m`; i is the host's number", "nothing: set VGPU_MEMORY_LIMIT too"),
            variable("CUDA_CORE_LIMIT_<i>, CUDA_CORE_SOFT_LIMIT_<i>", "percent", "nothing: set VGPU_SM_LIMIT too"),
            variable("CUDA_MEM_RATIO", "a factor", "nothing"),
            variable(
                "VGPU_POD_NAME, VGPU_POD_NAMESPACE, VGPU_POD_UID, VGPU_CONTAINER_NAME",
                "words, with the prefix of this project",
                "nothing; `vgpu doctor` names their owner",
            ),
        ],
        files: &[
            file("/etc/vgpu-manager/...", "directories of the container", "not used"),
            file("/etc/ld.so.preload", "ld.so.preload", "preloads its own library"),
        ],
        cases: &[
            Case {
                words: "this library instead of its own: its limits are in other names",
                variables: VGPU_MANAGER,
                sees: Sees::WholeDevice,
                ..CASE
            },
            Case {
                words: "the same with VGPU_MEMORY_LIMIT=4GiB",
                variables: &[
                    ("CUDA_MEM_LIMIT_0", "4096m"),
                    ("VGPU_POD_NAME", "train"),
                    ("VGPU_CONTAINER_NAME", "main"),
                    ("VGPU_MEMORY_LIMIT", "4GiB"),
                ],
                sees: Sees::Mebibytes(4096),
                ..CASE
            },
        ],
    },
];
