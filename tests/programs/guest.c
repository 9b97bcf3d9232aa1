/* A library that uses the device, as libraries do: its constructor, its own dlopen, its own threads are its own affair.
 * -DOWN: it finds the driver by a dlopen and dlsym of its own; else it is linked with it.
 * -DCONSTRUCTOR: it works before main, with GUEST_BYTES of the environment. -DEARLY: many threads ask before main. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef OWN
static void *find(const char *name) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver ? dlsym(driver, name) : 0;
}
#define F(name) ((int (*)())find(#name))
#else
#define F(name) name
int cuInit(), cuDevicePrimaryCtxRetain(), cuCtxSetCurrent(), cuMemAlloc_v2(), cuMemFree_v2();
#endif

/* Whose is it? Any program may have one of these, too. */
int whose(void) { return 1; }
int bound_to(void) { return whose(); }

/* The driver's code for so many bytes; 1000 and more: it did not come so far. */
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

/* A library found from here, by this library's own search path. */
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
