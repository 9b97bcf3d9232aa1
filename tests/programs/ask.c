/* Makes lookups through the loader, one per argument, and prints the answers for the test to judge. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char *home(void *f) {
    Dl_info in;
    if (!f) return "null";
    if (!dladdr(f, &in)) return "?";
    const char *slash = strrchr(in.dli_fname, '/');
    return slash ? slash + 1 : in.dli_fname;
}

static void foreign(const char *path) {
    static const char *names[] = { "cudnnCreate", "curl_easy_init", "cublasCreate_v2", "cuMyOwn", "cu", "nv", "nvtxMarkA",
                                   "nvrtcVersion", "cuMemAlloc_v9", "nvmlFoo", "c", "cuInitialise" };
    void *h = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!h) { printf("%s\n", dlerror()); exit(1); }
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        int (*byhandle)(void) = (int (*)(void))dlsym(h, names[i]);
        int (*bydefault)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, names[i]);
        int (*byversion)(void) = (int (*)(void))dlvsym(h, names[i], "ANY_1.0");
        printf("%d ", byhandle && byhandle == bydefault && byhandle == byversion ? byhandle() : -1);
    }
    dlerror();
    void *none = dlsym(h, "cudnnNoSuchFunction");
    const char *words = dlerror();
    printf("%s %s\n", none ? "found" : "none", words && strstr(words, "cudnnNoSuchFunction") ? "named" : "silent");
}

static volatile int stop;
static _Atomic long asked;
static void *hammer(void *h) {
    void *first = dlsym(h, "cuMemAlloc_v2");
    while (!stop) {
        if (dlsym(h, "cuMemAlloc_v2") != first || !dlsym(RTLD_DEFAULT, "getpid") || dlsym(h, "cudnnNone")) return (void *)1;
        dlsym(RTLD_NEXT, "cuInit");
        asked++;
    }
    return 0;
}
static void *reopen(void *path) {
    while (!stop) {
        void *h = dlopen(path, RTLD_NOW);
        if (!h || !dlsym(h, "cudnnCreate") || dlclose(h)) return (void *)1;
    }
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        const char *w = argv[i];
        if (!strcmp(w, "getppid")) printf("%d\n", getppid());
        else if (!strcmp(w, "default")) { /* is there a driver in the global scope? */
            dlerror();
            void *f = dlsym(RTLD_DEFAULT, argv[++i]);
            const char *words = dlerror();
            printf("%s %s\n", home(f), words ? "words" : "silent");
        }
        else if (!strcmp(w, "next")) { const char *n = argv[++i]; void *f = dlsym(RTLD_NEXT, n); printf("%s %s\n", home(f), dlsym(RTLD_NEXT, n) == f ? "same" : "other"); }
        else if (!strcmp(w, "load")) { if (!dlopen(argv[++i], RTLD_NOW | RTLD_GLOBAL)) { printf("%s\n", dlerror()); return 1; } }
        else if (!strcmp(w, "in")) { void *h = dlopen(argv[++i], RTLD_NOW); const char *n = argv[++i]; printf("%s\n", home(h ? dlsym(h, n) : 0)); }
        else if (!strcmp(w, "early")) { int (*f)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "made_early"); printf("%d\n", f ? f() : -1); }
        else if (!strcmp(w, "foreign")) foreign(argv[++i]);
        else if (!strcmp(w, "reload")) { /* closes the driver, loads another object at its addresses, opens the driver again */
            void *h = dlopen("libcuda.so.1", RTLD_NOW);
            printf("%s ", home(h ? dlsym(h, "cuMemAlloc_v2") : 0));
            dlclose(h);
            void *there = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
            if (there) dlclose(there);
            for (int k = 0; k < 64; k++) mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            dlopen(argv[++i], RTLD_NOW);
            h = dlopen("libcuda.so.1", RTLD_NOW);
            int (*init)(unsigned) = (int (*)(unsigned))dlsym(h, "cuInit");
            int (*total)(size_t *, int) = (int (*)(size_t *, int))dlsym(h, "cuDeviceTotalMem_v2");
            size_t bytes = 0;
            int code = init(0);
            if (!code) code = total(&bytes, 0);
            printf("%s %d %zu\n", home(dlsym(h, "cuMemAlloc_v2")), code, bytes);
        }
        else if (!strcmp(w, "hammer")) { /* arguments: milliseconds, a library to load and unload */
            int ms = atoi(argv[++i]);
            char *path = argv[++i];
            pthread_t t[4];
            void *h = dlopen("libcuda.so.1", RTLD_NOW), *bad, *sum = 0;
            for (int k = 0; k < 3; k++) pthread_create(&t[k], 0, hammer, h);
            pthread_create(&t[3], 0, reopen, path);
            usleep((unsigned)ms * 1000);
            stop = 1;
            for (int k = 0; k < 4; k++) { pthread_join(t[k], &bad); if (bad) sum = bad; }
            printf("%s %s\n", sum ? "wrong" : "right", asked > 1000 ? "many" : "few");
        }
        else return 2;
    }
    return 0;
}
