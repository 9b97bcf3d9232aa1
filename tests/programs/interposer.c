/* A third-party preloaded library: it interposes a function and calls the next one by RTLD_NEXT.
 * -DSTEP=n: getppid returns n more than the next. -DDRIVER: counts calls of cuMemAlloc_v2. -DBY_LOOKUP: as -DDRIVER,
 * with the next function found by cuGetProcAddress. With either of them, -DTHREAD makes the lookup and the call on a
 * new thread, -DWORKER on one thread for all calls. -DBY_HANDLE and -DBY_DLVSYM look the next one up by the driver's
 * handle, and by that handle without a version.
 * -DREJECTS: interposes the driver's lookup, and refuses with 801 an answer that is not in libcuda.
 * -DLAZY: counts calls of four functions more, each of which opens the driver at its first call, as generated
 * wrappers do. -DLOADER: interposes dlsym and dlopen. -DALLOCATOR: interposes malloc. -DMADE_EARLY: looks names up
 * before main. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#ifdef STEP
pid_t getppid(void) {
    pid_t (*next)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");
    pid_t (*again)(void) = (pid_t (*)(void))dlsym(RTLD_NEXT, "getppid");
    return next && next == again ? next() + STEP : -1;
}
#endif
#if defined DRIVER || defined BY_LOOKUP
int interposer_calls, interposer_depth, interposer_deepest;
typedef int (*allocate)(uint64_t *, size_t);
static allocate find_next(void) {
    allocate next = 0;
#ifdef BY_LOOKUP
    /* Finds the next function by the driver's own lookup. */
    int (*get)(const char *, void **, int, uint64_t, int *) = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2");
    int status;
    if (!get) get = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    get("cuMemAlloc", (void **)&next, 12020, 0, &status);
#elif defined BY_HANDLE
    next = (allocate)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
#elif defined BY_DLVSYM
    next = (allocate)dlvsym(RTLD_NEXT, "cuMemAlloc_v2", "LIBCUDA_TEST");
    if (!next) next = (allocate)dlsym(RTLD_NEXT, "cuMemAlloc_v2");
#else
    next = (allocate)dlsym(RTLD_NEXT, "cuMemAlloc_v2");
#endif
    return next;
}
struct work { uint64_t *p; size_t bytes; int code; void *context; };
static void *work(void *argument) {
    struct work *w = argument;
#if defined THREAD || defined WORKER
    int (*current)(void *) = (int (*)(void *))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSetCurrent");
    current(w->context);
#endif
    allocate next = find_next();
    w->code = next && interposer_depth < 50 ? next(w->p, w->bytes) : 9999;
    return 0;
}
#ifdef WORKER
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct work *queued;
static int has_worker;
static void *serve(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!queued) pthread_cond_wait(&changed, &lock);
        struct work *w = queued;
        pthread_mutex_unlock(&lock);
        work(w);
        pthread_mutex_lock(&lock);
        queued = 0;
        pthread_cond_broadcast(&changed);
    }
    return unused;
}
#endif
int cuMemAlloc_v2(uint64_t *p, size_t bytes) {
    struct work w = { p, bytes, 9998, 0 };
    interposer_calls++;
    if (++interposer_depth > interposer_deepest) interposer_deepest = interposer_depth;
#if defined THREAD || defined WORKER
    pthread_t thread;
    int (*context)(void **) = (int (*)(void **))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxGetCurrent");
    context(&w.context);
#endif
#ifdef THREAD
    if (!pthread_create(&thread, 0, work, &w)) pthread_join(thread, 0);
#elif defined WORKER
    /* A call made by the worker itself would wait for ever. */
    pthread_mutex_lock(&lock);
    if (!has_worker++ && !pthread_create(&thread, 0, serve, 0)) pthread_detach(thread);
    if (!queued) {
        queued = &w;
        pthread_cond_broadcast(&changed);
        while (queued) pthread_cond_wait(&changed, &lock);
    }
    pthread_mutex_unlock(&lock);
#else
    work(&w);
#endif
    interposer_depth--;
    return w.code;
}
#endif
#ifdef REJECTS
#include <string.h>
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
    int (*next)(const char *, void **, int, uint64_t, int *) = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(RTLD_NEXT, "cuGetProcAddress_v2");
    Dl_info in;
    int code = next(name, out, version, flags, status);
    if (code || !*out || (dladdr(*out, &in) && strstr(in.dli_fname, "libcuda.so"))) return code;
    *out = 0;
    return 801;
}
#endif
#ifdef MADE_EARLY
static void *early_getpid, *early_init, *early_next;
__attribute__((constructor)) static void early(void) {
    early_getpid = dlsym(RTLD_DEFAULT, "getpid");
    early_init = dlsym(RTLD_DEFAULT, "cuInit");
    early_next = dlsym(RTLD_NEXT, "nvmlInit_v2");
}
int made_early(void) { return (early_getpid != 0) + 2 * (early_init == 0) + 4 * (early_next == 0); }
#endif
#ifdef LAZY
/* As generated wrappers do: a table of the driver's functions, filled by the first call of each. */
int interposer_calls, interposer_depth, interposer_deepest;
#define PASS(name, types, words) int name types { \
    static int (*next) types; \
    if (!next) next = (int (*) types)dlsym(dlopen("libcuda.so.1", RTLD_NOW), #name); \
    interposer_calls++; \
    if (++interposer_depth > interposer_deepest) interposer_deepest = interposer_depth; \
    int code = next && interposer_depth < 50 ? next words : 9999; \
    interposer_depth--; \
    return code; }
