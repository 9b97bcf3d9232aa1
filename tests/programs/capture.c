/* Stream captures, with other threads at work meanwhile. Every call's code is printed, so that two runs can be
 * compared line by line.
 * capture MODE [BYTES]: MODE is the number of the capture mode. With BYTES, the program captures one allocation and
 * prints the memory in use. Before a time-dependent query the program waits.
 * Not here: the right codes (the simulator's own tests). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
enum { MISSING = -1, MIB = 1 << 20, NO_TIME = 2, NON_BLOCKING = 1 };
static void *driver, *context, *kernel;
static unsigned mode;

#define CALL(name, ...) ({ static int (*f_)(); static int looked_; \
    if (!looked_) { f_ = dlsym(driver, #name); looked_ = 1; } f_ ? f_(__VA_ARGS__) : MISSING; })
/* Makes the call and prints its code. */
#define SAY(name, ...) ({ int code_ = CALL(name, __VA_ARGS__); printf("%s %s %d\n", who, #name, code_); code_; })

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static int launch(void *stream) {
    u64 ns = 50000;
    void *parameters[] = { &ns };
    return CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, (void *)0);
}

/* Another thread that executes one action at a time while the first one waits. */
static sem_t go, done;
static const char *wish;

static void *other(void *nothing) {
    const char *who = "  other";
    void *stream = 0, *event = 0;
    u64 at = 0, in_order = 0, free_now, total;
    CALL(cuCtxSetCurrent, context);
    SAY(cuStreamCreate, &stream, NON_BLOCKING);
    SAY(cuEventCreate, &event, NO_TIME);
    for (sem_post(&done);; sem_post(&done)) {
        sem_wait(&go);
        if (!strcmp(wish, "end")) break;
        if (!strcmp(wish, "launch")) printf("%s launch %d\n", who, launch(stream));
        if (!strcmp(wish, "launch many")) for (int i = 0; i < 40; i++) { int code = launch(stream); if (code || i == 39) printf("%s launch %d\n", who, code); }
        if (!strcmp(wish, "wait")) SAY(cuStreamSynchronize, stream);
        if (!strcmp(wish, "record")) { SAY(cuEventRecord, event, stream); SAY(cuEventSynchronize, event); SAY(cuEventQuery, event); }
        if (!strcmp(wish, "query")) { SAY(cuStreamSynchronize, stream); SAY(cuStreamQuery, stream); }
        if (!strcmp(wish, "memory")) { SAY(cuMemAlloc_v2, &at, (size_t)MIB); if (at) SAY(cuMemFree_v2, at); at = 0; }
        if (!strcmp(wish, "in order")) { SAY(cuMemAllocAsync, &in_order, (size_t)MIB, stream); if (in_order) SAY(cuMemFreeAsync, in_order, stream); in_order = 0; }
        if (!strcmp(wish, "numbers")) printf("%s cuMemGetInfo %d\n", who, CALL(cuMemGetInfo_v2, &free_now, &total));
        if (!strcmp(wish, "device")) SAY(cuCtxSynchronize);
        if (!strcmp(wish, "default")) printf("%s launch in the default stream %d\n", who, launch(0));
    }
    SAY(cuEventDestroy_v2, event);
    SAY(cuStreamDestroy_v2, stream);
    sem_post(&done);
    return nothing;
}

static void let(const char *what) {
    printf("let %s\n", what);
    wish = what;
    sem_post(&go);
    sem_wait(&done);
}

/* Captures everything that captures allow, with fork and join, and runs the graph twice. `meanwhile` is the action
 * of the other thread in the middle. */
