//! The table of all 56 metrics: the meaning of each here, or the reason why it is not measured.

use crate::metrics::BetterDirection::{self, Higher, Lower};
use crate::metrics::MetricGroup::{self, Errors, Isolation, Other, Overhead, Scheduling};
use crate::metrics::MetricMethod::{self, Measured, NotMeasured};
use crate::metrics::ReportMetric;

const fn metric(
    id: &'static str,
    name: &'static str,
    group: MetricGroup,
    unit: &'static str,
    better: BetterDirection,
    how: MetricMethod,
) -> ReportMetric {
    ReportMetric { id, name, group, unit, better, how }
}

const COMPUTES_NOTHING: &str =
    "the simulated device takes time for a kernel and computes nothing; a figure would be the model's assumption";
const NO_BANDWIDTH: &str = "the simulated device has no memory bandwidth; the library neither divides nor touches it";
const NO_CACHE: &str = "the simulated device has no cache; the library neither divides nor touches a real one";
const NO_BUS: &str = "copies on the simulated device are copies in the host's memory; the library does not pace copies";
const NO_LINKS: &str = "the simulated device has no links to others; a figure would be the host's memory";
const PLACED_BY_DRIVER: &str = "where an allocation lies is the driver's choice, which the library passes through; the model's choice is no evidence";