PASS(cuInit, (unsigned flags), (flags))
PASS(cuDevicePrimaryCtxRetain, (void **context, int device), (context, device))
PASS(cuCtxSetCurrent, (void *context), (context))
PASS(cuMemAlloc_v2, (uint64_t *p, size_t bytes), (p, bytes))
PASS(cuMemFree_v2, (uint64_t p), (p))
#endif
#ifdef LOADER
/* Interposes the loader's functions, and finds the next ones by version, as such tools do. */
int interposer_calls, interposer_deepest = 1;
void *dlsym(void *handle, const char *name) {
    static void *(*next)(void *, const char *);
    if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    interposer_calls++;
    return next(handle, name);
}
void *dlopen(const char *file, int flags) {
    static void *(*next)(const char *, int);
    if (!next) next = (void *(*)(const char *, int))dlvsym(RTLD_NEXT, "dlopen", "GLIBC_2.2.5");
    return next(file, flags);
}
#endif
#ifdef ALLOCATOR
/* An allocator that counts and calls the next one. It looks the next one up at the first allocation of the process. */
#include <string.h>
static char first[65536];
static size_t taken;
static void *(*next_malloc)(size_t), *(*next_realloc)(void *, size_t);
static void (*next_free)(void *);
long allocator_calls;
static void find(void) {
    static int finding;
    if (finding++) return;
    next_realloc = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    next_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    next_malloc = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
}
static int is_first(void *p) { return (char *)p >= first && (char *)p < first + sizeof first; }
void *malloc(size_t size) {
    if (!next_malloc) find();
    allocator_calls++;
    if (next_malloc) return next_malloc(size);
    size_t at = (taken + 15) & ~15ul;
    if (at + size > sizeof first) return 0;
    taken = at + size;
    return first + at;
}
void *calloc(size_t n, size_t size) { void *p = malloc(n * size); if (p) memset(p, 0, n * size); return p; }
void free(void *p) { if (p && !is_first(p)) { if (!next_free) find(); next_free(p); } }
void *realloc(void *p, size_t size) {
    if (p && !is_first(p)) { if (!next_realloc) find(); return next_realloc(p, size); }
    void *fresh = malloc(size);
    if (p && fresh) memcpy(fresh, p, (size_t)(first + sizeof first - (char *)p) < size ? (size_t)(first + sizeof first - (char *)p) : size);
    return fresh;
}
#endif
