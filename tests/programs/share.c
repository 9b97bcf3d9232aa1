/* A program that maps physical memory, exports it and opens memory of other processes: one command per line on stdin,
 * one answer per line on stdout, the driver's code first. IPC handles of 64 bytes are written in hexadecimal;
 * descriptors pass through sockets, or are fetched from the other process. With the argument `get`, it finds every
 * function by cuGetProcAddress.
 * Not here: all other commands of a member (member.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

typedef uint64_t u64;
struct name { unsigned char bytes[64]; };
struct location { int kind, id; };
struct properties { int type, handles; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };
struct pool_properties { int alloc, handles; struct location location; void *win32; size_t max; unsigned char reserved[56]; };
struct external { unsigned kind; u64 handle[2], size; unsigned flags, reserved[16]; };
struct multicast { unsigned devices; size_t size; u64 handles, flags; };
struct array3 { size_t width, height, depth; unsigned format, channels, flags; };
struct tile { unsigned kind; void *resource; unsigned part_kind, pad; unsigned part[8]; unsigned operation, handle_kind; u64 handle, offset; unsigned devices, flags, reserved[2]; };

static int by_lookup;

/* As communication libraries do: by the name without its version suffix, for the version of CUDA 12.5. */
static void *looked_up(void *driver, const char *symbol) {
    char base[128];
    void *f = 0;
    int status = 0;
    int (*get)(const char *, void **, int, u64, int *) = (void *)dlsym(driver, "cuGetProcAddress_v2");
    snprintf(base, sizeof base, "%s", symbol);
    char *suffix = strstr(base, "_v2");
    if (suffix) *suffix = 0;
    return get && !get(base, &f, 12050, 0, &status) ? f : 0;
}

static void *need(const char *symbol) {
    static void *driver;
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *f = !driver ? 0 : by_lookup ? looked_up(driver, symbol) : dlsym(driver, symbol);
    if (!f) { printf("! no %s\n", symbol); exit(3); }
    return f;
}
/* Variadic on purpose: integers and pointers only. */
#define CALL(function, ...) ({ static int (*f_)(); if (!f_) f_ = need(#function); f_(__VA_ARGS__); })

static void print_name(int code, const struct name *n) {
    printf("%d ", code);
    for (int i = 0; i < 64; i++) printf("%02x", n->bytes[i]);
    printf("\n");
}

static struct name read_name(const char *text) {
    struct name n = {{0}};
    for (int i = 0; i < 64 && text[2 * i] && text[2 * i + 1]; i++) { unsigned b; sscanf(text + 2 * i, "%2x", &b); n.bytes[i] = (unsigned char)b; }
    return n;
}

static struct sockaddr_un at(const char *path) {
    struct sockaddr_un a = { AF_UNIX, {0} };
    strncpy(a.sun_path, path, sizeof a.sun_path - 1);
    return a;
}

static int listening = -1;

static int serve(const char *path) {
    struct sockaddr_un a = at(path);
    listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return bind(listening, (void *)&a, sizeof a) || listen(listening, 64) ? 1 : 0;
}

/* Connections that stay open, so that descriptors remain in transit while the sender continues. */
static int passing(int connection, int *fd, int sends) {
    char byte = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = { &byte, 1 };
    struct msghdr m = { 0, 0, &data, 1, room, sizeof room, 0 };
    if (sends) {
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        *c = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
        memcpy(CMSG_DATA(c), fd, sizeof *fd);
        return sendmsg(connection, &m, 0) == 1 ? 0 : 1;
    }
    if (recvmsg(connection, &m, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&m)) return 1;
    memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof *fd);
    return 0;
}

static int send_to(const char *path, int fd) {
    struct sockaddr_un a = at(path);
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(connection, (void *)&a, sizeof a)) return 1;
    return passing(connection, &fd, 1);
}

/* Threads that compete for one allocation: each maps and unmaps it at its own address, and retains the handle of the
 * mapping. */
struct fight { u64 handle, address, bytes; int rounds, code; };
static void *fights(void *argument) {
    struct fight *one = argument;
    for (int i = 0; i < one->rounds && !one->code; i++) {
        u64 again = 0;
        one->code = CALL(cuMemMap, one->address, one->bytes, 0ul, one->handle, 0ul);
        if (!one->code) one->code = CALL(cuMemRetainAllocationHandle, &again, (void *)(one->address + one->bytes / 2));
        if (!one->code) one->code = CALL(cuMemUnmap, one->address, one->bytes);
        if (!one->code) one->code = CALL(cuMemRelease, again);
    }
    return 0;
}

