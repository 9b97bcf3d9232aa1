/* A program on the device that obeys commands: one command per line on stdin, one answer per line on stdout, the
 * driver's code first. Its first argument is the lookup path to the driver's functions (the door). It knows nothing
 * of vgpu.
 * Not here: loops of many processes (storm.c), details of lookups (ask.c). */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_NAME 128
typedef uint64_t u64;
struct location { int kind, id; };
struct properties { int type, handles; struct location location; void *win32; unsigned char flags[8]; };
struct access { struct location location; int flags; };
struct pool_properties { int alloc, handles; struct location location; void *win32; size_t max; unsigned char reserved[56]; };
struct array { size_t width, height; unsigned format, channels; };

/* Names that the linked variant of this program refers to; the other variants look up the same names. */
#define FUNCTIONS(F) \
    F(cuInit) F(cuDeviceGet) F(cuDeviceGetCount) F(cuDeviceTotalMem_v2) F(cuDevicePrimaryCtxRetain) \
    F(cuDevicePrimaryCtxRelease_v2) F(cuDevicePrimaryCtxReset_v2) F(cuCtxCreate_v2) F(cuCtxDestroy_v2) \
    F(cuCtxSetCurrent) F(cuCtxSynchronize) F(cuMemGetInfo_v2) F(cuMemAlloc_v2) F(cuMemFree_v2) F(cuMemAllocPitch_v2) \
    F(cuMemAllocAsync) F(cuMemFreeAsync) F(cuMemAllocAsync_ptsz) F(cuMemFreeAsync_ptsz) F(cuMemAllocFromPoolAsync) \
    F(cuMemPoolCreate) F(cuMemPoolDestroy) F(cuStreamSynchronize) F(cuMemAddressReserve) F(cuMemAddressFree) \
    F(cuMemCreate) F(cuMemRelease) F(cuMemMap) F(cuMemUnmap) F(cuMemSetAccess) F(cuMemRetainAllocationHandle) \
    F(cuModuleLoadData) F(cuModuleGetFunction) F(cuLaunchKernel) F(cuLaunchKernel_ptsz) F(cuLaunchKernelEx) \
    F(cuLaunchKernelEx_ptsz) F(cuLaunchCooperativeKernel) F(cuMemHostAlloc) \
    F(cuMemFreeHost) F(cuMemAllocManaged) F(cuDeviceGetUuid) F(cuArrayCreate_v2) F(cuArrayDestroy)

#ifdef LINKED
#define DECLARE(name) int name();
FUNCTIONS(DECLARE)
#define ROW(name) { #name, (void *)name },
static struct { const char *name; void *at; } linked[] = { FUNCTIONS(ROW) };
#endif

static const char *door;
static void *driver, *nvml;

static void *library(void) {
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW | (strcmp(door, "default") ? RTLD_LOCAL : RTLD_GLOBAL));
    if (!driver) { printf("! %s\n", dlerror()); exit(3); }
    return driver;
}

/* Name, version and flags as cuGetProcAddress expects them: the base name, and flag 2 for a per-thread twin. */
static void *ask_driver(const char *name, int second) {
    char base[MAX_NAME];
    snprintf(base, sizeof base, "%s", name);
    u64 flags = 0;
    int version = !strncmp(name, "cuCtxCreate", 11) ? 3020 : 12020;
    char *tail = strstr(base, "_ptsz");
    if (tail) { *tail = 0; flags = 2; }
    tail = strstr(base, "_v2");
    if (tail) *tail = 0;
    void *found = 0;
    if (second) {
        int (*get)(const char *, void **, int, u64, int *) = dlsym(library(), "cuGetProcAddress_v2");
        int status;
        get(base, &found, version, flags, &status);
    } else {
        int (*get)(const char *, void **, int, u64) = dlsym(library(), "cuGetProcAddress");
        get(base, &found, version, flags);
    }
    return found;
}

