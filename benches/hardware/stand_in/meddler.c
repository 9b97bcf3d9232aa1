/* A library with our name that does what ours must not: it queries the default stream at every launch, which spoils
 * captures, and enforces no ceiling. For the suite's own tests: a check that passes with it checks nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>

typedef int launcher(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, void *stream,
                   void **parameters, void **extra);

int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, void *stream,
                   void **parameters, void **extra) {
    static launcher *real;
    static int (*query)(void *);
    if (!real) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        *(void **)&real = dlsym(driver, "cuLaunchKernel");
        *(void **)&query = dlsym(driver, "cuStreamQuery");
    }
    query(stream);
    return real(f, a, b, c, d, e, g, shared, stream, parameters, extra);
}

/* Programs look names up in the driver's own handle; such a lookup must find the function above. */
void *dlsym(void *handle, const char *name) {
    static void *(*real)(void *, const char *);
    if (!real) *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (__builtin_strcmp(name, "cuLaunchKernel") == 0 && handle != RTLD_NEXT) {
        Dl_info own, caller;
        if (dladdr(__builtin_return_address(0), &caller) && dladdr((void *)dlsym, &own) && caller.dli_fbase != own.dli_fbase)
            return (void *)cuLaunchKernel;
    }
    return real(handle, name);
}
