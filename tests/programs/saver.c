/* A preloaded library that serves the runtime's allocations with virtual memory, so that the program can give the
 * memory back and keep its addresses. With -DPROGRAM: a program that allocates by the runtime's names: one command
 * per line on stdin, one answer per line on stdout, the code first. Neither knows anything of vgpu. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;

#ifdef PROGRAM
int main(void) {
    char line[256], verb[64];
    u64 a;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = 0, *p;
    int (*call)();
#define FIND(scope, name) (call = dlsym(scope, name))
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        a = 0, p = 0;
        if (sscanf(line, "%63s %lu", verb, &a) < 1) continue;
        if (!strcmp(verb, "init")) printf("%d\n", FIND(driver, "cuInit")(0));
        else if (!strcmp(verb, "retain")) {
            int r = FIND(driver, "cuDevicePrimaryCtxRetain")(&context, (int)a);
            printf("%d\n", r ? r : FIND(driver, "cuCtxSetCurrent")(context));
        }
        else if (!strcmp(verb, "info")) { size_t f = 0, t = 0; int r = FIND(driver, "cuMemGetInfo_v2")(&f, &t); printf("%d %lu %lu\n", r, f, t); }
        else if (!strcmp(verb, "malloc")) { int r = FIND(RTLD_DEFAULT, "cudaMalloc")(&p, (size_t)a); printf("%d %lu\n", r, (u64)p); }
        else if (!strcmp(verb, "free")) printf("%d\n", FIND(RTLD_DEFAULT, "cudaFree")((void *)a));
        else if (!strncmp(verb, "saver_", 6)) printf("%d\n", FIND(RTLD_DEFAULT, verb)()); /* saver_pause, saver_resume */
        else { printf("! not a command: %s", line); return 4; }
    }
    return 0;
}
#else
struct properties { int type, handles, kind, id; void *win32; unsigned char flags[8]; };
struct access { int kind, id, flags; };
int cuMemAddressReserve(u64 *, size_t, size_t, u64, u64), cuMemAddressFree(u64, size_t);
int cuMemCreate(u64 *, size_t, const void *, u64), cuMemRelease(u64), cuMemMap(u64, size_t, size_t, u64, u64);
int cuMemUnmap(u64, size_t), cuMemSetAccess(u64, size_t, const void *, size_t);

enum { MOST = 64, PAGE = 2 << 20, INVALID = 1 };
static struct { u64 at, bytes, handle; } held[MOST]; /* handle 0: paused */

static int fill(int i) {
    struct properties p = { 1, 0, 1, 0 };
    struct access rw = { 1, 0, 3 };
    int code = cuMemCreate(&held[i].handle, held[i].bytes, &p, 0);
    if (code) { held[i].handle = 0; return code; }
    if (!code) code = cuMemMap(held[i].at, held[i].bytes, 0, held[i].handle, 0);
    return code ? code : cuMemSetAccess(held[i].at, held[i].bytes, &rw, 1);
}

static int empty(int i) {
    int code = cuMemUnmap(held[i].at, held[i].bytes);
    if (!code) code = cuMemRelease(held[i].handle);
    if (!code) held[i].handle = 0;
    return code;
}

int cudaMalloc(void **p, size_t bytes) {
    for (int i = 0; i < MOST; i++) {
        if (held[i].at) continue;
        held[i].bytes = (bytes + PAGE - 1) / PAGE * PAGE;
        int code = cuMemAddressReserve(&held[i].at, held[i].bytes, 0, 0, 0);
        if (!code && (code = fill(i))) cuMemAddressFree(held[i].at, held[i].bytes);
        if (code) held[i].at = 0; else *p = (void *)held[i].at;
        return code;
    }
    return INVALID;
}

int cudaFree(void *p) {
    for (int i = 0; i < MOST; i++) {
        if (held[i].at != (u64)p || !p) continue;
        int code = held[i].handle ? empty(i) : 0;
        if (!code) code = cuMemAddressFree(held[i].at, held[i].bytes);
        held[i].at = 0;
        return code;
    }
    return INVALID;
}

int saver_pause(void) {
    int code = 0;
    for (int i = 0; i < MOST && !code; i++) if (held[i].at && held[i].handle) code = empty(i);
    return code;
}

int saver_resume(void) {
    int code = 0;
    for (int i = 0; i < MOST && !code; i++) if (held[i].at && !held[i].handle) code = fill(i);
    return code;
}
#endif
