/* A program that allocates in stream order and by graphs on command: one command per line on stdin, one answer per
 * line on stdout, the driver's code first. Handles and addresses are numbers.
 * Not here: plain calls (member.c), random acts of all kinds (families.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
struct location { int kind, id; };
struct access { struct location location; int flags; };
struct pool_properties { int alloc, handles; struct location location; void *win32; size_t max; unsigned char reserved[56]; };
struct node_parameters { struct pool_properties pool; const struct access *access; size_t count, bytes; u64 at; };
struct instantiation { u64 flags; void *stream, *node; unsigned result; };

enum { MISSING = -1, MIB = 1 << 20 };
static void *driver;
/* Variadic on purpose: integers and pointers only. */
#define CALL(name, ...) ({ static int (*f_)(); if (!f_) f_ = dlsym(driver, #name); f_ ? f_(__VA_ARGS__) : MISSING; })

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static int spin(u64 ns, void *stream, int anew) {
    static void *module, *kernel;
    int code = 0;
    if (anew) kernel = 0; /* in another context */
    if (!kernel && (code = CALL(cuModuleLoadData, &module, PTX))) return code;
    if (!kernel && (code = CALL(cuModuleGetFunction, &kernel, module, "vgpu_spin_ns"))) return code;
    void *parameters[] = { &ns };
    return CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, (void *)0);
}

struct crowd { pthread_t thread; void *context, *pool; u64 rounds, most, seed, granted, refused, other; };

/* Allocates and frees in a stream of its own; half of the memory stays until the end of a round. */
static void *one_of_crowd(void *argument) {
    struct crowd *c = argument;
    void *stream = 0;
    if (CALL(cuCtxSetCurrent, c->context) || CALL(cuStreamCreate, &stream, 1)) { c->other++; return 0; }
    for (u64 round = 0; round < c->rounds; round++) {
        u64 held[8] = {0};
        for (int i = 0; i < 8; i++) {
            c->seed = c->seed * 6364136223846793005u + 1442695040888963407u;
            u64 bytes = 1 + (c->seed >> 33) % c->most;
            int code = c->pool ? CALL(cuMemAllocFromPoolAsync, &held[i], bytes, c->pool, stream)
                               : CALL(cuMemAllocAsync, &held[i], bytes, stream);
            if (code == 0) c->granted++; else { held[i] = 0; if (code == 2) c->refused++; else c->other++; }
            if (i % 2 && held[i]) { c->other += CALL(cuMemFreeAsync, held[i], stream) != 0; held[i] = 0; }
        }
        for (int i = 0; i < 8; i++) if (held[i]) c->other += CALL(cuMemFreeAsync, held[i], stream) != 0;
        c->other += CALL(cuStreamSynchronize, stream) != 0;
    }
    c->other += CALL(cuStreamDestroy_v2, stream) != 0;
    return 0;
}

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

struct renewal { pthread_t thread; void *context; u64 bytes, spin, rounds, refused, other; };
static pthread_barrier_t together;
static u64 end_of_rounds; /* before the first stream is idle */
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Frees its block in a busy stream at the same moment as all other threads, and takes it again when no other does. The
 * first thread fills all other room of the device. */