static void *find(const char *name) {
    if (!strncmp(name, "nvml", 4)) {
        if (!nvml) nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!nvml) { printf("! %s\n", dlerror()); exit(3); }
        return dlsym(nvml, name);
    }
    if (!strcmp(door, "dlvsym")) return dlvsym(library(), name, "GLIBC_2.2.5");
    if (!strcmp(door, "default")) { library(); return dlsym(RTLD_DEFAULT, name); }
    if (!strcmp(door, "get1")) return ask_driver(name, 0);
    if (!strcmp(door, "get2")) return ask_driver(name, 1);
#ifdef LINKED
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++)
        if (!strcmp(linked[i].name, name)) return linked[i].at;
#endif
    return dlsym(library(), name);
}

/* Finds the function, or prints a line that it is missing. */
static void *need(const char *name) {
    void *f = find(name);
    if (!f) { printf("! no %s\n", name); exit(3); }
    return f;
}
/* Calls through the lookup path. Variadic on purpose: integers and pointers only. */
#define CALL(name, ...) ({ static int (*f_)(); if (!f_) f_ = need(#name); f_(__VA_ARGS__); })

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

struct config { unsigned gx, gy, gz, bx, by, bz, shared; void *stream, *attributes; unsigned count; };
enum { PLAIN, OWN_STREAM, COOPERATIVE, HUGE_GRID, EXTENDED, EXTENDED_OWN_STREAM, RETAINING };

