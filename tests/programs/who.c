/* Makes the same lookup from libraries and generated code that occupy the same addresses one after the other, and
 * while another thread walks over the loader's objects. With -DGUEST it is such a library; with -DDEFINES that
 * library defines cuMemAlloc_v2, as an interposer of the driver does.
 *
 *   places LIBRARY...     each library is opened, looks up, and is closed; `-` is code generated at the
 *                         first one's address.
 *                         Prints for each: the results of its cuGetProcAddress and its dlsym, and whether it is at the
 *                         first one's address
 *   walk                  lookups by another thread during a walk: the number that returned before it ended,
 *                         and the results */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef int (*get_t)(const char *, void **, int, uint64_t, int *);
typedef void *(*sym_t)(void *, const char *);

#ifdef GUEST
#ifdef DEFINES
int cuMemAlloc_v2(uint64_t *p, size_t bytes) { return 4711; }
#else
int cuMemAllocXXX(uint64_t *p, size_t bytes) { return 4711; }
#endif
void ask(get_t get, sym_t sym, void *driver, void **found) {
    int status;
    get("cuMemAlloc", &found[0], 12020, 0, &status);
    found[1] = sym(driver, "cuMemAlloc_v2");
    found[2] = 0; /* no tail call above: the return address stays in this function */
}
#else

/* Calls its first argument with the others. Its code is position independent. */
extern char thunk[], thunk_end[];
__asm__(".text\nthunk: sub $8, %rsp\n mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n mov %r8, %rcx\n mov %r9, %r8\n"
        " call *%rax\n add $8, %rsp\n ret\nthunk_end:\n");
typedef long (*thunk_t)(void *, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static void *driver;
static get_t get;

static const char *home(void *f) {
    Dl_info in;
    if (!f) return "null";
    if (!dladdr(f, &in)) return "?";
    const char *slash = strrchr(in.dli_fname, '/');
    return slash ? slash + 1 : in.dli_fname;
}

static int places(char **paths) {
    char *first = 0;
    for (; *paths; paths++) {
        void *found[3] = { 0 };
        char *place = 0;
        if (strcmp(*paths, "-")) {
            void *h = dlopen(*paths, RTLD_NOW | RTLD_LOCAL);
            void (*ask)(get_t, sym_t, void *, void **) = h ? (void (*)(get_t, sym_t, void *, void **))dlsym(h, "ask") : 0;
            if (!ask) { printf("%s\n", dlerror()); return 1; }
            place = (char *)((uintptr_t)ask & ~4095ul);
            ask(get, dlsym, driver, found);
            dlclose(h);
            if (dlopen(*paths, RTLD_NOW | RTLD_NOLOAD)) { printf("%s stays\n", *paths); return 1; }
        } else {
            place = mmap(first, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (place == MAP_FAILED) { printf("no code can be made: %s\n", strerror(errno)); return 1; }
            memcpy(place, thunk, thunk_end - thunk);
            int status;
            ((thunk_t)place)(get, (uintptr_t)"cuMemAlloc", (uintptr_t)&found[0], 12020, 0, (uintptr_t)&status);
            found[1] = (void *)((thunk_t)place)(dlsym, (uintptr_t)driver, (uintptr_t)"cuMemAlloc_v2", 0, 0, 0);
            munmap(place, 4096);
        }
        if (!first) first = place;
        printf("%s %s %s\n", home(found[0]), home(found[1]), place == first ? "there" : "elsewhere");
    }
    return 0;
}

static sem_t begun, done;
static _Atomic int came_back;
static void *found[8];

static void *lookups(void *none) {
    static const char *names[] = { "cuMemAlloc", "cuDeviceGetAttribute", "cuCtxSynchronize" };
    static const char *symbols[] = { "cuMemAlloc_v2", "cudnnCreate", "cuMyOwn", "nvmlFoo", "dlNone" };
    int status;
    sem_wait(&begun);
    for (int i = 0; i < 3; i++) get(names[i], &found[i], 12020, 0, &status), came_back++;
    for (int i = 0; i < 5; i++) found[3 + i] = dlsym(driver, symbols[i]), came_back++;
    sem_post(&done);
    return 0;
}

static int walking(struct dl_phdr_info *info, size_t size, void *ended) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    sem_post(&begun);
    sem_timedwait(&done, &until);
    *(int *)ended = came_back;
    return 1;
}

static int walk(void) {
    pthread_t t;
    int back = 0;
    sem_init(&begun, 0, 0);
    sem_init(&done, 0, 0);
    pthread_create(&t, 0, lookups, 0);
    dl_iterate_phdr(walking, &back);
    pthread_join(t, 0);
    printf("%d", back);
    for (int i = 0; i < 8; i++) printf(" %s", home(found[i]));
    printf("\n");
    return 0;
}

int main(int argc, char **argv) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    get = driver ? (get_t)dlsym(driver, "cuGetProcAddress_v2") : 0;
    if (!get) { printf("%s\n", dlerror()); return 1; }
    void *before;
    int status;
    get("cuMemAlloc", &before, 12020, 0, &status); /* the library caches the result of the first lookup */
    dlsym(driver, "cuMemAlloc_v2");
    dlsym(driver, "getpid");
    return !strcmp(argv[1], "walk") ? walk() : places(argv + 2);
}
#endif
