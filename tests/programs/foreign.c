/* A library with names that start like the driver's and are not the driver's. */
#define NAME(f, n) int f(void) { return n; }
NAME(cudnnCreate, 1) NAME(curl_easy_init, 2) NAME(cublasCreate_v2, 3) NAME(cuMyOwn, 4) NAME(cu, 5) NAME(nv, 6)
NAME(nvtxMarkA, 7) NAME(nvrtcVersion, 8) NAME(cuMemAlloc_v9, 9) NAME(nvmlFoo, 10) NAME(c, 11) NAME(cuInitialise, 12)
