/* 04: a plain C program, linked with the driver like any other. Nothing of vgpu is in it.
 *
 *     cc examples/04_plain.c -Ltarget/release/sim -lcuda -o /tmp/plain
 *     vgpu run --sim --memory-limit 1GiB -- /tmp/plain
 *
 * The four functions are declared here, so that no header of the CUDA toolkit is needed.
 */
#include <stdio.h>
#include <stddef.h>

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemGetInfo_v2(size_t *free, size_t *total);
extern int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
extern int cuMemFree_v2(unsigned long long address);

static int must(const char *what, int code)
{
    if (code != 0)
        fprintf(stderr, "%s answered %d\n", what, code);
    return code;
}

int main(void)
{
    void *context;
    size_t free_bytes, total;
    unsigned long long address, more;

    if (must("cuInit", cuInit(0)) || must("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0))
        || must("cuCtxSetCurrent", cuCtxSetCurrent(context))
        || must("cuMemGetInfo", cuMemGetInfo_v2(&free_bytes, &total)))
        return 1;
    printf("total: %zu\nfree: %zu\n", total, free_bytes);

    /* All that is left, in one piece. */
    if (must("cuMemAlloc", cuMemAlloc_v2(&address, free_bytes)))
        return 1;
    printf("allocated: %zu\n", free_bytes);
    printf("one byte more: code %d\n", cuMemAlloc_v2(&more, 1)); /* 2: CUDA_ERROR_OUT_OF_MEMORY */
    return must("cuMemFree", cuMemFree_v2(address));
}
