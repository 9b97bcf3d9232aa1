/* A process on the device with several threads that creates and destroys every kind of device memory on command. One
 * command per line: `THREAD VERB NUMBER ...`; one answer per line: `THREAD CODE ...`. The test gives objects their
 * numbers.
 * `T churn SEED` lets the thread draw its own acts until `stop`.
 * families ROOM NAME THREADS: ROOM is a directory in which every process has a socket, NAME is this process's.
 * Memory passes between processes by descriptors and handles.
 * Not here: single calls with unusual arguments (member.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef uint64_t u64;
struct location { int kind, id; };
struct properties { int type, handles; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };
struct pool_properties { int alloc, handles; struct location location; void *win32; size_t max; unsigned char reserved[56]; };
struct array { size_t width, height, depth; unsigned format, channels, flags; };
struct token { char bytes[64]; };
struct node_parameters { struct pool_properties pool; const struct access *access; size_t count, bytes; u64 at; };
struct external { int type; union { int fd; void *two[2]; } u; u64 size; unsigned flags, reserved[16]; };
struct buffer { u64 offset, size; unsigned flags, reserved[16]; };

enum { OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801, MISSING = -1, BUSY_NUMBER = -2, NO_SUCH = -3, NOTHING_CAME = -4, MIB = 1 << 20 };
enum kind { FREE, LINEAR, ASYNC, POOLED, POOL, ARRAY, MIPMAP, HANDLE, RANGE, CONTEXT, MODULE, GRAPH, OPENED, EXTERNAL };
struct object { enum kind kind; u64 at, more, bytes; void *extra; };
enum { OBJECTS = 1 << 13, THREADS = 8, CHUNKS = 16, CHUNK = 2 * MIB, OWN = 48 /* objects of a thread that draws its own acts */ };
static struct object objects[OBJECTS];
static void *driver;
static int mailbox;
static const char *room, *name;
static volatile int stopping;

