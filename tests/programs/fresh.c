/* Launches of which no two are alike: fresh STREAMS NS SECONDS. Each has another grid, round robin over STREAMS streams,
 * and takes NS on the device. Ends after SECONDS and a wait. Prints the number of launches. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t u64;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuStreamCreate(void **, unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

int main(int argc, char **argv) {
    void *context, *module, *kernel, *streams[16];
    if (argc != 4) return 2;
    u64 count = strtoull(argv[1], 0, 10), ns = strtoull(argv[2], 0, 10), seconds = strtoull(argv[3], 0, 10), launches = 0;
    if (!count || count > 16) return 2;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 3;
    if (cuModuleLoadData(&module, PTX) || cuModuleGetFunction(&kernel, module, "vgpu_spin_ns")) return 4;
    for (u64 at = 0; at < count; at++) if (cuStreamCreate(&streams[at], 1)) return 5;
    for (u64 end = now() + seconds * 1000000000; now() < end; launches++) {
        void *parameters[] = { &ns };
        void *stream = streams[launches % count];
        if (cuLaunchKernel(kernel, (unsigned)launches + 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0)) return 6;
    }
    if (cuCtxSynchronize()) return 7;
    printf("%lu\n", launches);
    return 0;
}
