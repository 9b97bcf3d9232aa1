/* Programs that use device time in typical ways: one command per line on stdin, one answer per line on stdout, the
 * driver's code first. It knows nothing of vgpu. Times are nanoseconds unless a name says otherwise.
 * Not here: allocations (member.c), captures and their rules (capture.c). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
enum { NON_BLOCKING = 1, NO_TIME = 2, MANY = 8, MISSING = -1 };
/* Ways in which a loop chooses its stream, and in which it waits. */
enum { LEGACY, CREATED, PER_THREAD, BLOCKING, COOPERATIVE, IN_TURN };
enum { BY_CONTEXT, BY_STREAM, BY_EVENT, BY_QUERY };
static void *driver, *context, *spin, *wait_word, *set_word, *streams[MANY], *blocking, *plain_event;

#define FIND(name) ({ static int (*f_)(); if (!f_) f_ = dlsym(driver, #name); f_; })
#define CALL(name, ...) ({ int (*g_)() = FIND(name); g_ ? g_(__VA_ARGS__) : MISSING; })
#define TRY(call) do { int code_ = (call); if (code_) return code_; } while (0)

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n"
    ".visible .entry vgpu_wait_word(.param .u64 vgpu_wait_word_param_0, .param .u32 vgpu_wait_word_param_1)\n{\nret;\n}\n"
    ".visible .entry vgpu_set_word(.param .u64 vgpu_set_word_param_0, .param .u32 vgpu_set_word_param_1, "
    ".param .u64 vgpu_set_word_param_2)\n{\nret;\n}\n";

static u64 clock_of(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}
static u64 now(void) { return clock_of(CLOCK_MONOTONIC); }
static void pause_for(u64 ns) {
    struct timespec t = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };
    nanosleep(&t, 0);
}

static int begin(void) {
    void *module;
    TRY(CALL(cuInit, 0));
    TRY(CALL(cuDevicePrimaryCtxRetain, &context, 0));
    TRY(CALL(cuCtxSetCurrent, context));
    TRY(CALL(cuModuleLoadData, &module, PTX));
    TRY(CALL(cuModuleGetFunction, &spin, module, "vgpu_spin_ns"));
    TRY(CALL(cuModuleGetFunction, &wait_word, module, "vgpu_wait_word"));
    TRY(CALL(cuModuleGetFunction, &set_word, module, "vgpu_set_word"));
    for (int i = 0; i < MANY; i++) TRY(CALL(cuStreamCreate, &streams[i], NON_BLOCKING));
    TRY(CALL(cuStreamCreate, &blocking, 0));
    return CALL(cuEventCreate, &plain_event, NO_TIME);
}

static void *stream_of(int way, int thread) {
    return way == CREATED ? streams[thread % MANY] : way == IN_TURN ? streams[thread % 4] : way == BLOCKING ? blocking : way == PER_THREAD ? (void *)2 : 0;
}

static int launch_in(void *kernel, void *stream, u64 ns) {
    void *parameters[] = { &ns };
    return CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, (void *)0);
}

