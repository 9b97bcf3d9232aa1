/* One of many processes that allocate at the same time. Modes:
 *   share  takes its bytes in pieces and frees them, as fast as it can, at its own pace
 *   turns  all processes allocate at the same moment, hold until everyone has an answer, and free
 *   churn  allocates and frees at random until a byte arrives on stdin
 * storm MODE SHARED INDEX COUNT BYTES ROUNDS: SHARED is a file of zeroes that all processes map. Prints "ready",
 * waits for a line, runs, prints its results, and waits for the end of stdin with its memory held. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef uint64_t u64;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(u64 *, size_t), cuMemFree_v2(u64), cuMemAllocPitch_v2(u64 *, size_t *, size_t, size_t, unsigned);
int cuMemAllocAsync(u64 *, size_t, void *), cuMemFreeAsync(u64, void *), cuStreamSynchronize(void *);

enum { OUT_OF_MEMORY = 2 };
struct shared {
    _Atomic uint32_t arrived, generation;
    _Atomic uint32_t wrong_rounds, rounds, full_rounds;
    _Atomic int answers[64];
};

static void wait_for(_Atomic uint32_t *word, uint32_t old) {
    while (atomic_load(word) == old) syscall(SYS_futex, word, FUTEX_WAIT, old, 0, 0, 0);
}

static void meet(struct shared *s, uint32_t count) {
    uint32_t generation = atomic_load(&s->generation);
    if (atomic_fetch_add(&s->arrived, 1) + 1 == count) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->generation, 1);
        syscall(SYS_futex, &s->generation, FUTEX_WAKE, INT32_MAX, 0, 0, 0);
    } else {
        wait_for(&s->generation, generation);
    }
}

static u64 state;
static u64 draw(u64 below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static u64 granted, refused, failed, unfreed;
static int take(u64 *p, u64 bytes) {
    int code = cuMemAlloc_v2(p, bytes);
    if (code == 0) granted++; else if (code == OUT_OF_MEMORY) refused++; else failed++;
    return code;
}
static void give(u64 p) { if (cuMemFree_v2(p)) unfreed++; }

static void share(u64 bytes, u64 rounds) {
    for (u64 r = 0; r < rounds; r++) {
        u64 held[4], n = 1 + draw(4), left = bytes, have = 0;
        for (u64 i = 0; i < n; i++) {
            u64 piece = i + 1 == n ? left : left / 1024 / (n - i) * 512 + 512;
            if (take(&held[have], piece) == 0) have++;
            left -= piece;
        }
        while (have) give(held[--have]);
    }
}

/* A round is right if every process that could be served was served. There is one member more than there is room
 * for. So no request may be refused if the driver failed another one; otherwise exactly one must be refused. */
static void turns(struct shared *s, uint32_t index, uint32_t count, u64 bytes, u64 rounds) {
    for (u64 r = 0; r < rounds; r++) {
        u64 p = 0;
        meet(s, count);
        atomic_store(&s->answers[index], take(&p, bytes));
        meet(s, count);
        if (index == 0) {
            int full = 0, out = 0;
            for (uint32_t i = 0; i < count; i++) {
                full += s->answers[i] == 0;
                out += s->answers[i] == OUT_OF_MEMORY;
            }
            int fits = full + out < (int)count || out == 0; /* another request failed, or all were granted */
            if (fits ? out != 0 : out != 1) atomic_fetch_add(&s->wrong_rounds, 1);
            if (full == (int)count - 1) atomic_fetch_add(&s->full_rounds, 1);
            atomic_fetch_add(&s->rounds, 1);
        }
        if (p) give(p);
    }
}

static void churn(u64 bytes) {
    u64 held[64] = {0}, async[64] = {0};
    struct pollfd in = { 0, POLLIN, 0 };
    while (poll(&in, 1, 0) == 0) {
        u64 i = draw(64), size = 1 + draw(bytes / 64);
        if (held[i]) {
            if (async[i] ? cuMemFreeAsync(held[i], 0) : cuMemFree_v2(held[i])) unfreed++;
            if (async[i] && draw(2)) cuStreamSynchronize(0); /* until then the pool keeps the memory from others */
            held[i] = 0;
        } else {
            async[i] = draw(4) == 0;
            u64 p = 0;
            size_t pitch;
            int code = async[i] ? cuMemAllocAsync(&p, size, 0)
                : draw(8) ? cuMemAlloc_v2(&p, size) : cuMemAllocPitch_v2(&p, &pitch, size / 16 + 1, 16, 4);
            if (code == 0) { held[i] = p; granted++; } else if (code == OUT_OF_MEMORY) refused++; else failed++;
        }
    }
    /* A pool holds more than its live memory: at the end only plain memory is left. */
    for (int i = 0; i < 64; i++) if (held[i] && async[i] && cuMemFreeAsync(held[i], 0)) unfreed++;
    cuStreamSynchronize(0);
}

int main(int argc, char **argv) {
    char line[64];
    void *context = 0;
    if (argc != 7) return 2;
    const char *mode = argv[1];
    int file = open(argv[2], O_RDWR);
    struct shared *s = mmap(0, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    uint32_t index = (uint32_t)atoi(argv[3]), count = (uint32_t)atoi(argv[4]);
    u64 bytes = strtoull(argv[5], 0, 10), rounds = strtoull(argv[6], 0, 10);
    state = 0x9e3779b97f4a7c15u * (index + 1) ^ (u64)getpid();
    int code = cuInit(0);
    if (!code) code = cuDevicePrimaryCtxRetain(&context, 0);
    if (!code) code = cuCtxSetCurrent(context);
    if (code || s == MAP_FAILED) { printf("! initialisation: %d\n", code); return 3; }
    printf("ready %d\n", getpid());
    fflush(stdout);
    /* Byte by byte: poll must still see a "stop" that arrived together with the "go". */
    setvbuf(stdin, NULL, _IONBF, 0);
    if (!fgets(line, sizeof line, stdin)) return 0;
    if (!strcmp(mode, "share")) share(bytes, rounds);
    else if (!strcmp(mode, "turns")) turns(s, index, count, bytes, rounds);
    else churn(bytes);
    printf("%lu %lu %lu %lu %u %u %u\n", granted, refused, failed, unfreed, s->rounds, s->wrong_rounds, s->full_rounds);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {}
    char rest[64];
    while (read(0, rest, sizeof rest) > 0) {}
    return 0;
}