static void *renews(void *argument) {
    struct renewal *w = argument;
    void *stream = 0;
    u64 at = 0, filling = 0, room = 0, total = 0;
    w->other += CALL(cuCtxSetCurrent, w->context) || CALL(cuStreamCreate, &stream, 1);
    pthread_mutex_lock(&one_at_a_time);
    if (!end_of_rounds) end_of_rounds = now() + w->spin / 2;
    w->other += CALL(cuMemAllocAsync, &at, w->bytes, stream) != 0;
    w->other += spin(w->spin, stream, 0) != 0;
    pthread_mutex_unlock(&one_at_a_time);
    if (pthread_barrier_wait(&together))
        w->other += CALL(cuMemGetInfo_v2, &room, &total) || CALL(cuMemAlloc_v2, &filling, room);
    for (int goes_on = 1; goes_on; w->rounds++) {
        pthread_barrier_wait(&together);
        if (at) w->other += CALL(cuMemFreeAsync, at, stream) != 0;
        if (pthread_barrier_wait(&together) && now() > end_of_rounds) end_of_rounds = 0;
        pthread_mutex_lock(&one_at_a_time);
        int code = CALL(cuMemAllocAsync, &at, w->bytes, stream);
        pthread_mutex_unlock(&one_at_a_time);
        if (code) at = 0;
        w->refused += code == 2, w->other += code && code != 2;
        pthread_barrier_wait(&together);
        goes_on = end_of_rounds != 0;
    }
    if (at) w->other += CALL(cuMemFreeAsync, at, stream) != 0;
    if (filling) w->other += CALL(cuMemFree_v2, filling) != 0;
    w->other += CALL(cuStreamSynchronize, stream) || CALL(cuStreamDestroy_v2, stream);
    return 0;
}

struct churn { void *context; volatile int stop; };

/* Requests more than there is, again and again, so that every pool is checked. */
static void *refused_for_ever(void *argument) {
    struct churn *c = argument;
    CALL(cuCtxSetCurrent, c->context);
    u64 at = 0, room = 0, total = 0;
    CALL(cuMemGetInfo_v2, &room, &total);
    while (!c->stop) if (!CALL(cuMemAlloc_v2, &at, total)) CALL(cuMemFree_v2, at);
    return 0;
}

/* The driver's own function, from its symbols: a call that no library in between sees. */
static int (*past(const char *name))() {
    struct link_map *map;
    const char *names = 0;
    const ElfW(Sym) *symbol = 0;
    u64 length = 0;
    dlinfo(driver, RTLD_DI_LINKMAP, &map);
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag; d++) {
        if (d->d_tag == DT_STRTAB) names = (const char *)d->d_un.d_ptr;
        if (d->d_tag == DT_SYMTAB) symbol = (const ElfW(Sym) *)d->d_un.d_ptr;
        if (d->d_tag == DT_STRSZ) length = d->d_un.d_val;
    }
    for (symbol++; (const char *)symbol < names; symbol++)
        if (symbol->st_name < length && !strcmp(names + symbol->st_name, name)) return (int (*)())(map->l_addr + symbol->st_value);
    printf("! no %s\n", name);
    exit(3);
}

/* A variable of the library behind ours (between.c), if that is loaded. */
static u64 *between(const char *name) {
    static u64 nobodys;
    u64 *word = dlsym(RTLD_DEFAULT, name);
    return word ? word : &nobodys;
}

static struct { void *context, *stream; u64 bytes, at; int code; } beside;

static void *allocate_beside(void *argument) {
    CALL(cuCtxSetCurrent, beside.context);
    beside.code = CALL(cuMemAllocAsync, &beside.at, beside.bytes, beside.stream);
    return argument;
}

/* Another thread allocates while a free of this thread has not returned. */
static void and_another(void) {
    pthread_t thread;
    pthread_create(&thread, 0, allocate_beside, 0);
    pthread_join(thread, 0);
}

static struct pool_properties on_device(u64 device) { return (struct pool_properties){ 1, 0, { 1, (int)device }, 0, 0, {0} }; }

