/* A thread with a stack of the given number of bytes makes the first calls of a program. The stack is painted first.
 * Prints a line for each step: its code, its name, and the stack bytes used up to its end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAINT 0xa5
#define STEPS 8
typedef uint64_t u64;
static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static unsigned char *stack;
static size_t size;
static struct { const char *name; int code; size_t deep; } steps[STEPS];
static int count;

/* Stack bytes used so far. */
static size_t depth(void) {
    size_t at = 0;
    while (at < size && stack[at] == PAINT) at++;
    return size - at;
}

static void done(const char *name, int code) {
    steps[count].name = name;
    steps[count].code = code;
    steps[count++].deep = depth();
}

static int (*find(void *library, const char *name))() { return (int (*)())dlsym(library, name); }

static void *run(void *unused) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    void *context, *module, *kernel;
    u64 pointer = 0, ns = 1000;
    void *parameters[] = { &ns };
    done("load", !cuda || !nvml);
    done("init", find(cuda, "cuInit")(0));
    done("context", find(cuda, "cuDevicePrimaryCtxRetain")(&context, 0) || find(cuda, "cuCtxSetCurrent")(context));
    done("alloc", find(cuda, "cuMemAlloc_v2")(&pointer, 1ul << 20));
    int code = find(cuda, "cuModuleLoadData")(&module, PTX);
    if (!code) code = find(cuda, "cuModuleGetFunction")(&kernel, module, "vgpu_spin_ns");
    if (!code) code = find(cuda, "cuLaunchKernel")(kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
    if (!code) code = find(cuda, "cuCtxSynchronize")();
    done("launch", code);
    done("nvml", find(nvml, "nvmlInit_v2")());
    return unused;
}

int main(int argc, char **argv) {
    pthread_attr_t attributes;
    pthread_t thread;
    size = argc > 1 ? strtoul(argv[1], 0, 0) : 1 << 20;
    /* A guard page below, as below every stack that the C library makes. */
    unsigned char *at = mmap(0, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at, 4096, PROT_NONE)) return 3;
    stack = at + 4096;
    memset(stack, PAINT, size);
    if (pthread_attr_init(&attributes) || pthread_attr_setstack(&attributes, stack, size)) return 4;
    if (pthread_create(&thread, &attributes, run, 0) || pthread_join(thread, 0)) return 5;
    for (int i = 0; i < count; i++) printf("%d %s %zu\n", steps[i].code, steps[i].name, steps[i].deep);
    return 0;
}
