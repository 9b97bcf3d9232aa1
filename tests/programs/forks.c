/* Processes that fork: before they use the driver, and while their threads allocate.
 *   forks tree DEPTH WIDTH BYTES  a tree of processes. Each initialises after it forked its children, allocates and
 *                                 frees many times, holds BYTES, prints `node PID CODE` and waits for the end of stdin
 *   forks busy THREADS FORKS      threads allocate and free while the main thread forks. The children try the driver,
 *                                 free addresses that are not theirs, and leave by exit or exec. Prints `done REFUSED
 *                                 FAILED HELD CRASHED`
 * Not here: one fork, step by step (member.c). */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuMemAlloc_v2(u64 *, size_t), cuMemFree_v2(u64), cuMemGetInfo_v2(size_t *, size_t *), cuDeviceTotalMem_v2(size_t *, int);

static void *context;
static int begin(void) {
    int code = cuInit(0);
    if (!code) code = cuDevicePrimaryCtxRetain(&context, 0);
    return code ? code : cuCtxSetCurrent(context);
}

static int tree(int depth, int width, u64 bytes) {
    int children = 0;
    for (int i = 0; depth > 0 && i < width; i++) {
        if (fork() == 0) return tree(depth - 1, width, bytes);
        children++;
    }
    u64 p = 0, one;
    int code = begin();
    for (int i = 0; !code && i < 200; i++) {
        code = cuMemAlloc_v2(&one, 1 << 20);
        if (!code) code = cuMemFree_v2(one);
    }
    if (!code) code = cuMemAlloc_v2(&p, bytes);
    printf("node %d %d\n", getpid(), code);
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0) {}
    while (children--) wait(0);
    return 0;
}

static volatile int stopping;
static u64 held[64], refused, failed;
static void *allocate(void *argument) {
    u64 index = (u64)argument, state = index * 0x9e3779b97f4a7c15u + 1;
    cuCtxSetCurrent(context);
    while (!stopping) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        u64 *slot = &held[index * 8 + state % 8];
        if (*slot) { if (cuMemFree_v2(*slot)) __atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED); *slot = 0; continue; }
        int code = cuMemAlloc_v2(slot, 1 + (state >> 8) % (64 << 20));
        if (code) *slot = 0;
        if (code == 2) __atomic_add_fetch(&refused, 1, __ATOMIC_RELAXED);
        else if (code) __atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
    }
    return 0;
}

static int busy(int threads, int forks) {
    pthread_t all[8];
    int code = begin(), crashed = 0;
    if (code) { printf("! %d\n", code); return 3; }
    for (int i = 0; i < threads; i++) pthread_create(&all[i], 0, allocate, (void *)(u64)i);
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            u64 p = 0;
            size_t left, total;
            alarm(30); /* kills a child that hangs, which the test then sees */
            if (i % 4 == 1) execl("/bin/true", "true", (char *)0);
            if (i % 4 == 2) { /* a grandchild */
                pid_t further = fork();
                if (further == 0) { cuMemAlloc_v2(&p, 4096); _exit(0); }
                int status = 0;
                waitpid(further, &status, 0);
                if (status) _exit(9);
            }
            int got = cuMemAlloc_v2(&p, 1 << 20);
            cuMemGetInfo_v2(&left, &total);
            cuDeviceTotalMem_v2(&total, 0);
            for (int h = 0; h < 64; h++) if (held[h]) cuMemFree_v2(held[h]); /* addresses that are not the child's own */
            _exit(got == 0 ? 8 : 0); /* the driver gives nothing to a forked child */
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (status) crashed++;
    }
    stopping = 1;
    for (int i = 0; i < threads; i++) pthread_join(all[i], 0);
    u64 living = 0;
    for (int h = 0; h < 64; h++) living += held[h] != 0;
    printf("done %lu %lu %lu %d\n", refused, failed, living, crashed);
    fflush(stdout);
    char c;
    while (read(0, &c, 1) > 0) {}
    for (int h = 0; h < 64; h++) if (held[h] && cuMemFree_v2(held[h])) return 5;
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 5 && !strcmp(argv[1], "tree")) return tree(atoi(argv[2]), atoi(argv[3]), strtoull(argv[4], 0, 10));
    if (argc == 4 && !strcmp(argv[1], "busy")) return busy(atoi(argv[2]), atoi(argv[3]));
    return 2;
}
