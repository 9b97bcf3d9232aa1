/* A library behind ours in which calls of any thread but the first take long: a load is there already and has not come back,
 * an allocation and a free wait before anything is done, as a free does for kernels that run. */
/* RETAIN: only the first thread that retains the primary context is late, with the context made and not handed out yet;
 * HOLD: it retains the context once more, for itself, and nobody is late. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LONG 1500000
#define NEXT(type, name) static __typeof__(type) next; if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name)
static int late(void) { return syscall(SYS_gettid) != getpid(); }

#if defined RETAIN || defined HOLD
int cuDevicePrimaryCtxRetain(void **context, int device) {
    NEXT(int (*)(void **, int), "cuDevicePrimaryCtxRetain");
    static int calls;
    int first = !__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
    int code = next(context, device);
#ifdef HOLD
    if (first) next(context, device);
#else
    if (first) usleep(LONG);
#endif
    return code;
}
#else
int cuModuleLoadData(void **module, const void *image) {
    NEXT(int (*)(void **, const void *), "cuModuleLoadData");
    int code = next(module, image);
    if (late()) usleep(LONG);
    return code;
}
int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
    NEXT(int (*)(uint64_t *, size_t), "cuMemAlloc_v2");
    if (late()) usleep(LONG);
    return next(p, bytes);
}
int cuMemFree_v2(uint64_t p) {
    NEXT(int (*)(uint64_t), "cuMemFree_v2");
    if (late()) usleep(LONG);
    return next(p);
}
#endif
