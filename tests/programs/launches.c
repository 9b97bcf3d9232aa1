/* Loops of device work through every function that can request it. One loop per line on stdin, `WAY NS MS BATCH`;
 * one answer on stdout: code, number of calls, time taken. NS is the length of a kernel, or the bytes of a fill or
 * copy. The program waits after every BATCH calls and makes no other driver call in between. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
struct config { unsigned gx, gy, gz, bx, by, bz, shared; void *stream, *attributes; unsigned count; };
struct part { void *function; unsigned gx, gy, gz, bx, by, bz, shared; void *stream; void **params; };
struct sheet { u64 sx, sy; unsigned skind; void *shost; u64 sdevice; void *sarray; u64 spitch;
               u64 dx, dy; unsigned dkind; void *dhost; u64 ddevice; void *darray; u64 dpitch; u64 width, height; };
struct block { u64 sx, sy, sz, slod; unsigned skind; void *shost; u64 sdevice; void *sarray, *s0; u64 spitch, sheight;
               u64 dx, dy, dz, dlod; unsigned dkind; void *dhost; u64 ddevice; void *darray, *d0; u64 dpitch, dheight;
               u64 width, height, depth; };
struct array { u64 width, height; unsigned format, channels; };
struct resource { unsigned kind; char internal[92]; unsigned sms, rest[11]; };

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static void *driver;
static void *need(const char *name) {
    void *f = dlsym(driver, name);
    if (!f) { printf("! no %s\n", name); exit(3); }
    return f;
}
#define CALL(name, ...) ({ static int (*f_)(); if (!f_) f_ = need(#name); f_(__VA_ARGS__); })
#define MUST(call) do { int c_ = call; if (c_) { printf("! %d from %s\n", c_, #call); exit(3); } } while (0)

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static void *context, *kernel, *stream, *others[8], *other_kernels[8], *other_streams[8], *exec, *green_stream;
static int devices;
static u64 from, to;
static void *arrays[2];

static void *kernel_here(void) {
    void *module, *f;
    MUST(CALL(cuModuleLoadData, &module, PTX));
    MUST(CALL(cuModuleGetFunction, &f, module, "vgpu_spin_ns"));
    return f;
}

/* A graph of two kernels, each of half the length. */
static void *graph_of(u64 ns) {
    void *graph, *made;
    u64 half = ns / 2;
    void *params[] = { &half };
    MUST(CALL(cuStreamBeginCapture_v2, stream, 2));
    for (int i = 0; i < 2; i++) MUST(CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, (void *)0));
    MUST(CALL(cuStreamEndCapture, stream, &graph));
    MUST(CALL(cuGraphInstantiateWithFlags, &made, graph, 0ul));
    return made;
}

static int is(const char *way, const char *name) { return !strcmp(way, name); }

/* Launch parameters of each device in a cooperative launch on all devices. */
static int on_all_devices(u64 ns) {
    struct part parts[8];
    void *params[] = { &ns };
    for (int i = 0; i < devices; i++) {
        /* The last device comes first: the program is free to order the list. */
        int d = devices - 1 - i;
        parts[i] = (struct part){ d ? other_kernels[d] : kernel, 1, 1, 1, 1, 1, 1, 0, d ? other_streams[d] : stream, params };
    }
    return CALL(cuLaunchCooperativeKernelMultiDevice, parts, devices, 0);
}

