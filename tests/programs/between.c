/* A library behind ours that stands between us and the driver: it counts the stream-ordered allocations that the driver is
 * asked for, takes the same from the pool before them if it is told so, and lets the program act after a free before we
 * know of it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

uint64_t driver_was_asked, take_before;
void (*after_free)(void);

int cuMemAllocAsync(uint64_t *p, size_t bytes, void *stream) {
    static int (*next)(uint64_t *, size_t, void *);
    uint64_t taken;
    if (!next) next = (int (*)(uint64_t *, size_t, void *))dlsym(RTLD_NEXT, "cuMemAllocAsync");
    driver_was_asked++;
    for (; take_before; take_before--) next(&taken, bytes, stream);
    return next(p, bytes, stream);
}

int cuMemFreeAsync(uint64_t p, void *stream) {
    static int (*next)(uint64_t, void *);
    void (*then)(void) = after_free;
    if (!next) next = (int (*)(uint64_t, void *))dlsym(RTLD_NEXT, "cuMemFreeAsync");
    after_free = 0;
    int code = next(p, stream);
    if (then) then();
    return code;
}
