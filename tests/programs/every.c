/* Calls functions of the driver with zero for every argument and prints name and code. After `context` in the list
 * it works inside a primary context. Names are found in the global scope, and after `by-handle` by the driver's
 * handle. With a generated interposer each line also has the number of its calls of that function, and its depth.
 * Every function gets eleven zeroes, which the calling convention permits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*any)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

int main(int argc, char **argv) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL), *context = 0;
    if (!cuda || !nvml) { printf("%s\n", dlerror()); return 1; }
    setvbuf(stdout, 0, _IOLBF, 0);
    int by_handle = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "context")) {
            int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
            int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
            int (*current)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
            int (*nv)(void) = (int (*)(void))dlsym(nvml, "nvmlInit_v2");
            int code = init(0);
            if (!code) code = retain(&context, 0);
            if (!code) code = current(context);
            printf("context %d %d\n", code, nv());
            continue;
        }
        if (!strcmp(argv[i], "by-handle")) { by_handle = 1; continue; }
        any f = (any)dlsym(strncmp(argv[i], "nvml", 4) ? cuda : nvml, argv[i]);
        if (!f) { printf("%s absent\n", argv[i]); continue; }
        if (!by_handle) f = (any)dlsym(RTLD_DEFAULT, argv[i]);
        int *(*counts)(const char *) = (int *(*)(const char *))dlsym(RTLD_DEFAULT, "interposer_counts");
        int *count = counts ? counts(argv[i]) : 0;
        printf("%s %d", argv[i], f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
        if (count) printf(" called %d deep %d", count[0], count[2]);
        printf("\n");
    }
    return 0;
}