/// All metrics, in the suite's order.
#[rustfmt::skip] // one entry after the other, not one word per line
pub static REPORT_METRICS: [ReportMetric; 56] = [
    metric("OH-001", "Kernel launch latency", Overhead, "ns", Lower, Measured(
        "Time in cuLaunchKernel for a kernel that takes no device time, in the calling thread. Under a ceiling with \
         a positive balance too; there the library's markers and questions to the driver are in it.")),
    metric("OH-002", "Memory allocation latency", Overhead, "ns", Lower, Measured(
        "Time of cuMemAlloc of 4 KiB and the cuMemFree of it, as one pair, with nothing else allocated. The two are \
         measured together because neither can be repeated without the other; this is the metric of both.")),
    metric("OH-003", "Memory free latency", Overhead, "ns", Lower, NotMeasured(
        "measured as a pair with the allocation: OH-002 is the sum of both")),
    metric("OH-004", "Context creation overhead", Overhead, "us", Lower, Measured(
        "Time of a process's first call, cuInit, in which the library reads its limits, finds its ledger and joins \
         it. Creating a context afterwards costs what the driver takes.")),
    metric("OH-005", "API interception overhead", Overhead, "ns", Lower, Measured(
        "Time to look a function up, by dlsym of a name without a hook and by cuGetProcAddress of one with and one \
         without; and time of a hooked call that the driver refuses at once, where little else hides the hook.")),
    metric("OH-006", "Shared region lock contention", Overhead, "ns", Lower, Measured(
        "Processor time of a pair of allocation and free, per thread, when 1, 2 and 4 threads do nothing else: what \
         waiting for the accounting would add grows with the threads.")),
    metric("OH-007", "Memory tracking overhead", Overhead, "ns", Lower, Measured(
        "As OH-002, beside ten and a hundred thousand living allocations, and in stream order from a pool: what the \
         accounting of each allocation costs when there are many.")),
    metric("OH-008", "Rate limiter overhead", Overhead, "ns", Lower, Measured(
        "What a launch under a ceiling with a positive balance adds of the library's own code, on a driver whose \
         calls do nothing, so that nothing of the driver is in it.")),
    metric("OH-009", "NVML polling overhead", Overhead, "% of a core", Lower, Measured(
        "Nothing here polls NVML to enforce a limit. In its place: the processor time that the daemon takes while \
         two tenants with work all the time take turns.")),
    metric("OH-010", "Total throughput degradation", Overhead, "%", Lower, Measured(
        "Device time that two processes with 1 ms kernels and work all the time leave unused, out of all device \
         time by the device's own record: in the device's own time slices, and as two tenants with equal weights.")),
    metric("IS-001", "Memory limit accuracy", Isolation, "% of what is allowed", Higher, Measured(
        "Two processes of one tenant allocate at the same time, 256 MiB down to 1 MiB at once, until both are \
         refused with the code for out of memory; what is then gone of the device, their contexts included, as a \
         process without the library sees it, of the limit (4 GiB) or of the whole device where there is none. More \
         than 100 would be a limit that is exceeded.")),
    metric("IS-002", "Memory limit enforcement", Isolation, "ns", Lower, Measured(
        "Time of a cuMemAlloc of 1 MiB that is refused because everything allowed is taken; each answer must be the \
         code for out of memory.")),
    metric("IS-003", "SM utilization accuracy", Isolation, "%", Higher, Measured(
        "A share of device time by the device's own record, never NVML's utilisation: 100 less the distance to the \
         share that is due, in percent of it. The native column is the same program without a limit against the \
         same share: that it is low shows that the limit does something.")),
    metric("IS-004", "SM limit response time", Isolation, "ms", Lower, Measured(
        "From before the daemon is told another ceiling until the device does so, by its record: 5 to 90 % until 2 \
         ms of work are done, 90 to 5 % until the end of the last kernel before the first rest of 12 ms. The driver \
         has no such limit.")),
    metric("IS-005", "Cross-tenant memory isolation", Isolation, "MiB seen of 2048", Lower, Measured(
        "How much less memory a process of one tenant is told is free when another tenant takes 2 GiB. That nobody \
         reads another's memory is the driver's work and is not judged here.")),
    metric("IS-006", "Cross-tenant compute isolation", Isolation, "% of what is due", Higher, Measured(
        "Throughput of the worse off of two services that answer in 61 and 113 kernels, in percent of its part of \
         what it has alone; the parts are equal in the device's own time slices, and the weights under the daemon.")),
    metric("IS-007", "QoS consistency", Isolation, "%", Lower, Measured(
        "How much longer the slowest of a hundred answers takes than the middle one, (p99 - p50) / p50, of the \
         shorter of the two services of IS-006 beside the other one.")),
    metric("IS-008", "Fairness index", Isolation, "Jain", Higher, Measured(
        "Jain's index of what the two services of IS-006 get, each as a part of what it has alone and divided by \
         its weight.")),
    metric("IS-009", "Noisy neighbor impact", Isolation, "%", Lower, Measured(
        "How much longer a request of one 500 us kernel, made every 5 ms, takes beside a tenant that always has 1 \
         ms kernels to run than alone: the mean and the 99th percentile. Under the daemon the two have the classes \
         latency and batch.")),
    metric("IS-010", "Fault isolation", Isolation, "% of calls", Higher, Measured(
        "Calls of one process (launches, waits, allocations, frees) that succeed while a process of another tenant \
         is killed in the middle of its own. A fault of the device itself, which the driver has to contain, is not \
         tried.")),
    metric("LLM-001", "Attention kernel throughput", Other, "TFLOPS", Higher, NotMeasured(COMPUTES_NOTHING)),
    metric("LLM-002", "KV cache allocation speed", Other, "1/s", Higher, NotMeasured(
        "no model runs here; what each allocation costs more is OH-002 and OH-007")),
    metric("LLM-003", "Batch size scaling", Other, "ratio", Higher, NotMeasured(COMPUTES_NOTHING)),
    metric("LLM-004", "Token generation latency", Other, "ms", Lower, NotMeasured(COMPUTES_NOTHING)),
    metric("LLM-005", "Memory pool efficiency", Other, "%", Lower, NotMeasured(
        "no model runs here; what an allocation from a pool costs more is in OH-007")),
    metric("LLM-006", "Multi-stream performance", Other, "%", Higher, NotMeasured(
        "kernels that run at the same time share nothing in the model; streams under a ceiling are SCHED-003")),
    metric("LLM-007", "Large tensor allocation", Other, "ms", Lower, NotMeasured(
        "the simulated device has no memory to prepare, so that a size costs nothing; what the library adds does \
         not depend on it")),
    metric("LLM-008", "Mixed precision support", Other, "ratio", Higher, NotMeasured(COMPUTES_NOTHING)),
    metric("LLM-009", "Dynamic batching impact", Other, "variance", Lower, NotMeasured(COMPUTES_NOTHING)),
    metric("LLM-010", "Multi-GPU scaling", Other, "factor", Higher, NotMeasured(NO_LINKS)),
    metric("BW-001", "Memory bandwidth isolation", Other, "%", Higher, NotMeasured(NO_BANDWIDTH)),
    metric("BW-002", "Bandwidth fairness index", Other, "ratio", Higher, NotMeasured(NO_BANDWIDTH)),
    metric("BW-003", "Memory bus saturation point", Other, "ratio", Higher, NotMeasured(NO_BANDWIDTH)),
    metric("BW-004", "Bandwidth interference impact", Other, "%", Lower, NotMeasured(NO_BANDWIDTH)),
    metric("CACHE-001", "L2 cache hit rate", Other, "%", Higher, NotMeasured(NO_CACHE)),
    metric("CACHE-002", "Cache eviction rate", Other, "%", Lower, NotMeasured(NO_CACHE)),
    metric("CACHE-003", "Working set collision impact", Other, "%", Lower, NotMeasured(NO_CACHE)),
    metric("CACHE-004", "Cache contention overhead", Other, "%", Lower, NotMeasured(NO_CACHE)),
    metric("PCIE-001", "Host-to-device bandwidth", Other, "GB/s", Higher, NotMeasured(NO_BUS)),
    metric("PCIE-002", "Device-to-host bandwidth", Other, "GB/s", Higher, NotMeasured(NO_BUS)),
    metric("PCIE-003", "PCIe contention impact", Other, "%", Lower, NotMeasured(NO_BUS)),
    metric("PCIE-004", "Pinned memory performance", Other, "ratio", Higher, NotMeasured(NO_BUS)),
    metric("NCCL-001", "AllReduce latency", Other, "us", Lower, NotMeasured(NO_LINKS)),
    metric("NCCL-002", "AllGather bandwidth", Other, "GB/s", Higher, NotMeasured(NO_LINKS)),
    metric("NCCL-003", "P2P GPU bandwidth", Other, "GB/s", Higher, NotMeasured(NO_LINKS)),
    metric("NCCL-004", "Broadcast bandwidth", Other, "GB/s", Higher, NotMeasured(NO_LINKS)),
    metric("SCHED-001", "Context switch latency", Scheduling, "us", Lower, Measured(
        "How long a tenant's thread that wants the free device waits for the daemon to lend it, asleep on the word \
         that the daemon writes. Native is what the host takes to wake two threads there and back without any \
         daemon. What a device takes to change its context is a constant of the model and is no figure.")),
    metric("SCHED-002", "Kernel launch overhead", Scheduling, "ns", Lower, Measured(
        "Time of the launch of a kernel that takes no device time, by itself, the device idle before and after it, \
         under a ceiling with a positive balance: nothing in flight hides what the limiter does around it.")),
    metric("SCHED-003", "Stream concurrency efficiency", Scheduling, "%", Higher, Measured(
        "Device time of a program that launches 5 ms kernels into four streams in turn under a ceiling of 80 %, of \
         what the ceiling allows. Native is the same program without the library, of all device time.")),
    metric("SCHED-004", "Preemption latency", Scheduling, "ms", Lower, Measured(
        "A kernel that runs is not interrupted here. So: how much longer the slowest of a hundred requests of \
         IS-009 takes than alone when the other tenant has the device, of class latency beside class batch.")),
    metric("FRAG-001", "Fragmentation index", Other, "%", Lower, NotMeasured(PLACED_BY_DRIVER)),
    metric("FRAG-002", "Allocation latency degradation", Other, "ratio", Lower, NotMeasured(PLACED_BY_DRIVER)),
    metric("FRAG-003", "Memory compaction efficiency", Other, "%", Higher, NotMeasured(PLACED_BY_DRIVER)),
    metric("ERR-001", "Error detection latency", Errors, "ns", Lower, Measured(
        "Time of a launch of no function until the driver's error is back in the program: the same measurement as \
         in OH-005.")),
    metric("ERR-002", "Error recovery time", Errors, "ns", Lower, Measured(
        "From being refused for want of memory to having it: the time to give 1 MiB back and to get 1 MiB, with \
         everything else that is allowed taken.")),
    metric("ERR-003", "Graceful degradation score", Errors, "%", Higher, Measured(
        "With no memory left: a refusal has the code for out of memory; a second one too; a kernel still runs; what \
         is told as free is no more than cannot be had; giving back works; what was given back can be had again; \
         after all is given back as much as at the beginning is free. The part of these seven that holds.")),
];
