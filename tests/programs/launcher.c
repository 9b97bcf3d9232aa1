/* A launcher as kernel compilers generate it: C text that is compiled into a shared object at the kernel's first
 * use. It looks up the driver's functions itself and queries every pointer argument before each launch.
 * launcher CC DIRECTORY COUNT: prints the code for each kind of pointer, then launches COUNT times and prints the
 * number of successes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;
static const char TEXT[] =
    "#include <dlfcn.h>\n#include <stddef.h>\n#include <stdint.h>\n"
    "struct config { unsigned gx, gy, gz, bx, by, bz, shared; void *stream, *attributes; unsigned count; };\n"
    "typedef int (*launch_t)(const struct config *, void *, void **, void **);\n"
    "typedef int (*attribute_t)(void *, int, uint64_t);\n"
    "static launch_t launch_handle(void) {\n"
    "    void *driver = dlopen(\"libcuda.so.1\", RTLD_LAZY);\n"
    "    return driver ? (launch_t)dlsym(driver, \"cuLaunchKernelEx\") : NULL;\n}\n"
    "int device_pointer(uint64_t given, uint64_t *out) {\n"
    "    static attribute_t get;\n"
    "    if (!get) get = (attribute_t)dlsym(dlopen(\"libcuda.so.1\", RTLD_LAZY), \"cuPointerGetAttribute\");\n"
    "    return get(out, 3, given);\n}\n"
    "int launch(void *function, void *stream, uint64_t *pointers, int count, uint64_t scalar) {\n"
    "    static launch_t go;\n"
    "    uint64_t checked[8];\n    void *params[1] = { &scalar };\n"
    "    if (!go && !(go = launch_handle())) return -1;\n"
    "    for (int i = 0; i < count; i++) { int code = device_pointer(pointers[i], &checked[i]); if (code) return code; }\n"
    "    struct config c = { 1, 1, 1, 32, 1, 1, 0, stream, NULL, 0 };\n"
    "    return go(&c, function, params, NULL);\n}\n";
static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

int main(int argc, char **argv) {
    char source[4096], library[4096], command[10000];
    if (argc != 4) return 2;
    snprintf(source, sizeof source, "%s/launcher_made.c", argv[2]);
    snprintf(library, sizeof library, "%s/launcher_made.so", argv[2]);
    FILE *f = fopen(source, "w");
    fwrite(TEXT, 1, sizeof TEXT - 1, f);
    fclose(f);
    snprintf(command, sizeof command, "%s -O1 -shared -fPIC -o '%s' '%s' -ldl", argv[1], library, source);
    if (system(command)) return 3;
    void *made = dlopen(library, RTLD_LAZY | RTLD_LOCAL), *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (!made || !driver) { printf("! %s\n", dlerror()); return 3; }
    int (*launch)(void *, void *, u64 *, int, u64) = dlsym(made, "launch");
    int (*pointer)(u64, u64 *) = dlsym(made, "device_pointer");
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = dlsym(driver, "cuCtxSetCurrent"), (*sync)(void) = dlsym(driver, "cuCtxSynchronize");
    int (*load)(void **, const void *) = dlsym(driver, "cuModuleLoadData");
    int (*function)(void **, void *, const char *) = dlsym(driver, "cuModuleGetFunction");
    int (*alloc)(u64 *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    void *context, *module, *kernel;
    u64 pointers[4], out = 0, stack = 0;
    if (init(0) || retain(&context, 0) || current(context)) return 3;
    if (load(&module, PTX) || function(&kernel, module, "vgpu_spin_ns")) return 3;
    for (int i = 0; i < 4; i++) if (alloc(&pointers[i], 1 << 20)) return 3;
    int own = pointer(pointers[1] + 100, &out);
    printf("%d %d %d %d\n", own, out == pointers[1] + 100, pointer((u64)&stack, &out), pointer(12345, &out));
    int good = 0, count = atoi(argv[3]);
    for (int i = 0; i < count; i++) good += launch(kernel, NULL, pointers, 4, 0) == 0;
    if (sync()) return 3;
    printf("%d\n", good);
    fflush(stdout);
    fgets(command, sizeof command, stdin);
    return 0;
}
