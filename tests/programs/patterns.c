/* Small programs with the call patterns of well-known ones, selected by name as first argument. At every point of
 * comparison a program prints `at LABEL HELD FREE TOTAL` (bytes by its own account, and cuMemGetInfo) and waits for
 * a line. An unexpected failure of a call ends the program with a message and code 3.
 * Not here: runtime.c (lookups), launcher.c (a launcher compiled at run time). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint64_t u64;
struct location { int kind, id; };
struct properties { int type, handles; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };
struct pool_properties { int alloc, handles; struct location location; void *win32; size_t max; unsigned char reserved[56]; };
enum { OUT_OF_MEMORY = 2, ON_DEVICE = 1, ON_NODE = 3, AS_FD = 1 };
#define MIB (1ul << 20)
#define GIB (1ul << 30)

static void *driver;
/* Variadic on purpose: integers and pointers only. */
#define CALL(name, ...) ({ static int (*f_)(); if (!f_ && !(f_ = dlsym(driver, #name))) fail("no " #name, 0); f_(__VA_ARGS__); })
#define MUST(name, ...) ({ int code_ = CALL(name, ##__VA_ARGS__); if (code_) fail(#name, code_); })

static void fail(const char *what, int code) {
    printf("! %s: %d\n", what, code);
    exit(3);
}

static void begin(void) {
    void *context;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) fail(dlerror(), 0);
    MUST(cuInit, 0);
    MUST(cuDevicePrimaryCtxRetain, &context, 0);
    MUST(cuCtxSetCurrent, context);
}

