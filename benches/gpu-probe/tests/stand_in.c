/* A stand-in for the driver that does just enough for the steps which need device code. It answers as if the kernels
 * had run, on an invented device that rotates two processes in slices of 2 ms with 100 us in between. It knows two
 * rules of stream capture. stand_in.rs compiles it; it has no other use. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
#define SLICE 2000000ull
#define SWITCH 100000ull
#define WORDS 20000

struct stream { int capturing, invalid, mode; };
struct event { u64 at; };

static u64 busy_until;
static u64 words[WORDS];
static struct stream *capture;          /* the only capturing stream, if any */
static __thread int thread_mode;        /* 0 global, 2 relaxed */

static u64 now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
}

/* This process's turn of the device's two turns: processes take them in the order in which they first ask. */
static u64 turn(void)
{
    static u64 mine = UINT64_MAX;
    if (mine == UINT64_MAX) {
        int file = open(getenv("STAND_IN_TURNS"), O_RDWR | O_CREAT, 0600);
        flock(file, LOCK_EX);
        unsigned char n = 0;
        if (pread(file, &n, 1, 0) != 1) n = 0;
        mine = n & 1;
        n++;
        if (pwrite(file, &n, 1, 0) != 1) abort();
        close(file);
    }
    return mine;
}

/* The next time at or after t at which this process has the device. */
static u64 running(u64 t)
{
    for (;; t = (t / SLICE + 1) * SLICE)
        if ((t / SLICE) % 2 == turn()) {
            u64 begin = t / SLICE * SLICE + SWITCH;
            return t < begin ? begin : t;
        }
}

static void slices(u64 capacity, u64 ns)
{
    u64 first = running(now()), t = first, seen = 0;
    memset(words, 0, sizeof words);
    for (;;) {
        u64 end = (t / SLICE + 1) * SLICE;
        if (end - first >= ns) break;
        u64 next = running(end);
        if (seen < capacity && 8 + 4 * seen + 1 < WORDS) {
            words[8 + 4 * seen] = end;
            words[8 + 4 * seen + 1] = next;
        }
        seen++;
        t = next;
    }
    u64 last = t > first + ns ? t : first + ns;
    words[0] = seen; words[1] = 1000; words[2] = first; words[3] = last; words[4] = 32; words[5] = 1000;
    words[6] = 1; words[7] = 1 + (last - first) * 2;
    busy_until = last;
}

static int unsafe_call(void)
{
    if (capture && capture->mode == 0 && thread_mode != 2) {
        capture->invalid = 1;
        return 900;
    }
    return 0;
}

static void drain(void)
{
    while (now() < busy_until) usleep(50);
}

int cuInit(unsigned f) { (void)f; return 0; }
int cuDriverGetVersion(int *v) { *v = 12020; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return n ? 101 : 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { (void)d; *v = a == 16 ? 4 : 1; return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { (void)d; *c = (void *)1; return 0; }
int cuCtxSetCurrent(void *c) { (void)c; return 0; }
int cuCtxSynchronize(void) { if (capture) return 900; drain(); return 0; }
int cuMemGetInfo_v2(size_t *f, size_t *t) { *f = 1ull << 34; *t = 1ull << 35; return 0; }
int cuMemAlloc_v2(u64 *p, size_t n)
{
    static u64 next = 1ull << 40;
    int code = unsafe_call();
    if (code) return code;
    *p = next;
    next += (n + 511) / 512 * 512;
    return 0;
}
int cuMemFree_v2(u64 p) { (void)p; return 0; }
int cuMemsetD8_v2(u64 p, unsigned char v, size_t n) { (void)p; (void)v; (void)n; return 0; }
int cuMemcpyDtoH_v2(void *h, u64 d, size_t n) { (void)d; memcpy(h, words, n < sizeof words ? n : sizeof words); return 0; }
int cuModuleLoadData(void **m, const void *i) { (void)i; *m = (void *)1; return 0; }
int cuModuleUnload(void *m) { (void)m; return 0; }
int cuModuleGetFunction(void **f, void *m, const char *n) { (void)m; *f = strdup(n); return 0; }
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s,
                   struct stream *stream, void **params, void **extra)
{
    (void)a; (void)b; (void)c; (void)d; (void)e; (void)g; (void)s; (void)extra;
    if (stream > (struct stream *)16 && stream->capturing) return 0;
    u64 start = busy_until > now() ? busy_until : now();
    if (!strcmp(f, "vgpu_slices")) slices(*(u64 *)params[1], *(u64 *)params[2]);
    else if (!strcmp(f, "vgpu_spin_ns")) busy_until = start + *(u64 *)params[0];
    else if (!strcmp(f, "vgpu_work")) busy_until = start + *(u64 *)params[0] * 20;
    else busy_until = start + 2000;
    return 0;
}
int cuStreamCreate(struct stream **s, unsigned f) { (void)f; *s = calloc(1, sizeof **s); return 0; }
int cuStreamDestroy_v2(struct stream *s) { if (capture == s) capture = 0; free(s); return 0; }
int cuStreamSynchronize(struct stream *s) { (void)s; drain(); return 0; }
int cuStreamBeginCapture_v2(struct stream *s, int mode)
{
    s->capturing = 1; s->mode = mode; s->invalid = 0; capture = s;
    return 0;
}
int cuStreamIsCapturing(struct stream *s, int *v) { *v = s->capturing ? 1 + s->invalid : 0; return 0; }
int cuStreamEndCapture(struct stream *s, void **g)
{
    int code = s->invalid ? 901 : 0;
    *g = code ? 0 : (void *)1;
    s->capturing = 0; capture = 0;
    return code;
}
int cuThreadExchangeStreamCaptureMode(int *m) { int old = thread_mode; thread_mode = *m; *m = old; return 0; }
int cuGraphDestroy(void *g) { (void)g; return 0; }
int cuEventCreate(struct event **e, unsigned f) { (void)f; *e = calloc(1, sizeof **e); return 0; }
int cuEventDestroy_v2(struct event *e) { free(e); return 0; }
int cuEventRecord(struct event *e, void *s) { (void)s; e->at = busy_until > now() ? busy_until : now(); return 0; }
int cuEventQuery(struct event *e) { int code = unsafe_call(); return code ? code : now() < e->at ? 600 : 0; }
int cuEventSynchronize(struct event *e) { while (now() < e->at) usleep(50); return 0; }
int cuEventElapsedTime(float *ms, struct event *a, struct event *b) { *ms = (float)((double)(b->at - a->at) / 1e6); return 0; }
