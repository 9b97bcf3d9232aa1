/* A program that creates and destroys contexts, modules, libraries and limits on command: one command per line, with
 * the driver's code first in each answer. It knows nothing of vgpu. Not here: all forms of allocation (member.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
struct array { size_t width, height; unsigned format, channels; };

static void *driver;
static void *need(const char *name) {
    void *f = dlsym(driver, name);
    if (!f) { printf("! no %s\n", name); exit(3); }
    return f;
}
#define CALL(name, ...) ({ static int (*f_)(); if (!f_) f_ = need(#name); f_(__VA_ARGS__); })

/* A module image whose code takes `bytes`, with a global variable of `global` bytes. */
static char *image(u64 bytes, u64 global) {
    char *text = malloc(bytes + 512);
    int n = sprintf(text, ".version 7.0\n.target sm_50\n.address_size 64\n");
    if (global) n += sprintf(text + n, ".visible .global .align 4 .b8 data[%lu];\n", global);
    n += sprintf(text + n, ".visible .entry work()\n{\nret;\n}\n");
    while ((u64)n + 1 < bytes) text[n] = n % 100 ? ' ' : '\n', n++;
    text[n] = 0;
    return text;
}

static int load(void **module, u64 bytes, u64 global, u64 way) {
    char *text = image(bytes, global);
    int code;
    switch (way) {
    case 1: code = CALL(cuModuleLoadDataEx, module, text, 0, (void *)0, (void *)0); break;
    case 2: code = CALL(cuModuleLoadFatBinary, module, text); break;
    case 3: {
        char path[64];
        snprintf(path, sizeof path, "/tmp/contexts-%d-%lx.ptx", getpid(), (u64)pthread_self());
        FILE *f = fopen(path, "w");
        fputs(text, f);
        fclose(f);
        code = CALL(cuModuleLoad, module, path);
        unlink(path);
        break;
    }
    default: code = CALL(cuModuleLoadData, module, text);
    }
    free(text);
    return code;
}

/* Threads that load modules at the same moment. Another command unloads them. */
static void *context, *loaded[64][64];
static u64 each, size_, growing;
static pthread_barrier_t together;
static atomic_int failed;
static void *loads(void *number) {
    long me = (long)number;
    CALL(cuCtxSetCurrent, context);
    pthread_barrier_wait(&together);
    for (u64 i = 0; i < each; i++)
        if (load(&loaded[me][i], size_ + growing * me, 0, i % 3)) { loaded[me][i] = 0; failed++; }
    return 0;
}

/* Threads that allocate and free in a context until it is destroyed or they are told to stop. */
static atomic_int stop, running;
static void *churns(void *number) {
    CALL(cuCtxSetCurrent, context);
    running++;
    for (u64 i = 0; !stop; i++) {
        u64 p = 0;
        if (CALL(cuMemAlloc_v2, &p, (size_t)(1 << 20) << (i % 3))) break;
        if (i % 4 || i > 400) CALL(cuMemFree_v2, p);
    }
    return 0;
}

/* Instances of a server: each thread creates a context and loads code and memory into it, or destroys its context. */
static struct instance { pthread_t thread; void *context, *module; u64 bytes, code_bytes; int code; } instances[32];
static void *begins(void *argument) {
    struct instance *one = argument;
    u64 at = 0;
    one->code = CALL(cuCtxCreate_v4, &one->context, (void *)0, 0, 0);
    if (one->code) { one->context = 0; return 0; }
    if (one->code_bytes) one->code = load(&one->module, one->code_bytes, 0, 0);
    if (!one->code) one->code = CALL(cuMemAlloc_v2, &at, (size_t)one->bytes);
    return 0;
}
static void *ends(void *argument) {
    struct instance *one = argument;
    one->code = one->context ? CALL(cuCtxDestroy_v2, one->context) : 0;
    return 0;
}
/* Counts of the codes 0, 2 and others. */
static void in_instances(void *(*act)(void *), u64 count, u64 bytes, u64 code_bytes) {
    int granted = 0, refused = 0;
    for (u64 i = 0; i < count; i++) {
        if (bytes) instances[i] = (struct instance){ .bytes = bytes, .code_bytes = code_bytes };
        pthread_create(&instances[i].thread, 0, act, &instances[i]);
    }
    for (u64 i = 0; i < count; i++) {
        pthread_join(instances[i].thread, 0);
        granted += instances[i].code == 0, refused += instances[i].code == 2;
    }
    printf("0 %d %d %d\n", granted, refused, (int)count - granted - refused);
}

