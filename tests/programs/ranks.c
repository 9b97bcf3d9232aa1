/* A rank of a collective. Its kernel on its own device waits for a word that the other rank's kernel writes, in
 * memory that both map. One command per line on stdin, one answer per line on stdout, the driver's code first. It
 * knows nothing of vgpu.
 * Not here: dependencies inside one process (timed.c), allocations (member.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
enum { NON_BLOCKING = 1, PORTABLE = 1, MISSING = -1 };
static void *driver;
/* Two flags for each rank, one for odd and one for even rounds, so that a rank that is ahead never overwrites a flag
 * that is still awaited. */
static struct { uint32_t value[2], rest[14]; } *flags;
/* Objects of a rank on its device. */
static struct part { void *context, *spin, *wait, *set, *streams[2]; } parts[2];

#define FIND(name) ({ static int (*f_)(); if (!f_) f_ = dlsym(driver, #name); f_; })
#define CALL(name, ...) ({ int (*g_)() = FIND(name); g_ ? g_(__VA_ARGS__) : MISSING; })
#define TRY(call) do { int code_ = (call); if (code_) return code_; } while (0)

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n"
    ".visible .entry vgpu_wait_word(.param .u64 vgpu_wait_word_param_0, .param .u32 vgpu_wait_word_param_1)\n{\nret;\n}\n"
    ".visible .entry vgpu_set_word(.param .u64 vgpu_set_word_param_0, .param .u32 vgpu_set_word_param_1, "
    ".param .u64 vgpu_set_word_param_2)\n{\nret;\n}\n";

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

/* Creates the rank's objects on device `rank` and maps the flags in the file. */
static int begin(int rank, const char *path) {
    struct part *p = &parts[rank];
    void *module;
    int first = !flags;
    if (first) {
        int file = open(path, O_RDWR | O_CREAT, 0600);
        if (file < 0 || ftruncate(file, 4096)) return MISSING;
        flags = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (flags == MAP_FAILED) return MISSING;
        TRY(CALL(cuInit, 0));
    }
    TRY(CALL(cuDevicePrimaryCtxRetain, &p->context, rank));
    TRY(CALL(cuCtxSetCurrent, p->context));
    if (first) TRY(CALL(cuMemHostRegister_v2, flags, (size_t)4096, PORTABLE));
    TRY(CALL(cuModuleLoadData, &module, PTX));
    TRY(CALL(cuModuleGetFunction, &p->spin, module, "vgpu_spin_ns"));
    TRY(CALL(cuModuleGetFunction, &p->wait, module, "vgpu_wait_word"));
    TRY(CALL(cuModuleGetFunction, &p->set, module, "vgpu_set_word"));
    for (int i = 0; i < 2; i++) TRY(CALL(cuStreamCreate, &p->streams[i], NON_BLOCKING));
    return 0;
}

#define LAUNCH(kernel, stream, parameters) CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, (void *)0)

/* Launches the rank's own work of `ns`, then its part of the collective: it sets the other rank's flag and waits for
 * its own. In order: both in one stream, as a collective operation of one kernel does. Otherwise the waiting kernel is
 * launched first, and the kernel that releases the other rank comes after it, in another stream. */
static int launch(int rank, uint32_t round, u64 ns, int in_order) {
    struct part *p = &parts[rank];
    u64 short_work = 20000, mine = (u64)&flags[rank].value[round % 2], theirs = (u64)&flags[!rank].value[round % 2];
    void *work[] = { &ns }, *set[] = { &theirs, &round, &short_work }, *wait[] = { &mine, &round };
    TRY(CALL(cuCtxSetCurrent, p->context));
    if (ns) TRY(LAUNCH(p->spin, p->streams[0], work));
    if (in_order) TRY(LAUNCH(p->set, p->streams[0], set));
    TRY(LAUNCH(p->wait, p->streams[0], wait));
    return in_order ? 0 : LAUNCH(p->set, p->streams[1], set);
}

static int finish(int rank) {
    TRY(CALL(cuCtxSetCurrent, parts[rank].context));
    return CALL(cuStreamSynchronize, parts[rank].streams[0]);
}

/* One rank, in step with the other process. After each collective `behind` short kernels wait for its end. */
static int rounds(int rank, uint32_t from, int count, u64 ns, int behind, int in_order) {
    u64 short_work = 20000;
    void *work[] = { &short_work };
    for (uint32_t round = from; round < from + (uint32_t)count; round++) {
        TRY(launch(rank, round, ns, in_order));
        for (int i = 0; i < behind; i++) TRY(LAUNCH(parts[rank].spin, parts[rank].streams[0], work));
        TRY(finish(rank));
    }
    return 0;
}

/* Both ranks in one thread, one after the other, without a wait in between, as multi-device libraries do. */
static int both(uint32_t from, int count, u64 ns) {
    for (uint32_t round = from; round < from + (uint32_t)count; round++) {
        for (int rank = 0; rank < 2; rank++) TRY(launch(rank, round, ns, 0));
        for (int rank = 0; rank < 2; rank++) TRY(finish(rank));
    }
    return 0;
}

int main(void) {
    char line[1024], name[64], path[900];
    setvbuf(stdout, 0, _IOLBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, start = now();
        if (sscanf(line, "%63s", name) != 1) continue;
        sscanf(line, "%*s %lu %lu %lu %lu %lu %lu", &a, &b, &c, &d, &e, &f);
        if (!strcmp(name, "begin") && sscanf(line, "%*s %*s %899s", path) == 1) printf("%d\n", begin(a == 1, path));
        else if (!strcmp(name, "rounds")) { /* rank from count ns [behind [in_order]] */
            int code = rounds(a == 1, (uint32_t)b, (int)c, d, (int)e, f == 1);
            printf("%d %lu\n", code, now() - start);
        }
        else if (!strcmp(name, "both")) { /* from count ns */
            int code = both((uint32_t)a, (int)b, c);
            printf("%d %lu\n", code, now() - start);
        }
        else printf("! %s\n", name);
    }
    return 0;
}