/* Threads that create, map, release and unmap their own allocations, two threads at each address, so that handles
 * and addresses are reused at once. A thread that finds the address taken releases its allocation. */
static void *churns(void *argument) {
    struct fight *one = argument;
    struct properties p = { 1, 0, { 1, 0 } };
    for (int i = 0; i < one->rounds && !one->code; i++) {
        u64 handle = 0;
        one->code = CALL(cuMemCreate, &handle, one->bytes, &p, 0ul);
        int taken = one->code ? 0 : CALL(cuMemMap, one->address, one->bytes, 0ul, handle, 0ul);
        if (!one->code) one->code = CALL(cuMemRelease, handle);
        if (!one->code && !taken) one->code = CALL(cuMemUnmap, one->address, one->bytes);
    }
    return 0;
}

/* Threads that open and close one IPC handle, so that it is open in several, in one, in none. Returns the worst
 * code. */
struct opening { struct name name; int rounds, code; };
static void *context;
static void *opens(void *argument) {
    struct opening *one = argument;
    int (*f)(u64 *, struct name, unsigned) = need("cuIpcOpenMemHandle_v2");
    one->code = CALL(cuCtxSetCurrent, context);
    for (int i = 0; i < one->rounds && !one->code; i++) {
        u64 at = 0;
        one->code = f(&at, one->name, 1);
        if (!one->code) one->code = CALL(cuIpcCloseMemHandle, at);
    }
    return 0;
}

static int opened_in_threads(struct name name, int threads, int rounds) {
    pthread_t t[16];
    struct opening all[16];
    int code = CALL(cuCtxGetCurrent, &context);
    for (int i = 0; i < threads; i++) {
        all[i] = (struct opening){ name, rounds, 0 };
        pthread_create(&t[i], 0, opens, &all[i]);
    }
    for (int i = 0; i < threads; i++) { pthread_join(t[i], 0); if (all[i].code) code = all[i].code; }
    return code;
}

static int in_threads(void *(*act)(void *), u64 handle, u64 address, u64 bytes, int threads, int rounds) {
    pthread_t t[16];
    struct fight all[16];
    int code = 0;
    for (int i = 0; i < threads; i++) {
        all[i] = (struct fight){ handle, address + (u64)(handle ? i : i / 2) * bytes, bytes, rounds, 0 };
        pthread_create(&t[i], 0, act, &all[i]);
    }
    for (int i = 0; i < threads; i++) { pthread_join(t[i], 0); if (all[i].code) code = all[i].code; }
    return code;
}

/* The command `aside COMMAND` runs on a thread of its own and answers when it ends. */
static void obey(const char *line);
static void *obeys(void *line) {
    if (CALL(cuCtxSetCurrent, context)) printf("! no context\n");
    obey(line);
    free(line);
    return 0;
}

static void aside(const char *line) {
    pthread_t t;
    CALL(cuCtxGetCurrent, &context);
    pthread_create(&t, 0, obeys, strdup(line));
    pthread_detach(t);
}

/* Copies a descriptor of another process, as allocators do that send a process id and a number. */
static int fetched(u64 pid, u64 number) {
    int process = (int)syscall(SYS_pidfd_open, (int)pid, 0);
    int fd = (int)syscall(SYS_pidfd_getfd, process, (int)number, 0);
    close(process);
    return fd;
}

/* Maps the handle at `times` consecutive addresses, and lets device 0 use each, until a call fails. */
static int map_pages(u64 at, u64 bytes, u64 handle, u64 times) {
    struct access rw = { { 1, 0 }, 3 };
    int code = 0;
    for (u64 i = 0; i < times && !code; i++) {
        code = CALL(cuMemMap, at + i * bytes, bytes, 0ul, handle, 0ul);
        if (!code) code = CALL(cuMemSetAccess, at + i * bytes, bytes, &rw, 1ul);
    }
    return code;
}

