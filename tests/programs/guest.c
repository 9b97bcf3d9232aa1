/* A library that uses the device as real libraries do: in its constructor, by its own dlopen, on its own threads.
 * -DOWN: finds the driver by its own dlopen and dlsym; otherwise it is linked with it. -DNAMED: also exports
 * functions with the driver's names and calls the results of its own lookup. That lookup is RTLD_NEXT with
 * -DBY_NEXT, cuGetProcAddress with -DBY_GET, the dlsym behind its own exported one with -DBY_DLSYM, otherwise its
 * handle of the driver. -DCONSTRUCTOR: works before main, with GUEST_BYTES of the environment. -DEARLY: many threads
 * look names up before main. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef OWN
#ifdef BY_DLSYM
void *dlsym(void *handle, const char *name) {
    void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return next(handle, name);
}
#endif
static void *find(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
#ifdef BY_NEXT
    return dlsym(RTLD_NEXT, name);
#elif defined BY_GET
    int (*get)(const char *, void **, int, uint64_t, int *) = (int (*)(const char *, void **, int, uint64_t, int *))dlsym(driver, "cuGetProcAddress_v2");
    char base[64];
    void *found = 0;
    int status;
    snprintf(base, sizeof base, "%s", name);
    char *version = strstr(base, "_v2");
    if (version) *version = 0;
    return get(base, &found, 12020, 0, &status) ? 0 : found;
#elif defined BY_DLSYM
    void *(*next)(void *, const char *) = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return next(driver, name);
#else
    return driver ? dlsym(driver, name) : 0;
#endif
}
#ifdef NAMED
int cuInit(int flags) { return ((int (*)(int))find("cuInit"))(flags); }
int cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) { return ((int (*)(const char *, void **, int, uint64_t, int *))find("cuGetProcAddress_v2"))(name, out, version, flags, status); }
int cuMemAlloc_v2(uint64_t *p, uint64_t bytes) { return ((int (*)(uint64_t *, uint64_t))find("cuMemAlloc_v2"))(p, bytes); }
int cuMemFree_v2(uint64_t p) { return ((int (*)(uint64_t))find("cuMemFree_v2"))(p); }
int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    static int (*next)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    if (!next) next = find("cuLaunchKernel");
    return next(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
#endif
#define F(name) ((int (*)())find(#name))
#else
#define F(name) name
int cuInit(), cuDevicePrimaryCtxRetain(), cuCtxSetCurrent(), cuMemAlloc_v2(), cuMemFree_v2();
#endif

/* Any program may define this function too; the result shows whose definition was bound. */
int whose(void) { return 1; }
int bound_to(void) { return whose(); }

/* The driver's code for an allocation of `bytes`; 1000 and more is a failure before it. */
int guest_alloc(uint64_t bytes) {
    void *context = 0;
    uint64_t p = 0;
    int code;
    if ((code = F(cuInit)(0))) return 1000 + code;
    if ((code = F(cuDevicePrimaryCtxRetain)(&context, 0))) return 2000 + code;
    if ((code = F(cuCtxSetCurrent)(context))) return 3000 + code;
    if ((code = F(cuMemAlloc_v2)(&p, bytes))) return code;
    F(cuMemFree_v2)(p);
    return 0;
}

#ifdef OWN
/* Launches kernels of 1 ms for `ms` milliseconds, with a wait after every 64. Returns their number, or the driver's
 * code, negative. */
int guest_work(uint64_t ms) {
    static const char ptx[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
        ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";
    void *context = 0, *module = 0, *kernel = 0;
    uint64_t ns = 1000000;
    void *parameters[] = { &ns };
    struct timespec begin, end;
    int code, launched = 0;
    if ((code = F(cuInit)(0)) || (code = F(cuDevicePrimaryCtxRetain)(&context, 0)) || (code = F(cuCtxSetCurrent)(context))) return -code;
    if ((code = F(cuModuleLoadData)(&module, ptx)) || (code = F(cuModuleGetFunction)(&kernel, module, "vgpu_spin_ns"))) return -code;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        if ((code = F(cuLaunchKernel)(kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0))) return -code;
        if (++launched % 64 == 0 && (code = F(cuCtxSynchronize)())) return -code;
        clock_gettime(CLOCK_MONOTONIC, &end);
    } while ((uint64_t)((end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000) < ms);
    code = F(cuCtxSynchronize)();
    return code ? -code : launched;
}
#endif

/* Opens a library by this library's own search path. */
void *guest_open(const char *name) { return dlopen(name, RTLD_NOW); }

#ifdef CONSTRUCTOR
static int made = -1;
__attribute__((constructor)) static void before_main(void) { if (getenv("GUEST_BYTES")) made = guest_alloc(strtoull(getenv("GUEST_BYTES"), 0, 10)); }
int guest_made(void) { return made; }
#endif

#ifdef EARLY
static int wrong;
static void *look(void *unused) {
    for (int i = 0; i < 500; i++) {
        if (!dlsym(RTLD_DEFAULT, "getpid") || dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") || dlsym(RTLD_NEXT, "cuInit")) wrong = 1;
        if (dlvsym(RTLD_DEFAULT, "getpid", "GLIBC_2.2.5") != dlsym(RTLD_DEFAULT, "getpid")) wrong = 1;
    }
    return 0;
}
__attribute__((constructor)) static void many(void) {
    pthread_t t[16];
    for (int i = 0; i < 16; i++) pthread_create(&t[i], 0, look, 0);
    for (int i = 0; i < 16; i++) pthread_join(t[i], 0);
}
int guest_made(void) { return wrong; }
#endif
