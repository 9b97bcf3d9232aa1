/* Lookups as a runtime library makes them at its start: cuGetProcAddress_v2 by dlsym, the same function through
 * itself, then hundreds of names, some for per-thread streams; then work through the results.
 * runtime VERSION < lines `NAME FLAGS`: prints for each `NAME FLAGS CODE STATUS OBJECT SYMBOL`, and at the end the
 * code of an allocation of a GiB, and the total. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
typedef int (*get_t)(const char *, void **, int, u64, int *);
static void *found(get_t get, const char *name, int version) {
    void *at = 0;
    int status;
    if (get(name, &at, version, 0, &status) || !at) { printf("! %s\n", name); exit(3); }
    return at;
}

int main(int argc, char **argv) {
    char name[256];
    u64 flags;
    int version = argc > 1 ? atoi(argv[1]) : 12090;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    get_t get = driver ? (get_t)dlsym(driver, "cuGetProcAddress_v2") : 0;
    if (!get) return 3;
    get = (get_t)found(get, "cuGetProcAddress", version);
    while (scanf("%255s %lu", name, &flags) == 2) {
        void *at = 0;
        int status = -1, code = get(name, &at, version, flags, &status);
        Dl_info in = {0};
        if (at) dladdr(at, &in);
        const char *object = in.dli_fname ? strrchr(in.dli_fname, '/') : 0;
        printf("%s %lu %d %d %s %s\n", name, flags, code, status, object ? object + 1 : "-", in.dli_sname ? in.dli_sname : "-");
    }
    void *context;
    u64 p = 0;
    size_t left, total;
    int code = ((int (*)(unsigned))found(get, "cuInit", version))(0);
    if (!code) code = ((int (*)(void **, int))found(get, "cuDevicePrimaryCtxRetain", version))(&context, 0);
    if (!code) code = ((int (*)(void *))found(get, "cuCtxSetCurrent", version))(context);
    if (!code) code = ((int (*)(size_t *, size_t *))found(get, "cuMemGetInfo", version))(&left, &total);
    if (code) return 3;
    printf("%d %lu\n", ((int (*)(u64 *, size_t))found(get, "cuMemAlloc", version))(&p, 1ul << 30), total);
    return 0;
}
