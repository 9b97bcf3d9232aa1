/* A library that replaces some of the simulated driver's functions. Calls of all threads but the first take long: a
 * load or a context's end has happened and has not returned, and an allocation or a free waits before it does
 * anything, as a free does for running kernels. */
/* RETAIN: only the first thread that retains the primary context is late; the context exists and is not returned
 * yet. HOLD: the library retains the context once more for itself, and no thread is late. CREATE: only the creation of
 * a context is late, in every thread; the context exists and is not returned yet. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LONG 1500000
#define SHORT 20000
static int late(void) { return syscall(SYS_gettid) != getpid(); }

static int (*retain)(void **, int), (*load)(void **, const void *), (*alloc)(uint64_t *, size_t), (*release)(uint64_t),
    (*destroy)(void *);

static int retain_late(void **context, int device) {
    static int calls;
    int first = !__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
    int code = retain(context, device);
#ifdef HOLD
    if (first) retain(context, device);
#else
    if (first) usleep(LONG);
#endif
    return code;
}
static int load_late(void **module, const void *image) {
    int code = load(module, image);
    if (late()) usleep(LONG);
    return code;
}
static int alloc_late(uint64_t *p, size_t bytes) {
    if (late()) usleep(LONG);
    return alloc(p, bytes);
}
static int release_late(uint64_t p) {
    if (late()) usleep(LONG);
    return release(p);
}
static int destroy_late(void *context) {
    int code = destroy(context);
    if (late()) usleep(LONG);
    return code;
}

static int (*create)(void **, void *, unsigned, int);
static int create_late(void **context, void *parameters, unsigned flags, int device) {
    int code = create(context, parameters, flags, device);
    usleep(SHORT);
    return code;
}

void *vgpu_sim_stand_in(const char *name, void *function) {
#if defined RETAIN || defined HOLD
    if (!strcmp(name, "cuDevicePrimaryCtxRetain")) return retain = function, retain_late;
#elif defined CREATE
    if (!strcmp(name, "cuCtxCreate_v4")) return create = function, create_late;
#else
    if (!strcmp(name, "cuModuleLoadData")) return load = function, load_late;
    if (!strcmp(name, "cuMemAlloc_v2")) return alloc = function, alloc_late;
    if (!strcmp(name, "cuMemFree_v2")) return release = function, release_late;
    if (!strcmp(name, "cuCtxDestroy_v2")) return destroy = function, destroy_late;
#endif
    return 0;
}
