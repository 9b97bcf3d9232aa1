/* Threads of one process that do the same things at the same moment: retain the primary context, allocate, create
 * and release physical memory, create contexts, launch.
 * crowd THREADS ROUNDS BYTES: prints "ready", waits for a line and runs the threads. Then it prints granted,
 * refused, failed, and waits for the end of stdin; each thread still holds the primary context once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
struct properties { int type, handles, kind, id; void *win32; unsigned char flags[8]; };
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxCreate_v2(void **, unsigned, int);
int cuCtxDestroy_v2(void *), cuMemAlloc_v2(u64 *, size_t), cuMemFree_v2(u64), cuMemCreate(u64 *, size_t, void *, u64);
int cuMemRelease(u64), cuMemAddressReserve(u64 *, size_t, size_t, u64, u64), cuMemMap(u64, size_t, size_t, u64, u64);
int cuMemUnmap(u64, size_t), cuMemGetInfo_v2(size_t *, size_t *);

static int rounds;
static u64 bytes;
static pthread_barrier_t together;
static atomic_long granted, refused, failed;

static int count(int code) {
    atomic_fetch_add(code == 0 ? &granted : code == 2 ? &refused : &failed, 1);
    return code == 0;
}

static void *run(void *number) {
    void *primary = 0, *own;
    u64 p, h, at = 0, seed = (u64)number * 0x9e3779b97f4a7c15u + 1;
    size_t f, t;
    pthread_barrier_wait(&together);
    if (!count(cuDevicePrimaryCtxRetain(&primary, 0)) || cuCtxSetCurrent(primary)) return 0;
    pthread_barrier_wait(&together);
    cuMemAddressReserve(&at, bytes, 0, 0, 0);
    for (int r = 0; r < rounds; r++) {
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
        switch (seed % 4) {
        case 0: case 1:
            if (count(cuMemAlloc_v2(&p, bytes)) && cuMemFree_v2(p)) failed++;
            break;
        case 2: {
            struct properties of = { 1, 0, 1, 0, 0, {0} };
            if (!count(cuMemCreate(&h, bytes, &of, 0))) break;
            int map = seed & 64 ? cuMemMap(at, bytes, 0, h, 0) == 0 : 0;
            if (cuMemRelease(h)) failed++;
            if (map && cuMemUnmap(at, bytes)) failed++;
            break;
        }
        default:
            if (cuMemGetInfo_v2(&f, &t) || f > t) failed++;
            if (seed % 64 == 3 && count(cuCtxCreate_v2(&own, 0, 0)) && (cuCtxDestroy_v2(own) || cuCtxSetCurrent(primary))) failed++;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    char line[64];
    if (argc != 4 || cuInit(0)) { printf("! initialisation\n"); return 3; }
    long n = atol(argv[1]);
    rounds = atoi(argv[2]);
    bytes = strtoull(argv[3], 0, 10);
    pthread_barrier_init(&together, 0, (unsigned)n);
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 0;
    pthread_t t[64];
    for (long i = 0; i < n; i++) pthread_create(&t[i], 0, run, (void *)i);
    for (long i = 0; i < n; i++) pthread_join(t[i], 0);
    printf("%ld %ld %ld\n", granted, refused, failed);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {}
    return 0;
}
