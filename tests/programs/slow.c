/* A library that replaces the simulated driver's allocation. An allocation takes a few milliseconds and fails from
 * time to time, so a reservation stays undecided that long. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*alloc)(uint64_t *, size_t);
static unsigned seed;

static int alloc_slowly(uint64_t *p, size_t bytes) {
    usleep(500 + rand_r(&seed) % 2000);
    return rand_r(&seed) % 4 == 0 ? 719 : alloc(p, bytes);
}

void *vgpu_sim_stand_in(const char *name, void *function) {
    if (strcmp(name, "cuMemAlloc_v2")) return 0;
    seed = (unsigned)getpid();
    return alloc = function, alloc_slowly;
}