static void at(const char *label, u64 held) {
    size_t left, total;
    char line[64];
    MUST(cuMemGetInfo_v2, &left, &total);
    printf("at %s %lu %lu %lu\n", label, held, left, total);
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static struct properties on(int kind, int id, int handles) {
    struct properties p = { 1, handles, { kind, id }, 0, {0} };
    return p;
}

static void reachable(u64 address, u64 bytes) {
    struct access rw = { { ON_DEVICE, 0 }, 3 };
    MUST(cuMemSetAccess, address, bytes, &rw, 1ul);
}

/* A pool that grows in one reservation of 32 GiB: create, map, release at once, allow access. One unmap ends it. */
static void release_after_map(void) {
    struct properties p = on(ON_DEVICE, 0, 0);
    u64 grain, base, size = 0, handle;
    MUST(cuMemGetAllocationGranularity, &grain, &p, 1);
    for (int round = 0; round < 3; round++) {
        MUST(cuMemAddressReserve, &base, 32 * GIB, 0ul, 0ul, 0ul);
        at("reserved", 0);
        for (u64 want = 10 * MIB + 7; ; want = want * 3 / 2) {
            u64 more = (want + grain - 1) / grain * grain;
            int code = CALL(cuMemCreate, &handle, more, &p, 0ul);
            if (code == OUT_OF_MEMORY) break;
            if (code) fail("cuMemCreate", code);
            MUST(cuMemMap, base + size, more, 0ul, handle, 0ul);
            MUST(cuMemRelease, handle);
            reachable(base + size, more);
            size += more;
            at("grown", size);
        }
        at("full", size);
        MUST(cuMemUnmap, base, size);
        MUST(cuMemAddressFree, base, 32 * GIB);
        size = 0;
        at("freed", 0);
    }
}

/* Segments of 20 MiB that are mapped when needed, in addresses for more than the device has. On out of memory the
 * cached segments are unmapped and the request is repeated. */
static void expandable_segments(void) {
    enum { MOST = 4096 };
    static u64 handles[MOST];
    struct properties p = on(ON_DEVICE, 0, 0);
    size_t total, left;
    u64 base, segment = 20 * MIB, cached = 0, held = 0;
    MUST(cuMemGetInfo_v2, &left, &total);
    u64 room = (total / segment + 1) * 9 / 8, mapped = 0;
    MUST(cuMemAddressReserve, &base, room * segment, 0ul, 0ul, 0ul);
    at("reserved", 0);
    for (int round = 0; round < 4; round++) {
        for (;;) {
            int code = CALL(cuMemCreate, &handles[mapped], segment, &p, 0ul);
            if (code == OUT_OF_MEMORY) break;
            if (code) fail("cuMemCreate", code);
            MUST(cuMemMap, base + mapped * segment, segment, 0ul, handles[mapped], 0ul);
            reachable(base + mapped * segment, segment);
            held += segment;
            if (++mapped == room) fail("more than the limit is mapped", (int)mapped);
        }
        at("full", held);
        /* The tail is cached: it is unmapped, and a request of its size fits again. */
        cached = mapped / 2;
        for (u64 i = 0; i < cached; i++) {
            mapped--;
            MUST(cuMemUnmap, base + mapped * segment, segment);
            MUST(cuMemRelease, handles[mapped]);
            held -= segment;
        }
        at("cache-freed", held);
        u64 one;
        MUST(cuMemAlloc_v2, &one, cached * segment);
        at("repeated", held + cached * segment);
        MUST(cuMemFree_v2, one);
    }
    while (mapped) {
        mapped--;
        MUST(cuMemUnmap, base + mapped * segment, segment);
        MUST(cuMemRelease, handles[mapped]);
    }
    MUST(cuMemAddressFree, base, room * segment);
    at("freed", 0);
}

/* Weights that are released for a while: saved to the host, unmapped and released. Their addresses stay and have the
 * same content after the wake. Others may take the room meanwhile; the wake then gets out of memory. */
static void sleep_mode(void) {
    enum { PIECES = 6 };
    struct properties p = on(ON_DEVICE, 0, 0);
    u64 piece = 64 * MIB, addresses[PIECES], handles[PIECES];
    unsigned char *saved[PIECES];
    for (int i = 0; i < PIECES; i++) {
        MUST(cuMemAddressReserve, &addresses[i], piece, 0ul, 0ul, 0ul);
        MUST(cuMemCreate, &handles[i], piece, &p, 0ul);
        MUST(cuMemMap, addresses[i], piece, 0ul, handles[i], 0ul);
        reachable(addresses[i], piece);
        MUST(cuMemsetD8_v2, addresses[i], 17 + i, 4096ul);
        saved[i] = malloc(4096);
    }
    at("awake", PIECES * piece);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < PIECES; i++) {
            MUST(cuMemcpyDtoH_v2, saved[i], addresses[i], 4096ul);
            MUST(cuMemUnmap, addresses[i], piece);
            MUST(cuMemRelease, handles[i]);
        }
        at("asleep", 0);
        int woken = 0, code = 0;
        for (; woken < PIECES; woken++) {
            code = CALL(cuMemCreate, &handles[woken], piece, &p, 0ul);
            if (code) break;
            MUST(cuMemMap, addresses[woken], piece, 0ul, handles[woken], 0ul);
            reachable(addresses[woken], piece);
            MUST(cuMemcpyHtoD_v2, addresses[woken], saved[woken], 4096ul);
        }
        if (code && code != OUT_OF_MEMORY) fail("cuMemCreate", code);
        at(code ? "partly" : "awake", woken * piece);
        for (; woken < PIECES; woken++) { /* now there is room again */
            MUST(cuMemCreate, &handles[woken], piece, &p, 0ul);
            MUST(cuMemMap, addresses[woken], piece, 0ul, handles[woken], 0ul);
            reachable(addresses[woken], piece);
            MUST(cuMemcpyHtoD_v2, addresses[woken], saved[woken], 4096ul);
        }
        for (int i = 0; i < PIECES; i++) {
            unsigned char seen[4096];
            MUST(cuMemcpyDtoH_v2, seen, addresses[i], 4096ul);
            for (int b = 0; b < 4096; b++) if (seen[b] != 17 + i) fail("the content of a woken piece", seen[b]);
        }
        at("awake", PIECES * piece);
    }
}

