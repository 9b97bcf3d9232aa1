/* A library behind ours that makes allocations take a few milliseconds and fail now and then: what is reserved stays
 * undecided for as long. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
    static int (*next)(uint64_t *, size_t);
    static unsigned seed;
    if (!next) next = (int (*)(uint64_t *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2"), seed = (unsigned)getpid();
    usleep(500 + rand_r(&seed) % 2000);
    return rand_r(&seed) % 4 == 0 ? 719 : next(p, bytes);
}
