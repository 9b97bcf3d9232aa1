/* A driver that does nothing, at almost no cost, so that a hook's own code is all that the hook adds. Every call
 * succeeds at once, and an event is always reached. The device's clock advances by `nothing_takes_ms` with each launch
 * and by half a microsecond with each record. The stream is busy until that much real time has passed since its last
 * query: a stream that never became idle would make launches wait for it. `nothing_counts` holds the number of calls
 * of each kind.
 * `make bench` builds it as libcuda.so.1; it is not a device (sim/ is). */
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default"))) int
enum { LAUNCHES, RECORDS, QUERIES, STREAM_QUERIES, CAPTURE_QUERIES, EXCHANGES, KINDS };
enum { OK = 0, NOT_READY = 600 };

__attribute__((visibility("default"))) uint64_t nothing_counts[KINDS];
__attribute__((visibility("default"))) float nothing_takes_ms = 0.000001f;
static const uint64_t TOTAL = 64ul << 30;
static char context, module, kernel;
static double clock_ms, events[8192]; /* more than are ever alive at the same time */
static double queried_ms, busy_ms;    /* real time of the stream's last query, and its work then and since */
static uint64_t next_event;

API cuInit(unsigned flags) { (void)flags; return OK; }
API cuDriverGetVersion(int *version) { *version = 12090; return OK; }
API cuDeviceGetCount(int *count) { *count = 1; return OK; }
API cuDeviceGet(int *device, int ordinal) { *device = ordinal; return OK; }
API cuDeviceGetUuid_v2(void *uuid, int device) { (void)device; memset(uuid, 0x5a, 16); return OK; }
API cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = TOTAL; return OK; }
API cuDeviceGetAttribute(int *value, int attribute, int device) { (void)attribute, (void)device; *value = 0; return OK; }
API cuDevicePrimaryCtxRetain(void **out, int device) { (void)device; *out = &context; return OK; }
API cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = 1; return OK; }
API cuCtxSetCurrent(void *ctx) { (void)ctx; return OK; }
API cuCtxGetCurrent(void **out) { *out = &context; return OK; }
API cuCtxGetDevice(int *device) { *device = 0; return OK; }
API cuCtxGetId(void *ctx, uint64_t *id) { (void)ctx; *id = 1; return OK; }
API cuCtxSynchronize(void) { return OK; }
API cuMemGetInfo_v2(size_t *left, size_t *total) { *left = *total = TOTAL; return OK; }
API cuModuleLoadData(void **out, const void *image) { (void)image; *out = &module; return OK; }
API cuModuleGetFunction(void **out, void *of, const char *name) { (void)of, (void)name; *out = &kernel; return OK; }
API cuFuncGetModule(void **out, void *f) { (void)f; *out = &module; return OK; }

API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
    nothing_counts[LAUNCHES]++;
    clock_ms += nothing_takes_ms;
    busy_ms += nothing_takes_ms;
    return OK;
}
API cuStreamIsCapturing(void *stream, int *status) { (void)stream; nothing_counts[CAPTURE_QUERIES]++; *status = 0; return OK; }
API cuStreamGetCtx(void *stream, void **out) { (void)stream; *out = &context; return OK; }
API cuStreamGetId(void *stream, uint64_t *id) { (void)stream; *id = 1; return OK; }
API cuStreamQuery(void *stream) {
    (void)stream;
    nothing_counts[STREAM_QUERIES]++;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double now_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
    double left = busy_ms - (now_ms - queried_ms);
    busy_ms = left > 0 ? left : 0;
    queried_ms = now_ms;
    return left > 0 ? NOT_READY : OK;
}
API cuStreamSynchronize(void *stream) { (void)stream; return OK; }
API cuStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)stream, (void)event, (void)flags; return OK; }
API cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; nothing_counts[EXCHANGES]++; return OK; }
API cuEventCreate(void **out, unsigned flags) { (void)flags; *out = &events[next_event++ % 8192]; return OK; }
API cuEventDestroy_v2(void *event) { (void)event; return OK; }
API cuEventRecord(double *event, void *stream) { (void)stream; *event = clock_ms += 0.0005; nothing_counts[RECORDS]++; return OK; }
API cuEventQuery(void *event) { (void)event; nothing_counts[QUERIES]++; return OK; }
API cuEventSynchronize(void *event) { (void)event; return OK; }
API cuEventElapsedTime(float *ms, double *from, double *to) { *ms = (float)(*to - *from); return OK; }