/* A pool with a release threshold, primed with an allocation that is freed at once; streams in several threads. */
static u64 pool;
static u64 reserved(void) { u64 bytes = 0; MUST(cuMemPoolGetAttribute, pool, 5, &bytes); return bytes; }
struct user { pthread_t thread; void *context; u64 seed, granted, refused; };
static void *use_pool(void *argument) {
    struct user *u = argument;
    void *stream;
    u64 held[16] = {0};
    MUST(cuCtxSetCurrent, u->context);
    MUST(cuStreamCreate, &stream, 1);
    for (int i = 0; i < 400; i++) {
        u->seed = u->seed * 6364136223846793005u + 1442695040888963407u;
        u64 at = u->seed >> 60, bytes = 256 + (u->seed >> 20) % (24 * MIB);
        if (held[at]) { MUST(cuMemFreeAsync, held[at], stream); held[at] = 0; }
        int code = CALL(cuMemAllocFromPoolAsync, &held[at], bytes, pool, stream);
        if (code == OUT_OF_MEMORY) { u->refused++; held[at] = 0; MUST(cuStreamSynchronize, stream); }
        else if (code) fail("cuMemAllocFromPoolAsync", code);
        else u->granted++;
        if (i % 50 == 49) MUST(cuStreamSynchronize, stream);
    }
    for (int i = 0; i < 16; i++) if (held[i]) MUST(cuMemFreeAsync, held[i], stream);
    MUST(cuStreamSynchronize, stream);
    return 0;
}
static void pool_allocator(void) {
    enum { USERS = 4 };
    struct user users[USERS];
    struct pool_properties p = { 1, 0, { ON_DEVICE, 0 }, 0, 0, {0} };
    u64 threshold = 256 * MIB, first, granted = 0, refused = 0;
    void *context;
    MUST(cuCtxGetCurrent, &context);
    MUST(cuMemPoolCreate, &pool, &p);
    MUST(cuMemPoolSetAttribute, pool, 4, &threshold);
    at("made", 0);
    MUST(cuMemAllocFromPoolAsync, &first, 200 * MIB, pool, (void *)0);
    at("primed", reserved());
    MUST(cuMemFreeAsync, first, (void *)0);
    MUST(cuCtxSynchronize);
    at("kept", reserved());
    if (reserved() < 200 * MIB) fail("a pool below its threshold gave memory back", 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < USERS; i++) {
            users[i] = (struct user){ 0, context, (u64)(round * USERS + i + 1) * 0x9e3779b97f4a7c15u, 0, 0 };
            pthread_create(&users[i].thread, 0, use_pool, &users[i]);
        }
        for (int i = 0; i < USERS; i++) {
            pthread_join(users[i].thread, 0);
            granted += users[i].granted, refused += users[i].refused;
        }
        MUST(cuCtxSynchronize);
        at("quiet", reserved());
    }
    MUST(cuMemPoolTrimTo, pool, 64 * MIB);
    at("trimmed", reserved()); /* at least that much stays, in whole pieces */
    MUST(cuMemPoolTrimTo, pool, 0ul);
    if (reserved()) fail("a trim did not trim", 0);
    at("emptied", 0);
    MUST(cuMemPoolDestroy, pool);
    at("destroyed", 0);
    printf("done %lu %lu\n", granted, refused);
}

/* Two ranks share a buffer: one creates it, passes it as a descriptor over a Unix socket, and both map it. Flags in
 * host memory take no device memory. Rank 0 prints; rank 1 prints once it is alone. */
