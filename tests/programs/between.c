/* A library that replaces the simulated driver's stream-ordered functions. It counts the allocations that reach the
 * driver. On request it allocates the same size from the pool first, or lets the program act after a free, before
 * libvgpu knows of the free. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

uint64_t driver_was_asked, take_before;
void (*after_free)(void);

static int (*alloc)(uint64_t *, size_t, void *), (*release)(uint64_t, void *);

static int alloc_counted(uint64_t *p, size_t bytes, void *stream) {
    uint64_t taken;
    driver_was_asked++;
    for (; take_before; take_before--) alloc(&taken, bytes, stream);
    return alloc(p, bytes, stream);
}

static int release_told(uint64_t p, void *stream) {
    void (*then)(void) = after_free;
    after_free = 0;
    int code = release(p, stream);
    if (then) then();
    return code;
}

void *vgpu_sim_stand_in(const char *name, void *function) {
    if (!strcmp(name, "cuMemAllocAsync")) return alloc = function, alloc_counted;
    if (!strcmp(name, "cuMemFreeAsync")) return release = function, release_told;
    return 0;
}
