/* A program that opens libraries in all possible ways and prints the results; compiled with -rdynamic. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int whose(void) { return 2; }

static const char *home(void *f) {
    Dl_info in;
    if (!f) return "null";
    if (!dladdr(f, &in)) return "?";
    const char *slash = strrchr(in.dli_fname, '/');
    return slash ? slash + 1 : in.dli_fname;
}

static int call(void *library, const char *name, uint64_t argument) {
    int (*f)(uint64_t) = library ? (int (*)(uint64_t))dlsym(library, name) : 0;
    return f ? f(argument) : -1;
}

/* ---- many threads, each with its own lookups ---- */
static uint64_t piece;
static _Atomic uint64_t granted;
static _Atomic int strange;
static void *grab(void *barrier) {
    pthread_barrier_wait(barrier);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
    int (*init)(int), (*retain)(void **, int), (*current)(void *), (*alloc)(uint64_t *, uint64_t);
    int s;
    get("cuInit", (void **)&init, 12020, 0, &s);
    get("cuDevicePrimaryCtxRetain", (void **)&retain, 12020, 0, &s);
    get("cuCtxSetCurrent", (void **)&current, 12020, 0, &s);
    get("cuMemAlloc", (void **)&alloc, 12020, 0, &s);
    uint64_t p;
    int code = init(0);
    if (!code) code = retain(&context, 0);
    if (!code) code = current(context);
    while (!code) if (!(code = alloc(&p, piece))) granted += piece;
    if (code != 2) strange = code;
    return 0;
}

