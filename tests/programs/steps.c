/* A preloaded library that steps the wall clock all the time, by up to six hours either way, as a user could. Other
 * clocks are the kernel's. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long steps(void) {
    static long count;
    return (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) * 5 % 13 - 6) * 3600;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    int result = (int)syscall(SYS_clock_gettime, clock, t);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)) t->tv_sec += steps();
    return result;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    int result = (int)syscall(SYS_gettimeofday, t, zone);
    if (!result && t) t->tv_sec += steps();
    return result;
}

time_t time(time_t *at) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (at) *at = t.tv_sec;
    return t.tv_sec;
}