static int launch(int way, int thread, u64 ns) {
    void *stream = stream_of(way, thread), *parameters[] = { &ns };
    /* The thread's own stream by either of its names. */
    if (way == PER_THREAD && thread % 2) return CALL(cuLaunchKernel_ptsz, spin, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
    if (way == COOPERATIVE) return CALL(cuLaunchCooperativeKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters);
    return launch_in(spin, stream, ns);
}

static int finish(int way, int thread, int how) {
    void *stream = stream_of(way, thread);
    int code;
    switch (how) {
    case BY_STREAM: return CALL(cuStreamSynchronize, stream);
    case BY_EVENT: TRY(CALL(cuEventRecord, plain_event, stream)); return CALL(cuEventSynchronize, plain_event);
    case BY_QUERY: while ((code = CALL(cuStreamQuery, stream)) == 600) pause_for(20000); return code;
    default: return CALL(cuCtxSynchronize);
    }
}

/* Launches kernels of `ns` for `ms`, or `most` of them, with a wait after each `batch` and then `host` of host work. */
struct loop { u64 ns, ms, most, batch, host; int way, how, thread, code; u64 launched, wall, cpu; };

static void *loop(void *argument) {
    struct loop *l = argument;
    u64 start = now(), cpu = clock_of(CLOCK_THREAD_CPUTIME_ID);
    l->code = CALL(cuCtxSetCurrent, context);
    while (!l->code && (!l->ms || now() - start < l->ms * 1000000) && (!l->most || l->launched < l->most)) {
        l->code = launch(l->way, l->way == IN_TURN ? (int)(l->launched % 4) : l->thread, l->ns);
        if (l->code || ++l->launched % l->batch) continue;
        if (l->how >= 0) l->code = finish(l->way, l->thread, l->how);
        if (l->host) pause_for(l->host);
    }
    if (!l->code) l->code = finish(l->way, l->thread, BY_CONTEXT);
    l->wall = now() - start;
    l->cpu = clock_of(CLOCK_THREAD_CPUTIME_ID) - cpu;
    return 0;
}

static int threads(int count, struct loop model) {
    pthread_t all[16];
    struct loop each[16];
    int code = 0;
    u64 launched = 0;
    for (int i = 0; i < count; i++) {
        each[i] = model;
        each[i].thread = i;
        pthread_create(&all[i], 0, loop, &each[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(all[i], 0);
        if (!code) code = each[i].code;
        launched += each[i].launched;
    }
    printf("%d %lu\n", code, launched);
    return code;
}

/* A graph of `nodes` kernels of `ns`, launched for `ms`. */
static int graph(u64 ns, int nodes, u64 ms, u64 *launched) {
    void *captured = 0, *exec = 0;
    TRY(CALL(cuStreamBeginCapture_v2, streams[0], 0));
    for (int i = 0; i < nodes; i++) TRY(launch_in(spin, streams[0], ns));
    TRY(CALL(cuStreamEndCapture, streams[0], &captured));
    TRY(CALL(cuGraphInstantiateWithFlags, &exec, captured, 0ull));
    for (u64 start = now(); now() - start < ms * 1000000; ++*launched) TRY(CALL(cuGraphLaunch, exec, streams[0]));
    TRY(CALL(cuCtxSynchronize));
    TRY(CALL(cuGraphExecDestroy, exec));
    return CALL(cuGraphDestroy, captured);
}

/* `count` times: a kernel that waits for a word, and after it, in another stream, the kernel that writes it. */
static int crossed(int count, u64 ns) {
    u64 word = 0;
    TRY(CALL(cuMemAlloc_v2, &word, (size_t)512));
    TRY(CALL(cuMemsetD8_v2, word, 0, (size_t)512));
    for (uint32_t value = 1; value <= (uint32_t)count; value++) {
        void *first[] = { &word, &value }, *second[] = { &word, &value, &ns };
        TRY(CALL(cuLaunchKernel, wait_word, 1, 1, 1, 1, 1, 1, 0, streams[0], first, (void *)0));
        TRY(CALL(cuLaunchKernel, set_word, 1, 1, 1, 1, 1, 1, 0, streams[1], second, (void *)0));
        TRY(CALL(cuStreamSynchronize, streams[0]));
    }
    return CALL(cuMemFree_v2, word);
}

/* `count` kernels in each of two streams, each after the other stream's last one by an event without timing. At the
 * end it asks events without timing for their time, and two timed events for the length of a single kernel. */
static int in_step(int count, u64 ns, int *refused, u64 *took) {
    void *done[2], *timed[2];
    float ms = 0;
    for (int i = 0; i < 2; i++) { TRY(CALL(cuEventCreate, &done[i], NO_TIME)); TRY(CALL(cuEventCreate, &timed[i], 0)); }
    for (int i = 0; i < 2 * count; i++) {
        TRY(launch_in(spin, streams[i % 2], ns));
        TRY(CALL(cuEventRecord, done[i % 2], streams[i % 2]));
        TRY(CALL(cuStreamWaitEvent, streams[!(i % 2)], done[i % 2], 0));
        if (i % 32 == 31) TRY(CALL(cuEventSynchronize, done[1]));
    }
    TRY(CALL(cuEventSynchronize, done[1]));
    /* Lets the balance refill: under a ceiling the launch would wait for it, and the events would include that wait. */
    pause_for(20000000);
    TRY(CALL(cuEventRecord, timed[0], streams[0]));
    TRY(launch_in(spin, streams[0], ns));
    TRY(CALL(cuEventRecord, timed[1], streams[0]));
    TRY(CALL(cuEventSynchronize, timed[1]));
    *refused = CALL(cuEventElapsedTime, &ms, done[0], done[1]);
    TRY(CALL(cuEventElapsedTime, &ms, timed[0], timed[1]));
    *took = (u64)(ms * 1e6f);
    for (int i = 0; i < 2; i++) { TRY(CALL(cuEventDestroy_v2, done[i])); TRY(CALL(cuEventDestroy_v2, timed[i])); }
    return 0;
}

/* A kernel that runs for `ms` until the host ends it, with kernels of another stream meanwhile. */
static int persistent(u64 ms, u64 ns, u64 *beside) {
    u64 word = 0, start = now();
    uint32_t value = 7;
    TRY(CALL(cuMemAlloc_v2, &word, (size_t)512));
    TRY(CALL(cuMemsetD8_v2, word, 0, (size_t)512));
    void *parameters[] = { &word, &value };
    TRY(CALL(cuLaunchKernel, wait_word, 1, 1, 1, 1, 1, 1, 0, streams[0], parameters, (void *)0));
    while (now() - start < ms * 1000000) { TRY(launch_in(spin, streams[1], ns)); TRY(CALL(cuStreamSynchronize, streams[1])); ++*beside; }
    TRY(CALL(cuMemcpyHtoDAsync_v2, word, &value, sizeof value, streams[2]));
    TRY(CALL(cuStreamSynchronize, streams[0]));
    return CALL(cuMemFree_v2, word);
}

/* `count` contexts, one after the other, each ended with `kernels` of `ns` in flight. */
static int contexts(int count, int kernels, u64 ns) {
    for (int i = 0; i < count; i++) {
        void *own, *module, *kernel, *stream;
        TRY(CALL(cuCtxCreate_v2, &own, 0, 0));
        TRY(CALL(cuModuleLoadData, &module, PTX));
        TRY(CALL(cuModuleGetFunction, &kernel, module, "vgpu_spin_ns"));
        TRY(CALL(cuStreamCreate, &stream, NON_BLOCKING));
        for (int k = 0; k < kernels; k++) TRY(launch_in(kernel, k % 2 ? stream : 0, ns));
        if (i % 2) TRY(CALL(cuStreamDestroy_v2, stream));
        TRY(CALL(cuCtxDestroy_v2, own));
    }
    return CALL(cuCtxSetCurrent, context);
}

/* `count` streams, one after the other, each destroyed with a kernel in flight. */
static int passing(int count, u64 ns) {
    for (int i = 0; i < count; i++) {
        void *stream;
        TRY(CALL(cuStreamCreate, &stream, NON_BLOCKING));
        TRY(launch_in(spin, stream, ns));
        TRY(CALL(cuStreamDestroy_v2, stream));
    }
    return CALL(cuCtxSynchronize);
}

/* A function that is short at its first launch and long in the `count` launches that follow; returns the time to
 * launch these. */
static int flood(u64 first, int count, u64 ns, u64 *took) {
    TRY(launch_in(spin, streams[0], first));
    TRY(finish(CREATED, 0, BY_CONTEXT));
    u64 start = now();
    for (int i = 0; i < count; i++) TRY(launch_in(spin, streams[0], ns));
    *took = now() - start;
    return finish(CREATED, 0, BY_CONTEXT);
}

/* One lock for all threads, as in an interpreter: one thread launches while it holds the lock, another computes
 * while it holds it. */
static pthread_mutex_t interpreter = PTHREAD_MUTEX_INITIALIZER;
static volatile int stopped;
static u64 computed, longest;

static void *compute(void *nothing) {
    while (!stopped) {
        u64 asked = now();
        pthread_mutex_lock(&interpreter);
        u64 waited = now() - asked;
        if (waited > longest) longest = waited;
        computed++;
        pthread_mutex_unlock(&interpreter);
        pause_for(200000);
    }
    return nothing;
}

static int locked(u64 ns, u64 ms, u64 *launched) {
    pthread_t other;
    int code = 0;
    stopped = 0, computed = 0, longest = 0;
    pthread_create(&other, 0, compute, 0);
    for (u64 start = now(); !code && now() - start < ms * 1000000; ++*launched) {
        pthread_mutex_lock(&interpreter);
        code = launch_in(spin, streams[0], ns);
        pthread_mutex_unlock(&interpreter);
        pause_for(50000);
    }
    stopped = 1;
    pthread_join(other, 0);
    return code ? code : CALL(cuCtxSynchronize);
}

/* Works while children start and end, which launch with handles that are not theirs. */
static int forked(u64 ns, int count, u64 *crashed) {
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 20; k++) TRY(launch_in(spin, streams[0], ns));
        pid_t child = fork();
        if (child == 0) {
            alarm(30); /* kills a child that hangs, which the test then sees */
            launch_in(spin, streams[0], ns);
            CALL(cuStreamSynchronize, streams[0]);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        *crashed += status != 0;
    }
    return CALL(cuCtxSynchronize);
}

/* `rounds` times: `batch` kernels of `ns` in one stream, then for `us` single kernels at intervals of `apart` in
 * another. No wait. */
static int by_turns(u64 rounds, u64 batch, u64 ns, u64 us, u64 apart) {
    for (; rounds; rounds--) {
        for (u64 k = 0; k < batch; k++) TRY(launch_in(spin, streams[0], ns));
        for (u64 start = now(); now() - start < us * 1000;) {
            TRY(launch_in(spin, streams[1], ns));
            for (u64 last = now(); now() - last < apart;) {}
        }
    }
    return CALL(cuCtxSynchronize);
}

/* For `ms`: a kernel of `ns` and after it one of `tail`, then a wait for both by context, stream or event. */
static int tails(u64 ns, u64 tail, u64 ms, int how, u64 *rounds) {
    void *parameters[] = { &tail };
    for (u64 start = now(); now() - start < ms * 1000000; ++*rounds) {
        TRY(launch_in(spin, streams[0], ns));
        TRY(CALL(cuLaunchKernel, spin, 2, 1, 1, 1, 1, 1, 0, streams[0], parameters, (void *)0));
        TRY(finish(CREATED, 0, how));
    }
    return 0;
}

/* For `ms`: `count` kernels of `ns`, then one of `longer`, all of one function, without any wait. */
static int mixed(u64 ns, u64 count, u64 longer, u64 ms) {
    for (u64 start = now(); now() - start < ms * 1000000;)
        for (u64 i = 0; i <= count; i++) TRY(launch_in(spin, streams[0], i < count ? ns : longer));
    return CALL(cuCtxSynchronize);
}

int main(int argc, char **argv) {
    char line[512], name[128];
    setvbuf(stdout, 0, _IOLBF, 0);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) { printf("! %s\n", dlerror()); return 3; }
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, c = 0, d = 0, e = 0, done = 0;
        long f = 0, g = 0;
        if (sscanf(line, "%127s", name) != 1) continue;
        sscanf(line, "%*s %lu %lu %lu %lu %lu %ld %ld", &a, &b, &c, &d, &e, &f, &g);
        if (!strcmp(name, "begin")) printf("%d\n", begin());
        else if (!strcmp(name, "loop")) { /* ns ms most batch host way how */
            struct loop l = { a, b, c, d, e, (int)f, (int)g, 0, 0, 0, 0, 0 };
            loop(&l);
            printf("%d %lu %lu %lu\n", l.code, l.launched, l.wall, l.cpu);
        }
        else if (!strcmp(name, "threads")) { /* count ns ms batch host way how */
            struct loop l = { b, c, 0, d, e, (int)f, (int)g, 0, 0, 0, 0, 0 };
            threads((int)a, l);
        }
        else if (!strcmp(name, "tails")) { int r = tails(a, b, c, (int)d, &done); printf("%d %lu\n", r, done); } /* ns tail ms how */
        else if (!strcmp(name, "mixed")) printf("%d\n", mixed(a, b, c, d)); /* ns count longer ms */
        else if (!strcmp(name, "graph")) { int r = graph(a, (int)b, c, &done); printf("%d %lu\n", r, done); }
        else if (!strcmp(name, "step")) { int no = 0, r = in_step((int)a, b, &no, &done); printf("%d %d %lu\n", r, no, done); }
        else if (!strcmp(name, "crossed")) printf("%d\n", crossed((int)a, b));
        else if (!strcmp(name, "persistent")) { int r = persistent(a, b, &done); printf("%d %lu\n", r, done); }
        else if (!strcmp(name, "contexts")) printf("%d\n", contexts((int)a, (int)b, c));
        else if (!strcmp(name, "passing")) printf("%d\n", passing((int)a, b));
        else if (!strcmp(name, "flood")) { int r = flood(a, (int)b, c, &done); printf("%d %lu\n", r, done); } /* first count ns */
        else if (!strcmp(name, "byturns")) printf("%d\n", by_turns(a, b, c, d, e));
        else if (!strcmp(name, "locked")) { int r = locked(a, b, &done); printf("%d %lu %lu %lu\n", r, done, computed, longest); }
        else if (!strcmp(name, "forked")) { int r = forked(a, (int)b, &done); printf("%d %lu\n", r, done); }
        else printf("! %s\n", name);
    }
    return 0;
}