static void pass(int socket, int fd) {
    char byte = 1, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = { &byte, 1 };
    struct msghdr m = { 0, 0, &io, 1, space, sizeof space, 0 };
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    if (sendmsg(socket, &m, 0) != 1) fail("sendmsg", 0);
}
static int receive(int socket) {
    char byte, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = { &byte, 1 };
    struct msghdr m = { 0, 0, &io, 1, space, sizeof space, 0 };
    int fd;
    if (recvmsg(socket, &m, 0) != 1 || !CMSG_FIRSTHDR(&m)) fail("recvmsg", 0);
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}
static void meet(int socket) {
    char byte = 2;
    if (write(socket, &byte, 1) != 1 || read(socket, &byte, 1) != 1) fail("the other rank", 0);
}
static void ranks(void) {
    int ends[2];
    u64 buffer = 32 * MIB, handle, address;
    unsigned char seen[64];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("socketpair", 0);
    fflush(stdout);
    pid_t other = fork(); /* before the driver is used, as launchers do */
    int rank = other == 0, mine = ends[rank];
    close(ends[!rank]);
    begin();
    if (!rank) printf("pids %d %d\n", getpid(), other);
    struct properties flags = on(ON_NODE, 0, 0), shared = on(ON_DEVICE, 0, AS_FD);
    u64 host;
    MUST(cuMemCreate, &host, 512 * MIB, &flags, 0ul);
    meet(mine);
    if (!rank) at("flags", 0);
    meet(mine);
    if (!rank) {
        int fd;
        MUST(cuMemCreate, &handle, buffer, &shared, 0ul);
        MUST(cuMemExportToShareableHandle, &fd, handle, AS_FD, 0ull);
        at("exported", buffer);
        pass(mine, fd);
        close(fd);
    } else {
        int fd = receive(mine);
        MUST(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, AS_FD);
        close(fd);
    }
    MUST(cuMemAddressReserve, &address, buffer, 0ul, 0ul, 0ul);
    MUST(cuMemMap, address, buffer, 0ul, handle, 0ul);
    MUST(cuMemRelease, handle);
    reachable(address, buffer);
    if (!rank) MUST(cuMemsetD8_v2, address, 42, 64ul);
    meet(mine);
    if (rank) {
        MUST(cuMemcpyDtoH_v2, seen, address, 64ul);
        if (seen[63] != 42) fail("what the other rank wrote", seen[63]);
    }
    meet(mine);
    if (!rank) { at("both", buffer); meet(mine); _exit(0); } /* ends with the memory mapped */
    meet(mine);
    usleep(100000);
    MUST(cuMemcpyDtoH_v2, seen, address, 64ul);
    if (seen[0] != 42) fail("what the dead rank wrote", seen[0]);
    at("alone", buffer);
    MUST(cuMemUnmap, address, buffer);
    MUST(cuMemAddressFree, address, buffer);
    at("freed", 0);
    MUST(cuMemRelease, host);
    printf("end\n");
}

/* Takes most of the total at the start, in one piece, and serves everything from it. */
static void preallocation(void) {
    size_t total, left;
    u64 arena;
    MUST(cuDeviceTotalMem_v2, &total, 0);
    MUST(cuMemAlloc_v2, &arena, total / 4 * 3);
    at("arena", total / 4 * 3);
    MUST(cuMemFree_v2, arena);
    MUST(cuMemGetInfo_v2, &left, &total);
    MUST(cuMemAlloc_v2, &arena, left / 10 * 9);
    at("of-free", (left / 10 * 9 + 511) / 512 * 512);
    MUST(cuMemFree_v2, arena);
}

int main(int argc, char **argv) {
    static const struct { const char *name; void (*run)(void); } all[] = {
        { "release-after-map", release_after_map }, { "expandable-segments", expandable_segments },
        { "sleep-mode", sleep_mode }, { "pool-allocator", pool_allocator }, { "preallocation", preallocation },
    };
    setvbuf(stdout, 0, _IOLBF, 0);
    setvbuf(stdin, 0, _IONBF, 0); /* two ranks read from it in turn */
    if (argc > 1 && !strcmp(argv[1], "ranks")) { ranks(); return 0; }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (argc > 1 && !strcmp(argv[1], all[i].name)) { begin(); all[i].run(); printf("end\n"); return 0; }
    return 2;
}