/* A call in another thread while this one continues. */
static struct { char what[64]; u64 a, b, handle; int code; pthread_t thread; } other;
static void *makes(void *nothing) {
    CALL(cuCtxSetCurrent, context);
    if (!strcmp(other.what, "load")) other.code = load((void **)&other.handle, other.a, other.b, 0);
    else if (!strcmp(other.what, "alloc")) other.code = CALL(cuMemAlloc_v2, &other.handle, (size_t)other.a);
    else if (!strcmp(other.what, "destroy")) other.code = CALL(cuCtxDestroy_v2, (void *)other.a);
    else other.code = CALL(cuMemFree_v2, other.a);
    return 0;
}

int main(void) {
    char line[256], name[64];
    u64 a, b, c;
    pthread_t threads[64];
    long crowd = 0;
    setvbuf(stdout, 0, _IOLBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        void *h = 0;
        a = b = c = 0;
        if (sscanf(line, "%63s %lu %lu %lu", name, &a, &b, &c) < 1) continue;
        if (!strcmp(name, "init")) printf("%d\n", CALL(cuInit, 0));
        else if (!strcmp(name, "retain")) {
            int r = CALL(cuDevicePrimaryCtxRetain, &h, (int)a);
            if (!r) r = CALL(cuCtxSetCurrent, h);
            printf("%d %lu\n", r, (u64)h);
        }
        else if (!strcmp(name, "release1")) printf("%d\n", CALL(cuDevicePrimaryCtxRelease, (int)a));
        else if (!strcmp(name, "release2")) printf("%d\n", CALL(cuDevicePrimaryCtxRelease_v2, (int)a));
        else if (!strcmp(name, "reset1")) printf("%d\n", CALL(cuDevicePrimaryCtxReset, (int)a));
        else if (!strcmp(name, "reset2")) printf("%d\n", CALL(cuDevicePrimaryCtxReset_v2, (int)a));
        else if (!strcmp(name, "create1")) { int r = CALL(cuCtxCreate, &h, 0, (int)a); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "create2")) { int r = CALL(cuCtxCreate_v2, &h, 0, (int)a); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "create3")) { int r = CALL(cuCtxCreate_v3, &h, (void *)0, 0, 0, (int)a); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "create4")) { int r = CALL(cuCtxCreate_v4, &h, (void *)0, 0, (int)a); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "instances")) in_instances(begins, a, b, c); /* threads, bytes of memory and of code for each */
        else if (!strcmp(name, "end-instances")) in_instances(ends, a, 0, 0);
        else if (!strcmp(name, "destroy1")) printf("%d\n", CALL(cuCtxDestroy, (void *)a));
        else if (!strcmp(name, "destroy2")) printf("%d\n", CALL(cuCtxDestroy_v2, (void *)a));
        else if (!strcmp(name, "attach")) { int r = CALL(cuCtxAttach, &h, 0); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "detach")) printf("%d\n", CALL(cuCtxDetach, (void *)a));
        else if (!strcmp(name, "current")) printf("%d\n", CALL(cuCtxSetCurrent, (void *)a));
        else if (!strcmp(name, "info")) { size_t f = 0, t = 0; int r = CALL(cuMemGetInfo_v2, &f, &t); printf("%d %lu %lu\n", r, f, t); }
        else if (!strcmp(name, "alloc")) { u64 p = 0; int r = CALL(cuMemAlloc_v2, &p, a); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "free")) printf("%d\n", CALL(cuMemFree_v2, a));
        else if (!strcmp(name, "managed")) { u64 p = 0; int r = CALL(cuMemAllocManaged, &p, a, 1); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "pitch")) { u64 p = 0; size_t w = 0; int r = CALL(cuMemAllocPitch_v2, &p, &w, a, b, 4); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "array")) { struct array d = { a, b, 0x20, 1 }; int r = CALL(cuArrayCreate_v2, &h, &d); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "async")) { u64 p = 0; int r = CALL(cuMemAllocAsync, &p, a, (void *)0); if (!r) r = CALL(cuCtxSynchronize); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "module")) { int r = load(&h, a, b, c); printf("%d %lu\n", r, (u64)h); } /* code, global, way */
        else if (!strcmp(name, "unload")) printf("%d\n", CALL(cuModuleUnload, (void *)a));
        else if (!strcmp(name, "library")) {
            char *text = image(a, b);
            int r = CALL(cuLibraryLoadData, &h, text, (void *)0, (void *)0, 0, (void *)0, (void *)0, 0);
            free(text);
            printf("%d %lu\n", r, (u64)h);
        }
        else if (!strcmp(name, "library-module")) { int r = CALL(cuLibraryGetModule, &h, (void *)a); printf("%d %lu\n", r, (u64)h); }
        else if (!strcmp(name, "library-function")) { /* of its kernel */
            void *kernel = 0;
            int r = CALL(cuLibraryGetKernel, &kernel, (void *)a, "work");
            if (!r) r = CALL(cuKernelGetFunction, &h, kernel);
            if (!r) r = CALL(cuFuncLoad, h);
            printf("%d %lu\n", r, (u64)h);
        }
        else if (!strcmp(name, "library-unload")) printf("%d\n", CALL(cuLibraryUnload, (void *)a));
        else if (!strcmp(name, "limit")) printf("%d\n", CALL(cuCtxSetLimit, (int)a, (size_t)b));
        else if (!strcmp(name, "limit-now")) { size_t v = 0; int r = CALL(cuCtxGetLimit, &v, (int)a); printf("%d %lu\n", r, v); }
        else if (!strcmp(name, "load-crowd") || !strcmp(name, "load-growing")) { /* threads, modules each, bytes */
            crowd = (long)a, each = b, size_ = c, growing = strcmp(name, "load-crowd") ? c : 0, failed = 0;
            CALL(cuCtxGetCurrent, &context);
            pthread_barrier_init(&together, 0, (unsigned)a);
            for (long i = 0; i < crowd; i++) pthread_create(&threads[i], 0, loads, (void *)i);
            for (long i = 0; i < crowd; i++) pthread_join(threads[i], 0);
            printf("0 %d\n", failed);
        }
        else if (!strcmp(name, "unload-crowd")) {
            int r = 0;
            for (long i = 0; i < crowd; i++)
                for (u64 k = 0; k < each; k++)
                    if (loaded[i][k]) r |= CALL(cuModuleUnload, loaded[i][k]);
            printf("%d\n", r);
        }
        else if (!strncmp(name, "other-", 6)) { /* load (code, global), alloc (bytes), free (address), destroy (context) */
            strcpy(other.what, name + 6), other.a = a, other.b = b, other.handle = 0;
            CALL(cuCtxGetCurrent, &context);
            pthread_create(&other.thread, 0, makes, 0);
            usleep(150000); /* by now it is inside the driver's call */
            printf("0\n");
        }
        else if (!strcmp(name, "join")) { pthread_join(other.thread, 0); printf("%d %lu\n", other.code, other.handle); }
        else if (!strcmp(name, "churn")) { /* threads, in the current context */
            crowd = (long)a, stop = 0, running = 0;
            CALL(cuCtxGetCurrent, &context);
            for (long i = 0; i < crowd; i++) pthread_create(&threads[i], 0, churns, (void *)i);
            while (running < crowd) usleep(100);
            printf("0\n");
        }
        else if (!strcmp(name, "calm")) {
            stop = 1;
            for (long i = 0; i < crowd; i++) pthread_join(threads[i], 0);
            printf("0\n");
        }
        else { printf("! not a command: %s", line); return 4; }
    }
    return 0;
}