int main(void) {
    char line[256], name[64];
    u64 a, b, c, at, more;
    void *context = 0, *other;
    int r;
    setvbuf(stdout, 0, _IOLBF, 0);
    /* A library in between finds it as the next definition. */
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    printf("0 %d\n", getpid());
#define IS(word) (!strcmp(name, word))
#define SAY(code) do { r = (code); printf("%d\n", r); } while (0)
#define TELL(code, value) do { r = (code); printf("%d %lu\n", r, (u64)(value)); } while (0)
    while (fgets(line, sizeof line, stdin)) {
        a = b = c = at = more = 0;
        other = 0;
        if (sscanf(line, "%63s %lu %lu %lu", name, &a, &b, &c) < 1) continue;
        if (IS("begin")) {
            r = CALL(cuInit, 0);
            if (!r) r = CALL(cuDevicePrimaryCtxRetain, &context, (int)a);
            if (!r) r = CALL(cuCtxSetCurrent, context);
            printf("%d\n", r);
        }
        else if (IS("context")) TELL(CALL(cuCtxCreate_v2, &other, 0, (int)a), other); /* of a device; it is current now */
        else if (IS("use-context")) SAY(CALL(cuCtxSetCurrent, a ? (void *)a : context)); /* 0: the primary one */
        else if (IS("no-context")) SAY(CALL(cuCtxSetCurrent, (void *)0));
        else if (IS("context-destroy")) SAY(CALL(cuCtxDestroy_v2, (void *)a));
        else if (IS("info")) { r = CALL(cuMemGetInfo_v2, &at, &more); printf("%d %lu %lu\n", r, at, more); }
        else if (IS("alloc")) TELL(CALL(cuMemAlloc_v2, &at, a), at);
        else if (IS("free")) SAY(CALL(cuMemFree_v2, a));
        else if (IS("stream")) TELL(CALL(cuStreamCreate, &other, 1), other);
        else if (IS("stream-destroy")) SAY(CALL(cuStreamDestroy_v2, (void *)a));
        else if (IS("stream-destroy-old")) SAY(CALL(cuStreamDestroy, (void *)a));
        else if (IS("asked")) TELL(0, *between("driver_was_asked")); /* number of stream-ordered allocations */
        else if (IS("take-before")) { *between("take_before") = a; SAY(0); } /* for the next a allocations */
        else if (IS("free-beside")) { /* address, bytes, stream: prints the address that another thread gets meanwhile */
            beside = (typeof(beside)){ context, (void *)c, b, 0, MISSING };
            *(void (**)(void))between("after_free") = and_another;
            r = CALL(cuMemFreeAsync, a, (void *)c);
            TELL(r ? r : beside.code, beside.at);
        }
        else if (IS("spin")) SAY(spin(b, (void *)a, 0)); /* stream, nanoseconds */
        else if (IS("spin-anew")) SAY(spin(b, (void *)a, 1));
        else if (IS("sync-stream")) SAY(CALL(cuStreamSynchronize, (void *)a));
        else if (IS("sync-own")) SAY(CALL(cuStreamSynchronize_ptsz, (void *)a));
        else if (IS("sync-context")) SAY(CALL(cuCtxSynchronize));
        else if (IS("sync-event")) { /* of a stream */
            r = CALL(cuEventCreate, &other, 0);
            if (!r) r = CALL(cuEventRecord, other, (void *)a);
            if (!r) r = CALL(cuEventSynchronize, other);
            if (other) CALL(cuEventDestroy_v2, other);
            printf("%d\n", r);
        }
        else if (IS("async")) TELL(CALL(cuMemAllocAsync, &at, a, (void *)b), at); /* bytes, stream */
        else if (IS("async-own")) TELL(CALL(cuMemAllocAsync_ptsz, &at, a, (void *)b), at);
        else if (IS("from-pool")) TELL(CALL(cuMemAllocFromPoolAsync, &at, a, (void *)b, (void *)c), at); /* bytes, pool, stream */
        else if (IS("from-pool-own")) TELL(CALL(cuMemAllocFromPoolAsync_ptsz, &at, a, (void *)b, (void *)c), at);
        else if (IS("free-async")) SAY(CALL(cuMemFreeAsync, a, (void *)b)); /* address, stream */
        else if (IS("free-past")) SAY(past("cuMemFreeAsync")(a, (void *)b)); /* as free-async */
        else if (IS("free-async-own")) SAY(CALL(cuMemFreeAsync_ptsz, a, (void *)b));
        else if (IS("pool")) { struct pool_properties p = on_device(a); TELL(CALL(cuMemPoolCreate, &other, &p), other); }
        else if (IS("pool-past")) { struct pool_properties p = on_device(a); TELL(past("cuMemPoolCreate")(&other, &p), other); }
        else if (IS("host-pool")) { struct pool_properties p = { 1, 0, { 2, 0 }, 0, 0, {0} }; TELL(CALL(cuMemPoolCreate, &other, &p), other); }
        else if (IS("pool-destroy")) SAY(CALL(cuMemPoolDestroy, (void *)a));
        else if (IS("default-pool")) TELL(CALL(cuDeviceGetDefaultMemPool, &other, (int)a), other);
        else if (IS("use-pool")) SAY(CALL(cuDeviceSetMemPool, (int)a, (void *)b)); /* device, pool */
        else if (IS("threshold")) SAY(CALL(cuMemPoolSetAttribute, (void *)a, 4, &b)); /* pool, bytes */
        else if (IS("trim")) SAY(CALL(cuMemPoolTrimTo, (void *)a, b)); /* pool, bytes to keep */
        else if (IS("held")) { /* pool: bytes it holds, bytes of them in use */
            r = CALL(cuMemPoolGetAttribute, (void *)a, 5, &at);
            if (!r) r = CALL(cuMemPoolGetAttribute, (void *)a, 7, &more);
            printf("%d %lu %lu\n", r, at, more);
        }
        else if (IS("crowd")) { /* threads, rounds, most bytes; the device's pool and the threads' own in turn */
            struct crowd *all = calloc(a, sizeof *all);
            void *pool = 0;
            struct pool_properties p = on_device(0);
            u64 granted = 0, refused = 0, wrong = CALL(cuMemPoolCreate, &pool, &p) != 0;
            for (u64 i = 0; i < a; i++) {
                all[i] = (struct crowd){ 0, context, i % 2 ? pool : 0, b, c, i + (u64)getpid() * 977 };
                pthread_create(&all[i].thread, 0, one_of_crowd, &all[i]);
            }
            for (u64 i = 0; i < a; i++) {
                pthread_join(all[i].thread, 0);
                granted += all[i].granted, refused += all[i].refused, wrong += all[i].other;
            }
            wrong += CALL(cuCtxSynchronize) != 0;
            wrong += CALL(cuMemPoolDestroy, pool) != 0;
            free(all);
            printf("0 %lu %lu %lu\n", granted, refused, wrong);
        }
        else if (IS("renewals")) { /* bytes of each thread, nanoseconds that its stream is busy: rounds, refused, wrong */
            struct renewal all[8];
            end_of_rounds = 0;
            pthread_barrier_init(&together, 0, 8);
            for (int i = 0; i < 8; i++) {
                all[i] = (struct renewal){ 0, context, a, b, 0, 0, 0 };
                pthread_create(&all[i].thread, 0, renews, &all[i]);
            }
            for (int i = 0; i < 8; i++) pthread_join(all[i].thread, 0), at += all[i].refused, more += all[i].other;
            printf("0 %lu %lu %lu\n", all[0].rounds, at, more);
        }
        else if (IS("churn")) { /* pools that are created, used and destroyed while another thread is refused */
            struct churn other_thread = { context, 0 };
            struct pool_properties p = on_device(0);
            pthread_t thread;
            u64 wrong = CALL(cuStreamCreate, &other, 1) != 0;
            pthread_create(&thread, 0, refused_for_ever, &other_thread);
            for (u64 i = 0; i < a; i++) {
                void *pool = 0;
                at = 0;
                wrong += CALL(cuMemPoolCreate, &pool, &p) != 0;
                wrong += CALL(cuMemAllocFromPoolAsync, &at, (u64)MIB, pool, other) != 0;
                wrong += CALL(cuMemFreeAsync, at, other) != 0;
                if (i % 2) wrong += CALL(cuStreamSynchronize, other) != 0;
                wrong += CALL(cuMemPoolDestroy, pool) != 0;
            }
            other_thread.stop = 1;
            pthread_join(thread, 0);
            wrong += CALL(cuCtxSynchronize) != 0;
            printf("0 %lu\n", wrong);
        }
        else if (IS("graph")) TELL(CALL(cuGraphCreate, &other, 0), other);
        else if (IS("capture")) SAY(CALL(cuStreamBeginCapture_v2, (void *)a, (int)b)); /* stream, mode */
        else if (IS("end-capture")) TELL(CALL(cuStreamEndCapture, (void *)a, &other), other);
        else if (IS("conditional")) TELL(CALL(cuGraphConditionalHandleCreate, &at, (void *)a, context, 1, 1), at); /* graph */
        else if (IS("graph-destroy")) SAY(CALL(cuGraphDestroy, (void *)a));
        else if (IS("add-alloc")) { /* graph, bytes, node before it or 0: node and address */
            void *before = (void *)c;
            struct access rw = { { 1, 0 }, 3 };
            struct node_parameters p = { on_device(0), &rw, 1, b, 0 };
            r = CALL(cuGraphAddMemAllocNode, &other, (void *)a, &before, (u64)(c != 0), &p);
            printf("%d %lu %lu\n", r, (u64)other, p.at);
        }
        else if (IS("add-free")) { /* graph, node before it, address */
            void *before = (void *)b;
            TELL(CALL(cuGraphAddMemFreeNode, &other, (void *)a, &before, 1ul, c), other);
        }
        else if (IS("add-child")) TELL(CALL(cuGraphAddChildGraphNode, &other, (void *)a, (void *)0, 0ul, (void *)b), other);
        else if (IS("instantiate")) { /* graph, how: 0 flags, 1 parameters, 2 parameters with an upload, 3 the old form */
            struct instantiation p = { b == 2 ? 2 : 0, 0, 0, 0 };
            char log[64];
            void *node = 0;
            r = b == 0 ? CALL(cuGraphInstantiateWithFlags, &other, (void *)a, c)
              : b == 3 ? CALL(cuGraphInstantiate_v2, &other, (void *)a, &node, log, sizeof log)
                       : CALL(cuGraphInstantiateWithParams, &other, (void *)a, &p);
            printf("%d %lu\n", r, (u64)other);
        }
        else if (IS("update")) { struct { u64 words[8]; } info; SAY(CALL(cuGraphExecUpdate_v2, (void *)a, (void *)b, &info)); }
        else if (IS("upload")) SAY(CALL(cuGraphUpload, (void *)a, (void *)b)); /* executable graph, stream */
        else if (IS("launch")) SAY(CALL(cuGraphLaunch, (void *)a, (void *)b));
        else if (IS("launch-own")) SAY(CALL(cuGraphLaunch_ptsz, (void *)a, (void *)b));
        else if (IS("exec-destroy")) SAY(CALL(cuGraphExecDestroy, (void *)a));
        else if (IS("trim-graphs")) SAY(CALL(cuDeviceGraphMemTrim, (int)a));
        else if (IS("graphs-held")) { /* bytes held for graphs, bytes of them in use */
            r = CALL(cuDeviceGetGraphMemAttribute, 0, 2, &at);
            if (!r) r = CALL(cuDeviceGetGraphMemAttribute, 0, 0, &more);
            printf("%d %lu %lu\n", r, at, more);
        }
        else if (IS("primary-reset")) SAY(CALL(cuDevicePrimaryCtxReset_v2, 0));
        else if (IS("fork")) { /* the child answers from here on */
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) { printf("0 %d\n", getpid()); continue; }
            waitpid(child, &r, 0);
            printf("0 %d\n", r);
        }
        else if (IS("exit")) _exit(0);
        else { printf("! not a command: %s", line); return 4; }
    }
    return 0;
}