/* ---- code of the driver patched in place, as hotpatching tools do ---- */
static unsigned char *patched, saved[14], jump[14] = { 0xff, 0x25, 0, 0, 0, 0 };
static int detours;
static void write_code(const unsigned char *bytes) {
    uintptr_t page = (uintptr_t)patched & ~4095ul;
    mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC);
    memcpy(patched, bytes, 14);
    mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
}
static int detour(uint64_t *p, uint64_t bytes) {
    detours++;
    write_code(saved);
    int code = ((int (*)(uint64_t *, uint64_t))patched)(p, bytes);
    write_code(jump);
    return code;
}
static void patch(void *at) {
    patched = at;
    memcpy(saved, patched, 14);
    void *to = (void *)detour;
    memcpy(jump + 6, &to, 8);
    write_code(jump);
}
static uintptr_t driver_base;
static int find_driver(struct dl_phdr_info *in, size_t size, void *data) {
    if (strstr(in->dlpi_name, "libcuda.so")) driver_base = in->dlpi_addr;
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    void *library = 0;
    for (int i = 1; i < argc; i++) {
        const char *w = argv[i];
        if (!strcmp(w, "open")) library = dlopen(argv[++i], RTLD_NOW);
        else if (!strcmp(w, "deep")) library = dlopen(argv[++i], RTLD_NOW | RTLD_DEEPBIND);
        else if (!strcmp(w, "set")) putenv(argv[++i]); /* NAME=VALUE */
        else if (!strcmp(w, "base")) library = dlmopen(LM_ID_BASE, argv[++i], RTLD_NOW);
        else if (!strcmp(w, "new")) {
            library = dlmopen(LM_ID_NEWLM, argv[++i], RTLD_NOW);
            if (!library) { const char *e = dlerror(); printf("refused: %s\n", e ? e : "without words"); return 0; }
        }
        else if (!strcmp(w, "alloc")) printf("%d\n", call(library, "guest_alloc", strtoull(argv[++i], 0, 10)));
        else if (!strcmp(w, "busy")) printf("%d\n", call(library, "guest_work", strtoull(argv[++i], 0, 10)));
        else if (!strcmp(w, "bound")) printf("%d\n", call(library, "bound_to", 0));
        else if (!strcmp(w, "made")) { int (*f)(void) = (int (*)(void))dlsym(library ? library : RTLD_DEFAULT, "guest_made"); printf("%d\n", f ? f() : -1); }
        else if (!strcmp(w, "inner")) { void *(*f)(const char *) = (void *(*)(const char *))dlsym(library, "guest_open"); printf("%s\n", f(argv[++i]) ? "opened" : dlerror()); }
        else if (!strcmp(w, "in")) { /* name in that library: prints its code, calls it with words */
            const char *n = argv[++i];
            dlerror();
            void *f = dlsym(library, n);
            const char *e = dlerror();
            printf("%s %s\n", home(f), e ? e : "-");
        }
        else if (!strcmp(w, "default")) { dlerror(); void *f = dlsym(RTLD_DEFAULT, argv[++i]); printf("%s %s\n", home(f), dlerror() ? "words" : "silent"); }
        else if (!strcmp(w, "loaders")) { /* the owner of the loader's functions, by a handle of the C library */
            void *c = dlopen("libc.so.6", RTLD_NOW);
            printf("%s %s %s\n", home(dlsym(c, "dlsym")), home(dlvsym(c, "dlopen", "GLIBC_2.2.5")), home(dlsym(c, "dlerror")));
        }
        else if (!strcmp(w, "threads") || !strcmp(w, "one-first")) { /* all at the same time, or one first */
            pthread_barrier_t barrier;
            pthread_t t[12];
            piece = strtoull(argv[++i], 0, 10);
            pthread_barrier_init(&barrier, 0, *w == 't' ? 12 : 1);
            for (int k = 0; k < 12; k++) {
                pthread_create(&t[k], 0, grab, &barrier);
                if (!k && *w == 'o') usleep(500000);
            }
            for (int k = 0; k < 12; k++) pthread_join(t[k], 0);
            printf("%lu %d %d\n", granted, strange, getpid());
            getchar();
        }
        else if (!strcmp(w, "twice")) { /* one thread after another */
            pthread_barrier_t barrier;
            piece = strtoull(argv[++i], 0, 10);
            pthread_barrier_init(&barrier, 0, 1);
            for (int k = 0; k < 2; k++) grab(&barrier);
            printf("%lu %d %d\n", granted, strange, getpid());
            getchar();
        }
        else if (!strcmp(w, "forks")) { /* that number of children, each with its own lookups, after the parent's */
            int n = atoi(argv[++i]), bad = 0, status;
            void *driver = dlopen("libcuda.so.1", RTLD_NOW);
            dlsym(driver, "cuMemAlloc_v2");
            library = dlopen(argv[++i], RTLD_NOW);
            while (n--) {
                pid_t child = fork();
                if (!child) { alarm(50); _exit(call(library, "guest_alloc", 1ul << 30) == 2 && call(library, "guest_alloc", 1 << 20) == 0 ? 0 : 1); }
                if (waitpid(child, &status, 0) != child || status) bad++;
            }
            printf("%d\n", bad);
        }
        else if (!strcmp(w, "patch-found")) { void *driver = dlopen("libcuda.so.1", RTLD_NOW); patch(dlsym(driver, "cuMemAlloc_v2")); }
        else if (!strcmp(w, "patch-driver")) { /* at an offset in the driver's file */
            dlopen("libcuda.so.1", RTLD_NOW);
            dl_iterate_phdr(find_driver, 0);
            patch((void *)(driver_base + strtoull(argv[++i], 0, 16)));
        }
        else if (!strcmp(w, "interposed")) { /* counters of interposer.c: calls, depth */
            int *calls = dlsym(RTLD_DEFAULT, "interposer_calls"), *deepest = dlsym(RTLD_DEFAULT, "interposer_deepest");
            printf("%d %d\n", calls ? *calls : -1, deepest ? *deepest : -1);
        }
        else if (!strcmp(w, "detours")) printf("%d\n", detours);
        else return 2;
        if (!library && strchr("odbn", *w) && strcmp(w, "default") && strcmp(w, "detours") && strcmp(w, "one-first")) { printf("%s\n", dlerror()); return 1; }
    }
    return 0;
}
