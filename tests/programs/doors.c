/* Looks up every function of the table through every lookup path and prints the answers as object and offset.
 * The test generates two macros in front of this text. ROWS(F) expands F(library, name) for each row. BASES(F)
 * expands F(name, known) for each name that cuGetProcAddress is asked for; unknown names get a suffix and few
 * versions. A line is printed where an answer differs from that of the version before.
 *
 *   breaks            CUDA versions at which any answer of cuGetProcAddress_v2 changes
 *   ask VERSION...    every row through every lookup path, cuGetProcAddress for these versions
 *   call VERSION...   calls each answer with zeroes; the stand-in driver reports which function that was */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DECLARE(library, name) extern int name() __attribute__((weak));
ROWS(DECLARE)
#define ROW(library, name) { library, #name, (void *)name },
static const struct { int library; const char *name; void *linked; } rows[] = { ROWS(ROW) };
#define BASE(name, known) { #name, known },
static const struct { const char *name; int known; } bases[] = { BASES(BASE) };
#define COUNT(list) (sizeof list / sizeof *list)

typedef int (*v1)(const char *, void **, int, uint64_t);
typedef int (*v2)(const char *, void **, int, uint64_t, int *);
typedef int (*any)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

static struct { char name[64]; uintptr_t base, end; } objects[256];
static int object_count;
static int note(struct dl_phdr_info *in, size_t size, void *data) {
    const char *slash = strrchr(in->dlpi_name, '/');
    snprintf(objects[object_count].name, sizeof objects->name, "%s", slash ? slash + 1 : in->dlpi_name);
    objects[object_count].base = in->dlpi_addr;
    for (int i = 0; i < in->dlpi_phnum; i++)
        if (in->dlpi_phdr[i].p_type == PT_LOAD) {
            uintptr_t end = in->dlpi_addr + in->dlpi_phdr[i].p_vaddr + in->dlpi_phdr[i].p_memsz;
            if (end > objects[object_count].end) objects[object_count].end = end;
        }
    object_count++;
    return 0;
}
static void print(void *p) {
    uintptr_t at = (uintptr_t)p;
    for (int i = 0; at && i < object_count; i++)
        if (at >= objects[i].base && at < objects[i].end) {
            printf("%s+%lx\n", objects[i].name, (unsigned long)(at - objects[i].base));
            return;
        }
    printf("%s\n", at == 7 ? "untouched" : at ? "nowhere" : "null");
}

static void *cuda, *nvml;
static uint64_t asked;
static int calling;
static const char **noted[2]; /* one per library: name of the function called last */

static void answer(const char *door, const char *name, uint64_t flags, int version, int code, int status, void *p) {
    printf("%s %s %lu %d %d %d ", door, name, flags, version, code, status);
    if (!calling) { print(p); return; }
    if (!p || p == (void *)7) { printf("null\n"); return; }
    *noted[0] = *noted[1] = 0;
    int said = ((any)p)(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    printf("%s%s %d\n", *noted[0] ? *noted[0] : "", *noted[1] ? *noted[1] : "", said);
}

static void ask(const char *name, int *versions, int count, int step) {
    v1 one = (v1)dlsym(cuda, "cuGetProcAddress");
    v2 two = (v2)dlsym(cuda, "cuGetProcAddress_v2");
    for (uint64_t flags = 0; flags < 3; flags++) {
        void *before[2] = { (void *)1, (void *)1 };
        int code_before[2] = { -1, -1 }, status_before = -1;
        for (int i = 0; i < count; i += step) {
            void *p = (void *)7;
            int status = 99, code = one ? one(name, &p, versions[i], flags) : -2;
            asked++;
            if (p != before[0] || code != code_before[0]) answer("get1", name, flags, versions[i], code, 0, p);
            before[0] = p; code_before[0] = code;
            p = (void *)7;
            code = two ? two(name, &p, versions[i], flags, &status) : -2;
            asked++;
            if (p != before[1] || code != code_before[1] || status != status_before)
                answer("get2", name, flags, versions[i], code, status, p);
            before[1] = p; code_before[1] = code; status_before = status;
        }
    }
}

static void breaks(void) {
    v2 two = (v2)dlsym(cuda, "cuGetProcAddress_v2");
    static char changed[1500];
    for (unsigned b = 0; b < COUNT(bases); b++)
        for (uint64_t flags = 0; flags < 3; flags += 2) {
            void *before = 0;
            for (int v = 0; v < 15000; v += 10) {
                void *p = 0;
                int status;
                two(bases[b].name, &p, v, flags, &status);
                if (p != before) changed[v / 10] = 1;
                before = p;
            }
        }
    for (int i = 0; i < 1500; i++) if (changed[i]) printf("%d\n", i * 10);
}

int main(int argc, char **argv) {
    static char out[1 << 20];
    setvbuf(stdout, out, _IOFBF, sizeof out);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml || argc < 2) { printf("%s\n", dlerror()); return 1; }
    dl_iterate_phdr(note, 0);
    if (!strcmp(argv[1], "breaks")) { breaks(); return 0; }
    calling = !strcmp(argv[1], "call");
    if (calling) { /* a program initialises before it calls */
        noted[0] = dlsym(cuda, "stand_in_noted");
        noted[1] = dlsym(nvml, "stand_in_noted");
        if (!noted[0] || !noted[1]) return 2;
        ((int (*)(int))dlsym(cuda, "cuInit"))(0);
        ((int (*)(void))dlsym(nvml, "nvmlInit_v2"))();
    }
    for (unsigned i = 0; i < COUNT(rows); i++) {
        const char *name = rows[i].name;
        void *handle = rows[i].library ? nvml : cuda;
        answer("linked", name, 0, 0, 0, 0, rows[i].linked);
        answer("handle", name, 0, 0, 0, 0, dlsym(handle, name));
        answer("default", name, 0, 0, 0, 0, dlsym(RTLD_DEFAULT, name));
        answer("next", name, 0, 0, 0, 0, dlsym(RTLD_NEXT, name));
        answer("dlvsym", name, 0, 0, 0, 0, dlvsym(handle, name, "ANY_1.0"));
        asked += 5;
    }
    int versions[512], count = 0;
    for (int i = 2; i < argc && count < 512; i++) versions[count++] = atoi(argv[i]);
    for (unsigned i = 0; i < COUNT(bases); i++) ask(bases[i].name, versions, count, bases[i].known ? 1 : 16);
    printf("asked %lu\n", asked);
    return 0;
}