static void whole(void *stream, void *second, const char *meanwhile) {
    const char *who = "whole";
    void *fork = 0, *join = 0, *graph = 0, *exec = 0;
    u64 memory = 0, kept = 0, host[4] = {0};
    int status = -1;
    CALL(cuMemAlloc_v2, &kept, sizeof host);
    SAY(cuEventCreate, &fork, NO_TIME);
    SAY(cuEventCreate, &join, NO_TIME);
    SAY(cuStreamBeginCapture_v2, stream, mode);
    printf("%s launch %d\n", who, launch(stream));
    SAY(cuEventRecord, fork, stream);
    SAY(cuStreamWaitEvent, second, fork, 0);
    SAY(cuMemsetD8Async, kept, 7, sizeof host, second);
    printf("%s launch %d\n", who, launch(second));
    SAY(cuStreamIsCapturing, second, &status);
    printf("%s status %d\n", who, status);
    if (meanwhile) let(meanwhile);
    SAY(cuMemAllocAsync, &memory, (size_t)(3 * MIB), stream);
    if (memory) SAY(cuMemFreeAsync, memory, stream);
    SAY(cuEventRecord, join, second);
    SAY(cuStreamWaitEvent, stream, join, 0);
    for (int i = 0; i < 30; i++) { int code = launch(stream); if (code || i == 29) printf("%s launch %d\n", who, code); }
    SAY(cuStreamEndCapture, stream, &graph);
    if (graph) {
        size_t nodes = 0;
        CALL(cuGraphGetNodes, graph, (void *)0, &nodes);
        printf("%s nodes %zu\n", who, nodes);
        SAY(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
    }
    for (int i = 0; exec && i < 2; i++) {
        SAY(cuGraphLaunch, exec, stream);
        SAY(cuStreamSynchronize, stream);
        SAY(cuMemcpyDtoH_v2, host, kept, sizeof host);
        printf("%s content %lx\n", who, host[1]);
    }
    if (exec) SAY(cuGraphExecDestroy, exec);
    if (graph) SAY(cuGraphDestroy, graph);
    SAY(cuEventDestroy_v2, fork);
    SAY(cuEventDestroy_v2, join);
    SAY(cuMemFree_v2, kept);
}

struct pool_properties { int alloc, handles, place, id; void *win32; size_t max; unsigned char reserved[56]; };

/* Makes a call that a capture may forbid, in the capturing thread itself. */
static void unsafe_call(void *stream, void *idle, int which) {
    const char *who = "unsafe";
    void *event = 0, *graph = 0, *made = 0, *pool = 0;
    u64 at = 0;
    unsigned relaxed = 2;
    int status = -1;
    CALL(cuEventCreate, &event, NO_TIME);
    printf("%s %d\n", who, which);
    if (which == 15) { /* a free of a pool's memory is in flight in the legacy stream, and this stream waits for that one */
        struct pool_properties p = { 1, 0, 1, 0, 0, 0, {0} };
        u64 one = 0, long_enough = 40000000;
        void *parameters[] = { &long_enough };
        SAY(cuMemPoolCreate, &pool, &p);
        SAY(cuMemAllocFromPoolAsync, &at, (size_t)(16 * MIB), pool, (void *)0);
        SAY(cuMemAllocFromPoolAsync, &one, (size_t)(16 * MIB), pool, (void *)0);
        CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
        SAY(cuMemFreeAsync, at, (void *)0);
        at = one;
    }
    SAY(cuStreamBeginCapture_v2, stream, mode);
    printf("%s launch %d\n", who, launch(stream));
    switch (which) {
    case 0: SAY(cuMemAlloc_v2, &at, (size_t)MIB); if (at) SAY(cuMemFree_v2, at); break;
    case 1: SAY(cuStreamQuery, stream); break;
    case 2: SAY(cuStreamSynchronize, stream); break;
    case 3: SAY(cuEventRecord, event, stream); SAY(cuEventQuery, event); break;
    case 4: SAY(cuEventRecord, event, stream); SAY(cuEventSynchronize, event); break;
    case 5: printf("%s launch in the default stream %d\n", who, launch(0)); break;
    case 6: SAY(cuCtxSynchronize); break;
    case 7: SAY(cuStreamQuery, idle); break;
    case 8: printf("%s launch elsewhere %d\n", who, launch(idle)); break;
    case 9: SAY(cuStreamWaitEvent, idle, event, 0); break;
    case 10: SAY(cuThreadExchangeStreamCaptureMode, &relaxed); printf("%s was %u\n", who, relaxed);
             SAY(cuMemAlloc_v2, &at, (size_t)MIB); if (at) SAY(cuMemFree_v2, at);
             SAY(cuThreadExchangeStreamCaptureMode, &relaxed); printf("%s was %u\n", who, relaxed); break;
    case 11: SAY(cuStreamCreate, &made, NON_BLOCKING); if (made) SAY(cuStreamDestroy_v2, made); break;
    case 12: SAY(cuMemAllocAsync, &at, (size_t)MIB, stream); SAY(cuMemFree_v2, at); break;
    case 13: SAY(cuMemAllocAsync, &at, (size_t)MIB, idle); if (at) SAY(cuMemFreeAsync, at, idle); break;
    case 14: SAY(cuStreamDestroy_v2, stream); return;
    case 15: SAY(cuMemPoolDestroy, pool); printf("%s launch %d\n", who, launch(stream)); break;
    }
    SAY(cuStreamIsCapturing, stream, &status);
    printf("%s status %d\n", who, status);
    SAY(cuStreamEndCapture, stream, &graph);
    printf("%s %s\n", who, graph ? "a graph" : "nothing");
    if (graph) CALL(cuGraphDestroy, graph);
    /* The stream must be usable again, whatever happened. */
    printf("%s launch %d\n", who, launch(stream));
    SAY(cuStreamSynchronize, stream);
    CALL(cuEventDestroy_v2, event);
}

static size_t in_use(void) {
    size_t free_now = 0, total = 0;
    CALL(cuMemGetInfo_v2, &free_now, &total);
    return total - free_now;
}

/* Captures an allocation that outlives its graph. Prints the memory in use after each step, and the codes. */
static void charged(void *stream, size_t bytes) {
    const char *who = "charged";
    void *graph = 0, *exec = 0;
    u64 at = 0;
    printf("%s %zu\n", who, in_use());
    SAY(cuStreamBeginCapture_v2, stream, mode);
    SAY(cuMemAllocAsync, &at, bytes, stream);
    SAY(cuStreamEndCapture, stream, &graph);
    SAY(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
    printf("%s %zu\n", who, in_use());
    int code = SAY(cuGraphLaunch, exec, stream);
    SAY(cuStreamSynchronize, stream);
    printf("%s %zu\n", who, in_use());
    if (code == 0) { SAY(cuMemFree_v2, at); SAY(cuDeviceGraphMemTrim, 0); }
    printf("%s %zu\n", who, in_use());
}

int main(int count, char **words) {
    static const char *wishes[] = { "launch", "launch many", "wait", "record", "query", "memory", "in order", "numbers",
                                    "device", "default" };
    const char *who = "main";
    void *module = 0, *stream = 0, *second = 0;
    pthread_t thread;
    mode = count > 1 ? (unsigned)atoi(words[1]) : 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    SAY(cuInit, 0);
    SAY(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    SAY(cuModuleLoadData, &module, PTX);
    SAY(cuModuleGetFunction, &kernel, module, "vgpu_spin_ns");
    SAY(cuStreamCreate, &stream, NON_BLOCKING);
    SAY(cuStreamCreate, &second, NON_BLOCKING);
    if (count > 2) {
        charged(stream, strtoul(words[2], 0, 10));
        return 0;
    }
    sem_init(&go, 0, 0), sem_init(&done, 0, 0);
    pthread_create(&thread, 0, other, 0);
    sem_wait(&done);
    printf("launch %d\n", launch(stream)); /* the lazy part of the first launch is done */
    SAY(cuStreamSynchronize, stream);
    whole(stream, second, 0);
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        printf("launch %d\n", launch(stream)); /* the library can notice completed work */
        whole(stream, second, wishes[i]);
    }
    for (int i = 0; i < 32; i++) { /* the second half uses a stream that waits for the legacy one */
        void *own = 0;
        SAY(cuStreamCreate, &own, i < 16 ? NON_BLOCKING : 0);
        unsafe_call(own, second, i % 16);
        SAY(cuStreamSynchronize, second);
        if (i % 16 != 14) SAY(cuStreamDestroy_v2, own);
    }
    let("end");
    pthread_join(thread, 0);
    SAY(cuCtxSynchronize);
    return 0;
}
