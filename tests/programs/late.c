/* A library behind ours in which calls of any thread but the first take long: a load is there already and has not come back,
 * an allocation and a free wait before anything is done, as a free does for kernels that run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LONG 1500000
#define NEXT(type, name) static __typeof__(type) next; if (!next) next = (__typeof__(type))dlsym(RTLD_NEXT, name)
static int late(void) { return syscall(SYS_gettid) != getpid(); }

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