/* Variadic on purpose: integers and pointers only. Returns MISSING if the driver lacks the name. */
#define CALL(name, ...) ({ static int (*f_)(); static int looked_; \
    if (!looked_) { f_ = dlsym(driver, #name); looked_ = 1; } f_ ? f_(__VA_ARGS__) : MISSING; })

struct worker { pthread_t thread; int index; pthread_mutex_t lock; pthread_cond_t come; char line[512]; int full;
                void *stream, *primary; u64 state, granted, refused, failed, unfreed; };
static struct worker workers[THREADS];

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static void address_of(const char *whom, struct sockaddr_un *to) {
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    snprintf(to->sun_path, sizeof to->sun_path, "%s/%s", room, whom);
}

/* Sends a descriptor to another process, which may be gone. */
static int give(const char *whom, int fd) {
    struct sockaddr_un to;
    char byte = 1, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = { &byte, 1 };
    struct msghdr m = { &to, sizeof to, &io, 1, space, sizeof space, 0 };
    address_of(whom, &to);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    return sendmsg(mailbox, &m, MSG_DONTWAIT) == 1 ? 0 : NOTHING_CAME;
}

static int take(void) {
    char byte, space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = { &byte, 1 };
    struct msghdr m = { 0, 0, &io, 1, space, sizeof space, 0 };
    int fd = -1;
    if (recvmsg(mailbox, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&m))
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

/* Records a created object. */
static int made(u64 number, int code, enum kind kind, u64 at, u64 bytes) {
    if (code == 0) objects[number] = (struct object){ kind, at, 0, bytes, 0 };
    return code;
}

static int make_pool(u64 *pool, u64 threshold, int shared) {
    struct pool_properties p = { 1, shared, { 1, 0 }, 0, 0, {0} };
    int code = CALL(cuMemPoolCreate, pool, &p);
    if (code == 0 && threshold) code = CALL(cuMemPoolSetAttribute, *pool, 4, &threshold);
    return code;
}

static int create(u64 *handle, u64 bytes, int kind, int shared) {
    struct properties p = { 1, shared, { kind, 0 }, 0, {0} };
    return CALL(cuMemCreate, handle, bytes, &p, 0ul);
}

/* Runs a graph once. The graph allocates memory, and frees it at its end if `balanced`. */
static int make_graph(u64 number, u64 bytes, int balanced, void *stream) {
    void *graph = 0, *node = 0, *end = 0, *run = 0;
    struct access rw = { { 1, 0 }, 3 };
    struct node_parameters p = { { 1, 0, { 1, 0 } }, &rw, 1, bytes, 0 };
    int code = CALL(cuGraphCreate, &graph, 0);
    if (!code) code = CALL(cuGraphAddMemAllocNode, &node, graph, (void *)0, 0ul, &p);
    if (!code && balanced) code = CALL(cuGraphAddMemFreeNode, &end, graph, &node, 1ul, p.at);
    if (!code) code = CALL(cuGraphInstantiateWithFlags, &run, graph, 0ull);
    if (!code) code = CALL(cuGraphLaunch, run, stream);
    if (!code) code = CALL(cuStreamSynchronize, stream);
    if (!code) {
        objects[number] = (struct object){ GRAPH, balanced ? 0 : p.at, (u64)run, bytes, graph };
        return 0;
    }
    if (run) CALL(cuGraphExecDestroy, run);
    if (graph) CALL(cuGraphDestroy, graph);
    return code;
}

/* Destroys an object of any kind. */
static int end(u64 number, struct worker *w) {
    struct object o = objects[number];
    int code = 0;
    switch (o.kind) {
    case FREE: return NO_SUCH;
    case LINEAR: code = CALL(cuMemFree_v2, o.at); break;
    case ASYNC: case POOLED: code = CALL(cuMemFreeAsync, o.at, w->stream); break;
    case POOL: code = CALL(cuMemPoolDestroy, o.at); break;
    case ARRAY: code = CALL(cuArrayDestroy, o.at); break;
    case MIPMAP: code = CALL(cuMipmappedArrayDestroy, o.at); break;
    case HANDLE: code = CALL(cuMemRelease, o.at); break;
    case RANGE:
        for (u64 i = 0, n; i < CHUNKS; i += n ? n : 1) { /* in runs of chunks that are whole mappings */
            for (n = 0; i + n < CHUNKS && o.more >> (i + n) & 1;) n++;
            if (n) code |= CALL(cuMemUnmap, o.at + i * CHUNK, n * CHUNK);
        }
        if (!code) code = CALL(cuMemAddressFree, o.at, (u64)CHUNKS * CHUNK);
        break;
    case CONTEXT: code = CALL(cuCtxDestroy_v2, o.at); CALL(cuCtxSetCurrent, w->primary); break;
    case MODULE: code = CALL(cuModuleUnload, o.at); break;
    case GRAPH:
        if (o.at) { code = CALL(cuMemFreeAsync, o.at, w->stream); if (!code) code = CALL(cuStreamSynchronize, w->stream); }
        if (!code) code = CALL(cuGraphExecDestroy, o.more);
        if (!code) code = CALL(cuGraphDestroy, o.extra);
        break;
    case OPENED: code = CALL(cuIpcCloseMemHandle, o.at); break;
    case EXTERNAL: code = CALL(cuMemFree_v2, o.more); if (!code) code = CALL(cuDestroyExternalMemory, o.at); break;
    }
    if (code == 0) objects[number].kind = FREE;
    return code;
}

/* Bytes held by this process's pools, the device's default one and its own; then bytes held by graphs. */
static int pools(u64 *held, u64 *by_graphs) {
    u64 pool = 0, one = 0;
    int code = CALL(cuDeviceGetDefaultMemPool, &pool, 0);
    if (!code) code = CALL(cuMemPoolGetAttribute, pool, 5, &one);
    *held = one, *by_graphs = 0;
    for (u64 i = 0; !code && i < OBJECTS; i++)
        if (objects[i].kind == POOL && !(code = CALL(cuMemPoolGetAttribute, objects[i].at, 5, &one))) *held += one;
    if (!code && CALL(cuDeviceGetGraphMemAttribute, 0, 2, by_graphs)) *by_graphs = 0;
    return code;
}

static char *hex(const struct token *t, char *out) {
    for (int i = 0; i < 64; i++) sprintf(out + 2 * i, "%02x", (unsigned char)t->bytes[i]);
    return out;
}

static void unhex(const char *in, struct token *t) {
    for (int i = 0; i < 64; i++) { unsigned b = 0; sscanf(in + 2 * i, "%2x", &b); t->bytes[i] = (char)b; }
}

static int open_handle(u64 *at, struct token t) {
    static int (*f)(u64 *, struct token, unsigned); /* by value: not a call for CALL */
    if (!f) f = dlsym(driver, "cuIpcOpenMemHandle_v2");
    return f ? f(at, t, 1) : MISSING;
}

/* One act of a thread; `out` gets the further words of the answer. */
static int act(struct worker *w, const char *verb, u64 n, u64 a, u64 b, u64 c, u64 d, u64 e, const char *text, char *out) {
    u64 at = 0, more = 0;
    struct token token;
    char line[160];
    int code;
#define IS(word) (!strcmp(verb, word))
    if (IS("end")) return end(n, w);
    if (IS("settle")) { code = CALL(cuCtxSynchronize); return code; }
    if (IS("info")) { code = CALL(cuMemGetInfo_v2, &at, &more); sprintf(out, " %lu %lu", at, more); return code; }
    if (IS("pools")) { code = pools(&at, &more); sprintf(out, " %lu %lu", at, more); return code; }
    if (IS("trim-graphs")) return CALL(cuDeviceGraphMemTrim, 0);
    if (n >= OBJECTS) return NO_SUCH;
    if (IS("forget")) { objects[n].kind = FREE; return 0; } /* its context's end destroyed it */
    if (IS("trim")) return objects[n].kind == POOL ? CALL(cuMemPoolTrimTo, objects[n].at, a) : NO_SUCH;
    if (IS("unmap")) { /* chunks a to b of a range */
        if (objects[n].kind != RANGE) return NO_SUCH;
        code = CALL(cuMemUnmap, objects[n].at + a * CHUNK, (b - a) * CHUNK);
        if (!code) for (u64 i = a; i < b; i++) objects[n].more &= ~(1ul << i);
        return code;
    }
    if (IS("map")) { /* all of object a, at chunk b of the range */
        if (objects[n].kind != RANGE || objects[a].kind != HANDLE) return NO_SUCH;
        struct access rw = { { 1, 0 }, 3 };
        code = CALL(cuMemMap, objects[n].at + b * CHUNK, objects[a].bytes, 0ul, objects[a].at, 0ul);
        if (!code) for (u64 i = 0; i < objects[a].bytes / CHUNK; i++) objects[n].more |= 1ul << (b + i);
        if (!code) code = CALL(cuMemSetAccess, objects[n].at + b * CHUNK, objects[a].bytes, &rw, 1ul);
        return code;
    }
    if (IS("send")) { /* object n to the process `text` */
        int fd = -1;
        if (objects[n].kind != HANDLE) return NO_SUCH;
        code = CALL(cuMemExportToShareableHandle, &fd, objects[n].at, 1, 0ull);
        if (!code) { code = give(text, fd); close(fd); }
        return code;
    }
    if (IS("offer")) { /* an IPC handle of plain memory, as text */
        if (objects[n].kind != LINEAR) return NO_SUCH;
        code = CALL(cuIpcGetMemHandle, &token, objects[n].at);
        if (!code) sprintf(out, " %s", hex(&token, line));
        return code;
    }
    if (objects[n].kind != FREE) return BUSY_NUMBER;
    if (IS("plain")) { code = CALL(cuMemAlloc_v2, &at, a); sprintf(out, " %lu", at); return made(n, code, LINEAR, at, a); }
    if (IS("pitched")) {
        code = CALL(cuMemAllocPitch_v2, &at, &more, a, b, 4);
        sprintf(out, " %lu %lu", at, more);
        return made(n, code, LINEAR, at, more * b);
    }
    if (IS("managed")) {
        code = CALL(cuMemAllocManaged, &at, a, 1);
        sprintf(out, " %lu", at);
        return made(n, code, LINEAR, at, a);
    }
    if (IS("async")) { code = CALL(cuMemAllocAsync, &at, a, w->stream); return made(n, code, ASYNC, at, a); }
    if (IS("pool")) { code = make_pool(&at, a, 0); return made(n, code, POOL, at, 0); }
    if (IS("pooled")) {
        if (objects[b].kind != POOL) return NO_SUCH;
        code = CALL(cuMemAllocFromPoolAsync, &at, a, objects[b].at, w->stream);
        return made(n, code, POOLED, at, a);
    }
    if (IS("array")) { /* width, height, depth, format, channels */
        struct array desc = { a, b, c, (unsigned)d, (unsigned)e, 0 };
        code = CALL(cuArray3DCreate_v2, &at, &desc);
        return made(n, code, ARRAY, at, 0);
    }
    if (IS("mipmap")) { /* width, height, levels, format, channels */
        struct array desc = { a, b, 0, (unsigned)d, (unsigned)e, 0 };
        code = CALL(cuMipmappedArrayCreate, &at, &desc, (unsigned)c);
        return made(n, code, MIPMAP, at, 0);
    }
    if (IS("create")) { code = create(&at, a, 1, (int)b); return made(n, code, HANDLE, at, a); } /* bytes, kinds of handle */
    if (IS("range")) { code = CALL(cuMemAddressReserve, &at, (u64)CHUNKS * CHUNK, 0ul, 0ul, 0ul); return made(n, code, RANGE, at, 0); }
    if (IS("retain")) { /* the mapping at chunk b of range a */
        if (objects[a].kind != RANGE) return NO_SUCH;
        code = CALL(cuMemRetainAllocationHandle, &at, objects[a].at + b * CHUNK);
        return made(n, code, HANDLE, at, c);
    }
    if (IS("receive")) { /* a received allocation of that size in bytes */
        int fd = take();
        if (fd < 0) return NOTHING_CAME;
        code = CALL(cuMemImportFromShareableHandle, &at, (void *)(intptr_t)fd, 1);
        close(fd);
        return made(n, code, HANDLE, at, a);
    }
    if (IS("open")) { unhex(text, &token); code = open_handle(&at, token); return made(n, code, OPENED, at, 0); }
    if (IS("context")) {
        code = CALL(cuCtxCreate_v2, &at, 0, 0);
        CALL(cuCtxSetCurrent, w->primary);
        return made(n, code, CONTEXT, at, 0);
    }
    if (IS("inside")) { /* plain memory in context b, freed with it */
        if (objects[b].kind != CONTEXT) return NO_SUCH;
        CALL(cuCtxSetCurrent, objects[b].at);
        code = CALL(cuMemAlloc_v2, &at, a);
        CALL(cuCtxSetCurrent, w->primary);
        sprintf(out, " %lu", at);
        return made(n, code, LINEAR, at, a);
    }
    if (IS("module")) { code = CALL(cuModuleLoadData, &at, PTX); return made(n, code, MODULE, at, 0); }
    if (IS("graph")) return make_graph(n, a, (int)b, w->stream);
    if (IS("external")) { /* a received allocation as external memory of that size in bytes */
        int fd = take();
        if (fd < 0) return NOTHING_CAME;
        struct external desc = { 1, { fd }, a, 0, {0} };
        struct buffer all = { 0, a, 0, {0} };
        code = CALL(cuImportExternalMemory, &at, &desc);
        if (code) { close(fd); return code; } /* the driver owns it only on success */
        code = CALL(cuExternalMemoryGetMappedBuffer, &more, at, &all);
        if (code) { CALL(cuDestroyExternalMemory, at); return code; }
        objects[n] = (struct object){ EXTERNAL, at, more, a, 0 };
        return 0;
    }
    printf("! not a verb: %s\n", verb);
    exit(4);
}

static u64 draw(struct worker *w, u64 below) {
    w->state ^= w->state << 13, w->state ^= w->state >> 7, w->state ^= w->state << 17;
    return w->state % below;
}

/* Random acts on this thread's own numbers until told to stop, with all kinds of memory. `peers` is the number of
 * processes, named 0, 1, ...; `without` has a bit for each verb to leave out. */
static void churn(struct worker *w, u64 peers, u64 without) {
    static const char *verbs[] = { "plain", "pitched", "managed", "async", "array", "mipmap", "create", "range", "pool",
                                   "context", "module", "graph", "receive" };
    u64 base = 1024 + (u64)w->index * OWN;
    char out[256], whom[16];
    while (!stopping) {
        u64 n = base + draw(w, OWN), other = base + draw(w, OWN), small = 1 + draw(w, 64 * 1024), big = 1 + draw(w, 24 * MIB);
        u64 bytes = draw(w, 2) ? small : big, chunk = draw(w, CHUNKS - 1);
        int code;
        out[0] = 0;
        if (draw(w, 64) == 0) CALL(cuCtxSynchronize); /* until then pools keep freed memory that others need */
        struct object *o = &objects[n], *p = &objects[other];
        if (o->kind == FREE) {
            u64 which = draw(w, sizeof verbs / sizeof *verbs);
            const char *verb = verbs[which];
            if (without >> which & 1) continue;
            if (!strcmp(verb, "context") && draw(w, 8)) continue;
            u64 a = bytes, b = 0, c = 0, d = 0x20, e = 1 + draw(w, 2);
            if (!strcmp(verb, "pitched")) a = 1 + draw(w, 4096), b = 1 + draw(w, 512);
            if (!strcmp(verb, "array")) a = 1 + draw(w, 1024), b = 1 + draw(w, 1024);
            if (!strcmp(verb, "mipmap")) a = 1 + draw(w, 512), b = 1 + draw(w, 512), c = 1 + draw(w, 10);
            if (!strcmp(verb, "create")) a = CHUNK, b = draw(w, 2);
            if (!strcmp(verb, "receive")) a = CHUNK;
            if (!strcmp(verb, "graph")) b = draw(w, 2);
            if (!strcmp(verb, "pool")) a = draw(w, 2) ? 64 * MIB : 0;
            if (!strcmp(verb, "async") && p->kind == POOL) { verb = "pooled"; b = other; }
            if (!strcmp(verb, "plain") && p->kind == CONTEXT) continue;
            code = act(w, verb, n, a, b, c, d, e, "", out);
            if (code == 0) w->granted++; else if (code == OUT_OF_MEMORY) w->refused++; else if (code > 0 && code != NOT_SUPPORTED) w->failed++;
            continue;
        }
        if (o->kind == RANGE && draw(w, 3)) {
            if (p->kind == HANDLE && !(o->more >> chunk & 1)) { act(w, "map", n, other, chunk, 0, 0, 0, "", out); continue; }
            if (p->kind == FREE && o->more >> chunk & 1) { act(w, "retain", other, n, chunk, CHUNK, 0, 0, "", out); continue; }
            if (o->more >> chunk & 1) { if (act(w, "unmap", n, chunk, chunk + 1, 0, 0, 0, "", out)) w->unfreed++; continue; }
        }
        if (o->kind == HANDLE && !(without >> 12 & 1) && draw(w, 3) == 0) {
            sprintf(whom, "%lu", draw(w, peers));
            act(w, "send", n, 0, 0, 0, 0, 0, whom, out);
            continue;
        }
        if (o->kind == POOL) { /* in use it is only trimmed: what its destruction does then is the driver's choice */
            int used = 0;
            for (u64 i = base; i < base + OWN; i++) used |= objects[i].kind == POOLED;
            if (used) { act(w, "trim", n, 0, 0, 0, 0, 0, "", out); continue; }
        }
        code = end(n, w);
        if (code > 0) w->unfreed++;
        if (code) objects[n].kind = FREE;
    }
    CALL(cuCtxSynchronize);
}

/* Destroys all objects of this thread: objects in pools first, then the pools. */
static int end_all(struct worker *w) {
    int code = 0;
    for (int pools = 0; pools < 2; pools++)
        for (u64 n = 1024 + (u64)w->index * OWN; n < 1024 + (u64)(w->index + 1) * OWN; n++)
            if (objects[n].kind != FREE && (pools || objects[n].kind != POOL)) {
                int ended = end(n, w);
                if (ended) { code = ended; objects[n].kind = FREE; }
            }
    int settled = CALL(cuCtxSynchronize), trimmed = CALL(cuDeviceGraphMemTrim, 0);
    return code ? code : settled ? settled : trimmed;
}

static void *work(void *argument) {
    struct worker *w = argument;
    char verb[32], text[160], out[256], line[512];
    int code = CALL(cuCtxSetCurrent, w->primary);
    if (!code) code = CALL(cuStreamCreate, &w->stream, 1);
    if (code) { printf("! a thread: %d\n", code); exit(3); }
    for (;;) {
        u64 n = 0, a = 0, b = 0, c = 0, d = 0, e = 0;
        pthread_mutex_lock(&w->lock);
        while (!w->full) pthread_cond_wait(&w->come, &w->lock);
        memcpy(line, w->line, sizeof line);
        w->full = 0;
        pthread_mutex_unlock(&w->lock);
        verb[0] = text[0] = out[0] = 0;
        sscanf(line, "%*s %31s %lu %159s", verb, &n, text);
        sscanf(line, "%*s %*s %*s %lu %lu %lu %lu %lu", &a, &b, &c, &d, &e);
        if (IS("churn")) {
            w->state = 0x9e3779b97f4a7c15u * (n + 1) ^ (u64)(w->index + 1) << 32;
            churn(w, a, b);
            printf("%d 0 %lu %lu %lu %lu\n", w->index, w->granted, w->refused, w->failed, w->unfreed);
            continue;
        }
        if (IS("drain")) { /* descriptors that were sent and not received */
            int fd;
            while ((fd = take()) >= 0) close(fd);
            printf("%d 0\n", w->index);
            continue;
        }
        code = IS("end-all") ? end_all(w) : act(w, verb, n, a, b, c, d, e, text, out);
        printf("%d %d%s\n", w->index, code, out);
    }
    return 0;
}

int main(int argc, char **argv) {
    char line[512];
    void *primary = 0;
    struct sockaddr_un own;
    if (argc != 4) return 2;
    room = argv[1], name = argv[2];
    int threads = atoi(argv[3]);
    setvbuf(stdout, 0, _IOLBF, 0);
    setvbuf(stdin, 0, _IONBF, 0);
    mailbox = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    address_of(name, &own);
    unlink(own.sun_path);
    if (bind(mailbox, (void *)&own, sizeof own)) { printf("! %s\n", strerror(errno)); return 3; }
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    int code = CALL(cuInit, 0);
    if (!code) code = CALL(cuDevicePrimaryCtxRetain, &primary, 0);
    if (code) { printf("! initialisation: %d\n", code); return 3; }
    for (int i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        w->index = i, w->primary = primary;
        pthread_mutex_init(&w->lock, 0);
        pthread_cond_init(&w->come, 0);
        pthread_create(&w->thread, 0, work, w);
    }
    printf("ready %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "stop", 4)) { stopping = 1; continue; }
        if (!strncmp(line, "go", 2)) { stopping = 0; continue; }
        struct worker *w = &workers[atoi(line)];
        pthread_mutex_lock(&w->lock);
        if (w->full) { printf("! told twice: %s", line); return 4; }
        memcpy(w->line, line, sizeof line);
        w->full = 1;
        pthread_cond_signal(&w->come);
        pthread_mutex_unlock(&w->lock);
    }
    _exit(0);
}
