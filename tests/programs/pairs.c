/* Pairs of an allocation and its release next to LIVE live ones. pairs COUNT LIVE: prints nanoseconds per pair, the
 * minimum of five batches. Not here: differences against the bare driver, which benches/ measure. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef uint64_t u64;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, size_t), cuMemFree_v2(u64);

int main(int argc, char **argv) {
    void *context;
    u64 p, best = ~0ul, count = argc > 1 ? strtoull(argv[1], 0, 10) : 0, live = argc > 2 ? strtoull(argv[2], 0, 10) : 0;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 3;
    for (u64 i = 0; i < live; i++) if (cuMemAlloc_v2(&p, 512)) return 4;
    for (int batch = 0; batch < 5; batch++) {
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        for (u64 i = 0; i < count; i++) if (cuMemAlloc_v2(&p, 4096) || cuMemFree_v2(p)) return 5;
        clock_gettime(CLOCK_MONOTONIC, &b);
        u64 took = (u64)(b.tv_sec - a.tv_sec) * 1000000000 + (u64)(b.tv_nsec - a.tv_nsec);
        if (took < best) best = took;
    }
    printf("%lu\n", count ? best / count : 0);
    return 0;
}