/* Launches one kernel of `ns` by one of the possible functions. */
static int launch(u64 ns, int way) {
    static void *module, *kernel;
    int code;
    if (!kernel && (code = CALL(cuModuleLoadData, &module, PTX))) return code;
    if (!kernel && (code = CALL(cuModuleGetFunction, &kernel, module, "vgpu_spin_ns"))) return code;
    void *parameters[] = { &ns };
    struct config one = { 1, 1, 1, 1, 1, 1, 0, 0, 0, 0 };
    switch (way) {
    case OWN_STREAM: return CALL(cuLaunchKernel_ptsz, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
    case COOPERATIVE: return CALL(cuLaunchCooperativeKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters);
    case HUGE_GRID: return CALL(cuLaunchKernel, kernel, 0x7fffffff, 65535, 65535, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
    case EXTENDED: return CALL(cuLaunchKernelEx, &one, kernel, parameters, (void *)0);
    case RETAINING: { /* as a library does that retains the primary context for one call */
        void *context;
        if ((code = CALL(cuDevicePrimaryCtxRetain, &context, 0))) return code;
        code = CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
        int released = CALL(cuDevicePrimaryCtxRelease_v2, 0);
        return code ? code : released;
    }
    case EXTENDED_OWN_STREAM: return CALL(cuLaunchKernelEx_ptsz, &one, kernel, parameters, (void *)0);
    default: return CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
    }
}

/* Launches kernels of `ns` for `ms`, with a wait after every `batch` kernels. */
static void work(u64 ns, u64 ms, u64 batch, int way) {
    u64 begin = now(), launched = 0;
    int code = 0;
    while (!code && now() - begin < ms * 1000000) {
        code = launch(ns, way);
        if (!code && ++launched % batch == 0) code = CALL(cuCtxSynchronize);
    }
    if (!code) code = CALL(cuCtxSynchronize);
    printf("%d %lu %lu\n", code, launched, now() - begin);
}

static volatile int alarms;
static void on_alarm(int s) { alarms++; }

extern char **environ;

/* As programs do that show their own title: moves the environment to the heap and overwrites its old place with
 * zeros. */
static void retitle(void) {
    int n = 0;
    while (environ[n]) n++;
    char **moved = calloc(n + 1, sizeof *moved);
    for (int i = 0; i < n; i++) {
        moved[i] = strdup(environ[i]);
        memset(environ[i], 0, strlen(environ[i]));
    }
    environ = moved;
}

/* Prints everything of the process that a guest library must leave alone, as one line. */
static void self(void) {
    mode_t mask = umask(0);
    umask(mask);
    u64 hash = 14695981039346656037u;
    for (char **e = environ; *e; e++)
        for (char *c = *e; ; c++) { hash = (hash ^ (unsigned char)*c) * 1099511628211u; if (!*c) break; }
    u64 handlers = 0;
    for (int s = 1; s < 65; s++) {
        struct sigaction act;
        memset(&act, 0, sizeof act);
        if (sigaction(s, 0, &act) == 0) handlers = handlers * 31 + (u64)act.sa_handler + (u64)act.sa_flags;
    }
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, 0, &blocked);
    u64 mask_bits = 0;
    for (int s = 1; s < 65; s++) mask_bits = mask_bits * 2 + (sigismember(&blocked, s) == 1);
    char cwd[4096];
    if (!getcwd(cwd, sizeof cwd)) cwd[0] = 0;
    printf("0 umask=%o env=%lx signals=%lx blocked=%lx locale=%s cwd=%s\n", mask, hash, handlers, mask_bits,
           setlocale(LC_ALL, 0), cwd);
}

static int entries(const char *path) {
    DIR *d = opendir(path);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Number of open descriptors above stderr that an exec would inherit, and of all open descriptors. */
static void descriptors(void) {
    int all = 0, leaking = 0;
    char names[2048] = "";
    for (int fd = 3; fd < 1024; fd++) {
        int flags = fcntl(fd, F_GETFD);
        if (flags < 0) continue;
        all++;
        if (!(flags & FD_CLOEXEC)) {
            char link[64], target[512] = "";
            leaking++;
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            if (readlink(link, target, sizeof target - 1) > 0 && strlen(names) < 1500) { strcat(names, " "); strcat(names, target); }
        }
    }
    printf("0 %d %d%s\n", all, leaking, names);
}

static void *watched, *events; /* the device of the event set, and the set */
static void *device(u64 i) { static void *d[64]; if (!d[i]) ((int (*)())need("nvmlDeviceGetHandleByIndex_v2"))((int)i, &d[i]); return d[i]; }

int main(int argc, char **argv) {
    char line[512], name[MAX_NAME], word[MAX_NAME];
    u64 a, b, c, d;
    door = argc > 1 ? argv[1] : "dlsym";
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        a = b = c = d = 0;
        word[0] = 0;
        if (sscanf(line, "%127s", name) != 1) continue;
        sscanf(line, "%*s %lu %lu %lu %lu", &a, &b, &c, &d);
        sscanf(line, "%*s %127s", word);
        if (!strcmp(name, "init")) printf("%d\n", CALL(cuInit, (unsigned)a));
        else if (!strcmp(name, "count")) { int n = -1; int r = CALL(cuDeviceGetCount, &n); printf("%d %d\n", r, n); }
        else if (!strcmp(name, "uuid")) {
            unsigned char u[16] = {0};
            int r = CALL(cuDeviceGetUuid, u, (int)a);
            printf("%d GPU-", r);
            for (int i = 0; i < 16; i++) printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
            printf("\n");
        }
        else if (!strcmp(name, "retain")) {
            void *ctx = 0;
            int r = CALL(cuDevicePrimaryCtxRetain, &ctx, (int)a);
            if (!r) r = CALL(cuCtxSetCurrent, ctx);
            printf("%d %lu\n", r, (u64)ctx);
        }
        else if (!strcmp(name, "primary-release")) printf("%d\n", CALL(cuDevicePrimaryCtxRelease_v2, (int)a));
        else if (!strcmp(name, "primary-reset")) printf("%d\n", CALL(cuDevicePrimaryCtxReset_v2, (int)a));
        else if (!strcmp(name, "create-context")) {
            void *ctx = 0;
            int r = CALL(cuCtxCreate_v2, &ctx, 0, (int)a);
            printf("%d %lu\n", r, (u64)ctx);
        }
        else if (!strcmp(name, "destroy-context")) printf("%d\n", CALL(cuCtxDestroy_v2, (void *)a));
        else if (!strcmp(name, "current")) printf("%d\n", CALL(cuCtxSetCurrent, (void *)a));
        else if (!strcmp(name, "info")) {
            size_t f = 0, t = 0;
            int r = CALL(cuMemGetInfo_v2, &f, &t);
            printf("%d %lu %lu\n", r, f, t);
        }
        else if (!strcmp(name, "info-null")) { /* argument: the null outputs: 1 free, 2 total, 3 both */
            size_t f = 0, t = 0;
            int r = CALL(cuMemGetInfo_v2, a & 1 ? (size_t *)0 : &f, a & 2 ? (size_t *)0 : &t);
            printf("%d %lu %lu\n", r, f, t);
        }
        else if (!strcmp(name, "total")) { size_t t = 0; int r = CALL(cuDeviceTotalMem_v2, &t, (int)a); printf("%d %lu\n", r, t); }
        else if (!strcmp(name, "alloc")) { u64 p = 0; int r = CALL(cuMemAlloc_v2, &p, a); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "free")) printf("%d\n", CALL(cuMemFree_v2, a));
        else if (!strcmp(name, "managed")) { u64 p = 0; int r = CALL(cuMemAllocManaged, &p, a, 1); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "pitch")) {
            u64 p = 0; size_t pitch = 0;
            int r = CALL(cuMemAllocPitch_v2, &p, &pitch, a, b, 4);
            printf("%d %lu %lu\n", r, p, pitch);
        }
        else if (!strcmp(name, "array")) {
            struct array desc = { a, b, 0x20, 1 };
            void *h = 0;
            int r = CALL(cuArrayCreate_v2, &h, &desc);
            printf("%d %lu\n", r, (u64)h);
        }
        else if (!strcmp(name, "array-destroy")) printf("%d\n", CALL(cuArrayDestroy, (void *)a));
        else if (!strcmp(name, "suspend")) { /* step (state, lock, checkpoint, restore, unlock, thread) and process */
            int number = -1, pid = 0;
            sscanf(line, "%*s %*s %d", &pid);
            int r = !strcmp(word, "state") ? CALL(cuCheckpointProcessGetState, pid, &number)
                : !strcmp(word, "thread") ? CALL(cuCheckpointProcessGetRestoreThreadId, pid, &number)
                : !strcmp(word, "lock") ? CALL(cuCheckpointProcessLock, pid, (void *)0)
                : !strcmp(word, "checkpoint") ? CALL(cuCheckpointProcessCheckpoint, pid, (void *)0)
                : !strcmp(word, "restore") ? CALL(cuCheckpointProcessRestore, pid, (void *)0)
                : CALL(cuCheckpointProcessUnlock, pid, (void *)0);
            printf("%d %d\n", r, number);
        }
        else if (!strcmp(name, "fill")) printf("%d\n", CALL(cuMemsetD8_v2, a, (unsigned char)b, (size_t)c)); /* byte b over c bytes */
        else if (!strcmp(name, "byte")) { unsigned char v = 0; int r = CALL(cuMemcpyDtoH_v2, &v, a, (size_t)1); printf("%d %u\n", r, v); }
        else if (!strcmp(name, "sync")) printf("%d\n", CALL(cuCtxSynchronize));
        else if (!strcmp(name, "async")) { u64 p = 0; int r = CALL(cuMemAllocAsync, &p, a, (void *)0); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "free-async")) { int r = CALL(cuMemFreeAsync, a, (void *)0); if (!r) r = CALL(cuStreamSynchronize, (void *)0); printf("%d\n", r); }
        else if (!strcmp(name, "async-own")) { u64 p = 0; int r = CALL(cuMemAllocAsync_ptsz, &p, a, (void *)0); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "free-async-own")) { int r = CALL(cuMemFreeAsync_ptsz, a, (void *)0); if (!r) r = CALL(cuStreamSynchronize, (void *)2); printf("%d\n", r); }
        else if (!strcmp(name, "pool")) {
            struct pool_properties p = { 1, 0, { 1, (int)a }, 0, 0, {0} };
            void *pool = 0;
            int r = CALL(cuMemPoolCreate, &pool, &p);
            printf("%d %lu\n", r, (u64)pool);
        }
        else if (!strcmp(name, "pool-destroy")) printf("%d\n", CALL(cuMemPoolDestroy, (void *)a));
        else if (!strcmp(name, "from-pool")) { u64 p = 0; int r = CALL(cuMemAllocFromPoolAsync, &p, a, (void *)b, (void *)0); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "reserve")) { u64 p = 0; int r = CALL(cuMemAddressReserve, &p, a, 0ul, 0ul, 0ul); printf("%d %lu\n", r, p); }
        else if (!strcmp(name, "unreserve")) printf("%d\n", CALL(cuMemAddressFree, a, b));
        else if (!strcmp(name, "create")) { /* bytes, location type (1 device, 2 host), its number */
            struct properties p;
            memset(&p, 0, sizeof p);
            p.type = 1;
            p.location.kind = (int)b;
            p.location.id = (int)c;
            u64 h = 0;
            int r = CALL(cuMemCreate, &h, a, &p, 0ul);
            printf("%d %lu\n", r, h);
        }
        else if (!strcmp(name, "release")) printf("%d\n", CALL(cuMemRelease, a));
        else if (!strcmp(name, "map")) printf("%d\n", CALL(cuMemMap, a, b, 0ul, c, 0ul));
        else if (!strcmp(name, "unmap")) printf("%d\n", CALL(cuMemUnmap, a, b));
        else if (!strcmp(name, "allow")) {
            struct access desc = { { 1, (int)c }, 3 };
            printf("%d\n", CALL(cuMemSetAccess, a, b, &desc, 1ul));
        }
        else if (!strcmp(name, "retain-handle")) { u64 h = 0; int r = CALL(cuMemRetainAllocationHandle, &h, (void *)a); printf("%d %lu\n", r, h); }
        else if (!strcmp(name, "host")) { void *p = 0; int r = CALL(cuMemHostAlloc, &p, a, 0); printf("%d %lu\n", r, (u64)p); }
        else if (!strcmp(name, "host-free")) printf("%d\n", CALL(cuMemFreeHost, (void *)a));
        else if (!strcmp(name, "launch")) { int r = launch(a, 0); if (!r) r = CALL(cuCtxSynchronize); printf("%d\n", r); }
        else if (!strcmp(name, "launch-own")) { int r = launch(a, 1); if (!r) r = CALL(cuCtxSynchronize); printf("%d\n", r); }
        else if (!strcmp(name, "ahead")) { /* time to launch b kernels of a ns without any wait */
            u64 begin = now();
            int r = 0;
            for (u64 i = 0; !r && i < b; i++) r = launch(a, 0);
            u64 took = now() - begin;
            if (!r) r = CALL(cuCtxSynchronize);
            printf("%d %lu\n", r, took);
        }
        else if (!strcmp(name, "work")) work(a, b, c, (int)d);
        else if (!strcmp(name, "nvinit")) printf("%d\n", CALL(nvmlInit_v2));
        else if (!strcmp(name, "nvinit1")) printf("%d\n", CALL(nvmlInit));
        else if (!strcmp(name, "nvinitflags")) printf("%d\n", CALL(nvmlInitWithFlags, 0));
        else if (!strcmp(name, "nvshutdown")) printf("%d\n", CALL(nvmlShutdown));
        else if (!strcmp(name, "nvcount")) { unsigned n = 0; int r = CALL(nvmlDeviceGetCount_v2, &n); printf("%d %u\n", r, n); }
        else if (!strcmp(name, "nvmem")) {
            unsigned long long m[3] = {0};
            int r = CALL(nvmlDeviceGetMemoryInfo, device(a), m);
            printf("%d %llu %llu %llu\n", r, m[0], m[1], m[2]); /* total free used */
        }
        else if (!strcmp(name, "nvenergy")) { unsigned long long mj = 0; int r = CALL(nvmlDeviceGetTotalEnergyConsumption, device(a), &mj); printf("%d %llu\n", r, mj); }
        else if (!strcmp(name, "nvmem2")) {
            struct { unsigned version; unsigned long long total, reserved, free, used; } m = { 0x2000028, 0, 0, 0, 0 };
            int r = CALL(nvmlDeviceGetMemoryInfo_v2, device(a), &m);
            printf("%d %llu %llu %llu %llu\n", r, m.total, m.free, m.used, m.reserved);
        }
        else if (!strcmp(name, "nvprocs")) {
            struct { unsigned pid; unsigned long long used; unsigned gi, ci; } p[128];
            unsigned n = 128;
            int r = CALL(nvmlDeviceGetComputeRunningProcesses_v3, device(a), &n, p);
            printf("%d", r);
            for (unsigned i = 0; !r && i < n; i++) printf(" %u %llu", p[i].pid, p[i].used);
            printf("\n");
        }
        else if (!strcmp(name, "nvwatch")) { /* from now on a set of events gets the Xids of this device */
            watched = device(a);
            int r = CALL(nvmlEventSetCreate, &events);
            if (!r) r = CALL(nvmlDeviceRegisterEvents, watched, 8ul, events);
            printf("%d\n", r);
        }
        else if (!strcmp(name, "nvevent")) { /* waits a ms; prints type, data, 1 for the watched device, instances */
            struct { void *device; u64 type, data; unsigned gi, ci; } e = { 0, 0, 0, 0, 0 };
            int r = CALL(nvmlEventSetWait_v2, events, &e, (unsigned)a);
            printf("%d %lu %lu %d %u %u\n", r, e.type, e.data, e.device == watched, e.gi, e.ci);
        }
        else if (!strcmp(name, "where")) { /* the object that contains a name's function */
            Dl_info in = {0};
            void *f = find(word);
            if (f) dladdr(f, &in);
            printf("%d %s\n", f ? 0 : 1, f && in.dli_fname ? strrchr(in.dli_fname, '/') ? strrchr(in.dli_fname, '/') + 1 : in.dli_fname : "-");
        }
        else if (!strcmp(name, "interposed")) { /* counters of interposer.c: calls, depth */
            int *calls = dlsym(RTLD_DEFAULT, "interposer_calls"), *deepest = dlsym(RTLD_DEFAULT, "interposer_deepest");
            if (calls && deepest) printf("0 %d %d\n", *calls, *deepest); else printf("1\n");
        }
        else if (!strcmp(name, "self")) self();
        else if (!strcmp(name, "threads")) printf("0 %d\n", entries("/proc/self/task"));
        else if (!strcmp(name, "descriptors")) descriptors();
        else if (!strcmp(name, "close-all")) { /* as a program does that becomes a daemon */
            syscall(SYS_close_range, 3u, ~0u, 0u);
            printf("0\n");
        }
        else if (!strcmp(name, "standard")) { /* targets of the three standard descriptors */
            printf("0");
            for (int fd = 0; fd < 3; fd++) {
                char link[64], target[512] = "";
                snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
                ssize_t n = readlink(link, target, sizeof target - 1);
                printf(" %s", n > 0 ? strrchr(target, '/') ? strrchr(target, '/') : "pipe" : "closed");
            }
            printf("\n");
        }
        else if (!strcmp(name, "alarms")) { /* a signal every a microseconds, as profilers send */
            struct sigaction act;
            memset(&act, 0, sizeof act);
            act.sa_handler = on_alarm;
            act.sa_flags = SA_RESTART;
            sigaction(SIGALRM, &act, 0);
            struct itimerval every = { { 0, (long)a }, { 0, (long)a } };
            printf("%d\n", setitimer(ITIMER_REAL, &every, 0));
        }
        else if (!strcmp(name, "alarmed")) printf("0 %d\n", alarms);
        else if (!strcmp(name, "fork")) { /* from here on the child answers, until it is told to exit */
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) { printf("0 %d\n", getpid()); continue; }
            int status = 0;
            waitpid(child, &status, 0);
            printf("0 %d\n", status);
        }
        else if (!strcmp(name, "fork-leave")) { /* the parent ends at once, and the child answers */
            fflush(stdout);
            if (fork()) _exit(0);
            printf("0 %d\n", getpid());
        }
        else if (!strcmp(name, "setenv")) { /* NAME=VALUE */
            char *value = strchr(word, '=');
            *value++ = 0;
            printf("%d\n", setenv(word, value, 1));
        }
        else if (!strcmp(name, "unsetenv")) printf("%d\n", unsetenv(word));
        else if (!strcmp(name, "retitle")) { retitle(); printf("0\n"); }
        else if (!strcmp(name, "exit")) { fflush(stdout); _exit((int)a); }
        else { printf("! not a command: %s", line); return 4; }
    }
    return 0;
}