static void obey(const char *line) {
    static void *stream;
    char verb[64], word[512];
    u64 a = 0, b = 0, c = 0, d = 0;
    word[0] = 0;
    if (sscanf(line, "%63s", verb) != 1) return;
    sscanf(line, "%*s %lu %lu %lu %lu", &a, &b, &c, &d);
    sscanf(line, "%*s %511s", word);
    u64 p = 0;
    int r, fd = -1;
    struct name n = {{0}};
    if (!strcmp(verb, "init")) printf("%d\n", CALL(cuInit, 0));
    else if (!strcmp(verb, "retain")) { void *ctx = 0; r = CALL(cuDevicePrimaryCtxRetain, &ctx, (int)a); if (!r) r = CALL(cuCtxSetCurrent, ctx); printf("%d\n", r); }
    else if (!strcmp(verb, "primary-reset")) printf("%d\n", CALL(cuDevicePrimaryCtxReset_v2, (int)a));
    else if (!strcmp(verb, "create-context")) { void *ctx = 0; r = CALL(cuCtxCreate_v2, &ctx, 0, (int)a); printf("%d %lu\n", r, (u64)ctx); }
    else if (!strcmp(verb, "destroy-context")) printf("%d\n", CALL(cuCtxDestroy_v2, (void *)a));
    else if (!strcmp(verb, "attribute")) { int v = -1; r = CALL(cuDeviceGetAttribute, &v, (int)a, (int)b); printf("%d %d\n", r, v); } /* number, device */
    else if (!strcmp(verb, "granularity")) { /* device, kinds of handles */
        struct properties q = { 1, (int)b, { 1, (int)a } };
        r = CALL(cuMemGetAllocationGranularity, &p, &q, 0);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "synchronize")) printf("%d\n", CALL(cuStreamSynchronize, (void *)0));
    /* a capture in the given mode on a stream of its own; its end prints the number of nodes */
    else if (!strcmp(verb, "capture")) { r = stream ? 0 : CALL(cuStreamCreate, &stream, 1); if (!r) r = CALL(cuStreamBeginCapture_v2, stream, (int)a); printf("%d\n", r); }
    else if (!strcmp(verb, "fill")) printf("%d\n", CALL(cuMemsetD8Async, a, 0, b, stream)); /* address, bytes, on that stream */
    else if (!strcmp(verb, "end-capture")) {
        void *graph = 0;
        size_t nodes = 0;
        r = CALL(cuStreamEndCapture, stream, &graph);
        if (!r) CALL(cuGraphGetNodes, graph, (void *)0, &nodes);
        if (graph) CALL(cuGraphDestroy, graph);
        printf("%d %lu\n", r, nodes);
    }
    else if (!strcmp(verb, "info")) { size_t f = 0, t = 0; r = CALL(cuMemGetInfo_v2, &f, &t); printf("%d %lu %lu\n", r, f, t); }
    else if (!strcmp(verb, "alloc")) { r = CALL(cuMemAlloc_v2, &p, a); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "free")) printf("%d\n", CALL(cuMemFree_v2, a));
    else if (!strcmp(verb, "async")) { r = CALL(cuMemAllocAsync, &p, a, (void *)0); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "free-async")) { r = CALL(cuMemFreeAsync, a, (void *)0); if (!r) r = CALL(cuStreamSynchronize, (void *)0); printf("%d\n", r); }
    /* IPC handles of 64 bytes */
    else if (!strcmp(verb, "name")) { r = CALL(cuIpcGetMemHandle, &n, a); print_name(r, &n); }
    else if (!strcmp(verb, "open")) {
        int (*f)(u64 *, struct name, unsigned) = need("cuIpcOpenMemHandle_v2");
        r = f(&p, read_name(word), 1);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "opens")) { sscanf(line, "%*s %*s %lu %lu", &a, &b); printf("%d\n", opened_in_threads(read_name(word), (int)a, (int)b)); } /* handle, threads, rounds */
    else if (!strcmp(verb, "close")) printf("%d\n", CALL(cuIpcCloseMemHandle, a));
    /* physical allocations: bytes, device, kinds of handles, type of the location (0: a device, 3: a NUMA node) */
    else if (!strcmp(verb, "create")) {
        struct properties q = { 1, (int)c, { d ? (int)d : 1, (int)b } };
        r = CALL(cuMemCreate, &p, a, &q, 0ul);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "release")) printf("%d\n", CALL(cuMemRelease, a));
    else if (!strcmp(verb, "reserve")) { r = CALL(cuMemAddressReserve, &p, a, b, c, 0ul); printf("%d %lu\n", r, p); } /* bytes, alignment, address */
    else if (!strcmp(verb, "unreserve")) printf("%d\n", CALL(cuMemAddressFree, a, b));
    else if (!strcmp(verb, "map")) printf("%d\n", CALL(cuMemMap, a, b, 0ul, c, 0ul)); /* address, bytes, handle */
    else if (!strcmp(verb, "map-pages")) printf("%d\n", map_pages(a, b, c, d)); /* address, bytes of each, handle, times */
    else if (!strcmp(verb, "allow")) { /* address, bytes, first device, number of devices */
        struct access rw[8] = {0};
        for (u64 i = 0; i < d && i < 8; i++) rw[i] = (struct access){ { 1, (int)(c + i) }, 3 };
        printf("%d\n", CALL(cuMemSetAccess, a, b, rw, d));
    }
    else if (!strcmp(verb, "unmap")) printf("%d\n", CALL(cuMemUnmap, a, b));
    else if (!strcmp(verb, "retain-handle")) { r = CALL(cuMemRetainAllocationHandle, &p, (void *)a); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "export")) { r = CALL(cuMemExportToShareableHandle, &fd, a, 1, 0ul); printf("%d %d\n", r, fd); }
    else if (!strcmp(verb, "import")) { r = CALL(cuMemImportFromShareableHandle, &p, (void *)a, 1); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "export-fabric")) { r = CALL(cuMemExportToShareableHandle, &n, a, 8, 0ul); print_name(r, &n); }
    else if (!strcmp(verb, "import-fabric")) { n = read_name(word); r = CALL(cuMemImportFromShareableHandle, &p, &n, 8); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "dma-buf")) { r = CALL(cuMemGetHandleForAddressRange, &fd, a, b, 1, 0ul); printf("%d %d\n", r, fd); }
    else if (!strcmp(verb, "pointer")) { /* memory type, device, kinds of handles, 1 if it can have an IPC handle */
        unsigned kind = 0, device = 0, kinds = 0, legacy = 0, which[] = { 2, 9, 14, 10 };
        void *to[] = { &kind, &device, &kinds, &legacy };
        r = CALL(cuPointerGetAttributes, 4, which, to, a);
        printf("%d %u %u %u %u\n", r, kind, device, kinds, legacy & 1);
    }
    else if (!strcmp(verb, "fight")) printf("%d\n", in_threads(fights, a, b, c, 4, (int)d)); /* handle, address, bytes, rounds */
    else if (!strcmp(verb, "churn")) printf("%d\n", in_threads(churns, 0, a, b, 4, (int)c)); /* address, bytes, rounds */
    /* descriptors */
    else if (!strcmp(verb, "serve")) printf("%d\n", serve(word));
    else if (!strcmp(verb, "send")) { char path[512]; sscanf(line, "%*s %d %511s", &fd, path); printf("%d\n", send_to(path, fd)); }
    else if (!strcmp(verb, "take")) { int connection = accept4(listening, 0, 0, SOCK_CLOEXEC); r = passing(connection, &fd, 0); close(connection); printf("%d %d\n", r, fd); }
    else if (!strcmp(verb, "fetch")) { fd = fetched(a, b); printf("%d %d\n", fd < 0, fd); } /* process, its descriptor */
    else if (!strcmp(verb, "open-file")) { fd = open(word, O_RDWR | O_CLOEXEC); printf("%d %d\n", fd < 0, fd); }
    else if (!strcmp(verb, "close-descriptor")) printf("%d\n", close((int)a) ? 1 : 0);
    /* pools */
    else if (!strcmp(verb, "pool")) { /* device, kinds of handles */
        struct pool_properties q = { 1, (int)b, { 1, (int)a } };
        r = CALL(cuMemPoolCreate, &p, &q);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "pool-destroy")) printf("%d\n", CALL(cuMemPoolDestroy, (void *)a));
    else if (!strcmp(verb, "threshold")) printf("%d\n", CALL(cuMemPoolSetAttribute, (void *)a, 4, &b)); /* pool, bytes */
    else if (!strcmp(verb, "from-pool")) { r = CALL(cuMemAllocFromPoolAsync, &p, a, (void *)b, (void *)0); if (!r) r = CALL(cuStreamSynchronize, (void *)0); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "trim")) printf("%d\n", CALL(cuMemPoolTrimTo, (void *)a, b));
    else if (!strcmp(verb, "pool-export")) { r = CALL(cuMemPoolExportToShareableHandle, &fd, (void *)a, 1, 0ul); printf("%d %d\n", r, fd); }
    else if (!strcmp(verb, "pool-import")) { r = CALL(cuMemPoolImportFromShareableHandle, &p, (void *)a, 1, 0ul); printf("%d %lu\n", r, p); }
    else if (!strcmp(verb, "pointer-export")) { r = CALL(cuMemPoolExportPointer, &n, a); print_name(r, &n); }
    else if (!strcmp(verb, "pointer-import")) { /* pool, handle */
        sscanf(line, "%*s %lu %511s", &a, word);
        n = read_name(word);
        r = CALL(cuMemPoolImportPointer, &p, (void *)a, &n);
        printf("%d %lu\n", r, p);
    }
    /* memory of other APIs: descriptor, bytes */
    else if (!strcmp(verb, "external")) {
        struct external q = { 1, { (unsigned)a, 0 }, b, 1 };
        r = CALL(cuImportExternalMemory, &p, &q);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "external-buffer")) { /* object, bytes */
        struct { u64 offset, size; unsigned flags, reserved[16]; } q = { 0, b };
        r = CALL(cuExternalMemoryGetMappedBuffer, &p, (void *)a, &q);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "external-destroy")) printf("%d\n", CALL(cuDestroyExternalMemory, (void *)a));
    /* multicast objects */
    else if (!strcmp(verb, "multicast")) { /* devices, bytes */
        struct multicast q = { (unsigned)a, b, 1, 0 };
        r = CALL(cuMulticastCreate, &p, &q);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "multicast-device")) printf("%d\n", CALL(cuMulticastAddDevice, a, (int)b));
    else if (!strcmp(verb, "bind")) printf("%d\n", CALL(cuMulticastBindMem, a, b, c, 0ul, d, 0ul)); /* object, offset, handle, bytes */
    else if (!strcmp(verb, "bind-address")) printf("%d\n", CALL(cuMulticastBindAddr, a, b, c, d, 0ul));
    else if (!strcmp(verb, "unbind")) printf("%d\n", CALL(cuMulticastUnbind, a, (int)b, c, d)); /* object, device, offset, bytes */
    /* sparse arrays */
    else if (!strcmp(verb, "sparse")) { /* width, height */
        struct array3 q = { a, b, 0, 0x20, 1, 0x40 };
        r = CALL(cuArray3DCreate_v2, &p, &q);
        printf("%d %lu\n", r, p);
    }
    else if (!strcmp(verb, "tile") || !strcmp(verb, "untile")) { /* array, handle, width, height */
        struct tile q = { 0, (void *)a, 0, 0, { 0, 0, 0, 0, 0, (unsigned)c, (unsigned)d, 1 }, verb[0] == 't' ? 1 : 2, 0, verb[0] == 't' ? b : 0, 0, 1, 0 };
        r = CALL(cuMemMapArrayAsync, &q, 1, (void *)0);
        if (!r) r = CALL(cuStreamSynchronize, (void *)0);
        printf("%d\n", r);
    }
    else if (!strcmp(verb, "tiles")) { /* array, handle, width, height, tiles given, tiles claimed */
        u64 count = 1, told = 1;
        sscanf(line, "%*s %*s %*s %*s %*s %lu %lu", &count, &told);
        struct tile *all = calloc(count, sizeof *all);
        for (u64 i = 0; i < count; i++)
            all[i] = (struct tile){ 0, (void *)a, 0, 0, { 0, 0, 0, 0, 0, (unsigned)c, (unsigned)d, 1 }, b ? 1 : 2, 0, b, 0, 1, 0 };
        if (told > count) all[count - 1].operation = 7; /* the driver refuses before it reaches the end */
        r = CALL(cuMemMapArrayAsync, all, (unsigned)told, (void *)0);
        if (!r) r = CALL(cuStreamSynchronize, (void *)0);
        free(all);
        printf("%d\n", r);
    }
    else if (!strcmp(verb, "array-destroy")) printf("%d\n", CALL(cuArrayDestroy, (void *)a));
    else if (!strcmp(verb, "exit")) { fflush(stdout); _exit((int)a); }
    else { printf("! not a command: %s", line); exit(4); }
}

int main(int argc, char **argv) {
    char line[1024];
    by_lookup = argc > 1 && !strcmp(argv[1], "get");
    setvbuf(stdout, 0, _IOLBF, 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* others may fetch descriptors */
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin))
        if (strncmp(line, "aside ", 6)) obey(line);
        else aside(line + 6);
    return 0;
}
