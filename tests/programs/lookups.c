/* A program that is linked with the driver, so that preloaded libraries answer its lookups in their order.
 *   lookups SMALL LARGE NAME...  looks the names up by cuGetProcAddress_v2, prints `NAME CODE FILE` for each, and then
 *                                `linked CODE CODE` for allocations of both sizes by the linked function */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(uint64_t *, size_t);
int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);

int main(int argc, char **argv) {
    void *context;
    uint64_t p;
    int code = cuInit(0), status;
    if (!code) code = cuDevicePrimaryCtxRetain(&context, 0);
    if (!code) code = cuCtxSetCurrent(context);
    if (code || argc < 3) { printf("begin %d\n", code); return 1; }
    for (int i = 3; i < argc; i++) {
        void *found = 0;
        Dl_info in;
        code = cuGetProcAddress_v2(argv[i], &found, 12020, 0, &status);
        const char *file = found && dladdr(found, &in) ? strrchr(in.dli_fname, '/') + 1 : "null";
        printf("%s %d %s\n", argv[i], code, file);
    }
    int small = cuMemAlloc_v2(&p, strtoull(argv[1], 0, 10));
    printf("linked %d %d\n", small, cuMemAlloc_v2(&p, strtoull(argv[2], 0, 10)));
    return 0;
}