static int once(const char *way, u64 n) {
    void *params[] = { &n }, *none = 0;
    u64 size = sizeof n;
    void *extra[] = { (void *)1, &n, (void *)2, &size, 0 };
    struct config one = { 1, 1, 1, 1, 1, 1, 0, 0, 0, 0 };
    u64 rows = 64, width = n / rows;
#define SPIN kernel, 1, 1, 1, 1, 1, 1, 0
    if (is(way, "kernel")) return CALL(cuLaunchKernel, SPIN, none, params, none);
    if (is(way, "kernel_ptsz")) return CALL(cuLaunchKernel_ptsz, SPIN, none, params, none);
    if (is(way, "extra")) return CALL(cuLaunchKernel, SPIN, stream, none, extra);
    if (is(way, "ex")) return CALL(cuLaunchKernelEx, &one, kernel, params, none);
    if (is(way, "ex_ptsz")) return CALL(cuLaunchKernelEx_ptsz, &one, kernel, params, none);
    if (is(way, "cooperative")) return CALL(cuLaunchCooperativeKernel, SPIN, none, params);
    if (is(way, "cooperative_ptsz")) return CALL(cuLaunchCooperativeKernel_ptsz, SPIN, none, params);
    if (is(way, "devices")) return on_all_devices(n);
    if (is(way, "graph")) return CALL(cuGraphLaunch, exec, stream);
    if (is(way, "graph_ptsz")) return CALL(cuGraphLaunch_ptsz, exec, none);
    if (is(way, "legacy") || is(way, "legacy_grid") || is(way, "legacy_async")) {
        int code = CALL(cuParamSetv, kernel, 0, &n, 8);
        if (code) return code;
        if (is(way, "legacy")) return CALL(cuLaunch, kernel);
        if (is(way, "legacy_grid")) return CALL(cuLaunchGrid, kernel, 1, 1);
        return CALL(cuLaunchGridAsync, kernel, 1, 1, stream);
    }
    if (is(way, "green")) return CALL(cuLaunchKernel, SPIN, green_stream, params, none);
    if (is(way, "fill")) return CALL(cuMemsetD8_v2, to, 7, n);
    if (is(way, "fill_ptds")) return CALL(cuMemsetD32_v2_ptds, to, 7, n / 4);
    if (is(way, "fill_async")) return CALL(cuMemsetD16Async, to, 7, n / 2, stream);
    if (is(way, "fill_async_ptsz")) return CALL(cuMemsetD8Async_ptsz, to, 7, n, none);
    if (is(way, "fill_rows")) return CALL(cuMemsetD2D8_v2, to, width, 7, width, rows);
    if (is(way, "fill_rows_async")) return CALL(cuMemsetD2D32Async, to, width, 7, width / 4, rows, stream);
    if (is(way, "copy")) return CALL(cuMemcpy, to, from, n);
    if (is(way, "copy_ptds")) return CALL(cuMemcpy_ptds, to, from, n);
    if (is(way, "copy_async")) return CALL(cuMemcpyAsync, to, from, n, stream);
    if (is(way, "copy_dtod")) return CALL(cuMemcpyDtoD_v2, to, from, n);
    if (is(way, "copy_dtod_async")) return CALL(cuMemcpyDtoDAsync_v2, to, from, n, stream);
    if (is(way, "copy_dtod_async_ptsz")) return CALL(cuMemcpyDtoDAsync_v2_ptsz, to, from, n, none);
    if (is(way, "copy_peer")) return CALL(cuMemcpyPeerAsync, to, context, from, context, n, stream);
    if (is(way, "copy_sheet") || is(way, "copy_sheet_async")) {
        struct sheet s = { .skind = 2, .sdevice = from, .spitch = width, .dkind = 2, .ddevice = to, .dpitch = width,
                           .width = width, .height = rows };
        return is(way, "copy_sheet") ? CALL(cuMemcpy2D_v2, &s) : CALL(cuMemcpy2DAsync_v2, &s, stream);
    }
    if (is(way, "copy_block") || is(way, "copy_block_async") || is(way, "copy_block_peer")) {
        struct block b = { .skind = 4, .sdevice = from, .spitch = width, .sheight = rows / 2, .dkind = 2, .ddevice = to,
                           .dpitch = width, .dheight = rows / 2, .width = width, .height = rows / 2, .depth = 2 };
        if (is(way, "copy_block_peer")) return CALL(cuMemcpy3DPeerAsync, &b, stream);
        return is(way, "copy_block") ? CALL(cuMemcpy3D_v2, &b) : CALL(cuMemcpy3DAsync_v2, &b, stream);
    }
    if (is(way, "elsewhere")) { /* a copy in a stream of the second device, while the first one is current */
        return CALL(cuMemcpyDtoDAsync_v2, to, from, n, other_streams[1]);
    }
    if (is(way, "host")) return CALL(cuMemcpyAsync, to, arrays[0], n, stream);
    printf("! no way %s\n", way);
    exit(3);
}

static int finish(const char *way) {
    if (is(way, "elsewhere")) return CALL(cuStreamSynchronize, other_streams[1]);
    if (is(way, "green")) return CALL(cuStreamSynchronize, green_stream);
    return CALL(cuCtxSynchronize);
}

/* Prepares additional objects of a way. */
static void prepare(const char *way, u64 n) {
    if (strstr(way, "fill") || strstr(way, "copy") || is(way, "elsewhere") || is(way, "host")) {
        if (is(way, "elsewhere")) MUST(CALL(cuCtxSetCurrent, others[1]));
        MUST(CALL(cuMemAlloc_v2, &from, n));
        MUST(CALL(cuMemAlloc_v2, &to, n));
        MUST(CALL(cuCtxSetCurrent, context));
    }
    if (is(way, "host")) MUST(CALL(cuMemHostAlloc, &arrays[0], n, 0));
    if (strstr(way, "graph")) exec = graph_of(n);
    if (strstr(way, "legacy")) MUST(CALL(cuFuncSetBlockShape, kernel, 8, 8, 2));
    if (is(way, "green")) {
        struct resource all, part, rest;
        void *description, *green;
        unsigned groups = 1;
        MUST(CALL(cuDeviceGetDevResource, 0, &all, 1));
        MUST(CALL(cuDevSmResourceSplitByCount, &part, &groups, &all, &rest, 0, all.sms / 2));
        MUST(CALL(cuDevResourceGenerateDesc, &description, &part, 1));
        MUST(CALL(cuGreenCtxCreate, &green, description, 0, 1));
        MUST(CALL(cuGreenCtxStreamCreate, &green_stream, green, 1, 0));
    }
}

int main(void) {
    char line[256], way[64];
    u64 n, ms, batch;
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("0 %d\n", getpid());
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    MUST(CALL(cuInit, 0));
    MUST(CALL(cuDeviceGetCount, &devices));
    for (int d = 1; d < devices && d < 8; d++) {
        MUST(CALL(cuDevicePrimaryCtxRetain, &others[d], d));
        MUST(CALL(cuCtxSetCurrent, others[d]));
        other_kernels[d] = kernel_here();
        MUST(CALL(cuStreamCreate, &other_streams[d], 1));
    }
    MUST(CALL(cuDevicePrimaryCtxRetain, &context, 0));
    MUST(CALL(cuCtxSetCurrent, context));
    kernel = kernel_here();
    MUST(CALL(cuStreamCreate, &stream, 1));
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%63s %lu %lu %lu", way, &n, &ms, &batch) != 4) return 2;
        prepare(way, n);
        u64 begin = now(), calls = 0;
        int code = 0;
        while (!code && now() - begin < ms * 1000000) {
            code = once(way, n);
            if (!code && ++calls % batch == 0) code = finish(way);
        }
        if (!code) code = finish(way);
        if (!code) for (int d = 1; d < devices; d++) {
            MUST(CALL(cuCtxSetCurrent, others[d]));
            MUST(CALL(cuCtxSynchronize));
        }
        MUST(CALL(cuCtxSetCurrent, context));
        printf("%d %lu %lu\n", code, calls, now() - begin);
    }
    return 0;
}
