/* A program for members that take turns: bursts of kernels with pauses without any call, information about its
 * threads and their signal masks, signals to the process, a fork in between. One command per line on stdin, one
 * answer per line on stdout, the driver's code first. It knows nothing of vgpu except the name of its thread. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

static void *driver;
/* More than the stack of a small thread: glibc takes this memory from the stack. */
static __thread volatile char large[1 << 20];

static void *need(const char *name) {
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *f = driver ? dlsym(driver, name) : 0;
    if (!f) { printf("! no %s\n", name); exit(3); }
    return f;
}
/* Variadic on purpose: integers and pointers only. */
#define CALL(name, ...) ({ static int (*f_)(); if (!f_) f_ = need(#name); f_(__VA_ARGS__); })

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

static void rest(u64 us) {
    struct timespec t = { (time_t)(us / 1000000), (long)(us % 1000000 * 1000) };
    while (nanosleep(&t, &t)) {}
}

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static int begin(void) {
    void *context;
    int r = CALL(cuInit, 0u);
    if (!r) r = CALL(cuDevicePrimaryCtxRetain, &context, 0);
    if (!r) r = CALL(cuCtxSetCurrent, context);
    return r;
}

static void *kernel;

static int launch(u64 ns) {
    void *module;
    int code;
    if (!kernel && (code = CALL(cuModuleLoadData, &module, PTX))) return code;
    if (!kernel && (code = CALL(cuModuleGetFunction, &kernel, module, "vgpu_spin_ns"))) return code;
    void *parameters[] = { &ns };
    return CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
}

/* For `ms`: `count` kernels of `ns`, then `pause` us without a call. */
static void bursts(u64 ns, u64 count, u64 pause, u64 ms) {
    u64 end = now() + ms * 1000000, launched = 0;
    int code = 0;
    while (!code && now() < end) {
        for (u64 i = 0; !code && i < count; i++, launched++) code = launch(ns);
        if (pause) rest(pause);
    }
    int waited = CALL(cuCtxSynchronize);
    printf("%d %lu\n", code ? code : waited, launched);
}

static volatile sig_atomic_t handled, elsewhere;
static void on_signal(int s) {
    handled++;
    if (syscall(SYS_gettid) != getpid()) elsewhere++;
}

/* Number of threads besides the first, and of those that can receive a blockable signal. */
static void threads(void) {
    DIR *d = opendir("/proc/self/task");
    int others = 0, open = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[300], line[256];
        if (e->d_name[0] == '.' || atoi(e->d_name) == getpid()) continue;
        others++;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            u64 blocked;
            if (sscanf(line, "SigBlk: %lx", &blocked) != 1) continue;
            /* All signals but SIGKILL, SIGSTOP and the two that the C library reserves. */
            u64 all = ~((u64)1 << (SIGKILL - 1) | (u64)1 << (SIGSTOP - 1) | (u64)3 << 31);
            if ((blocked & all) != all) open++;
        }
        if (f) fclose(f);
    }
    closedir(d);
    printf("0 %d %d\n", others, open);
}

/* Processor time of the process in us, and the number of times that its threads slept. */
static void usage(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    u64 us = (u64)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000 + (u64)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
    printf("0 %lu %lu\n", us, (u64)r.ru_nvcsw);
}

int main(void) {
    char line[256], name[64];
    setvbuf(stdout, 0, _IOLBF, 0);
    large[0] = 1;
    struct sigaction act;
    memset(&act, 0, sizeof act);
    act.sa_handler = on_signal;
    sigaction(SIGUSR1, &act, 0);
    printf("0 %d\n", getpid());
    for (;;) {
        /* A late signal may arrive while it waits for a line. */
        if (!fgets(line, sizeof line, stdin)) {
            if (errno != EINTR || feof(stdin)) break;
            clearerr(stdin);
            continue;
        }
        errno = 0;
        u64 a = 0, b = 0, c = 0, d = 0;
        if (sscanf(line, "%63s %lu %lu %lu %lu", name, &a, &b, &c, &d) < 1) continue;
        if (!strcmp(name, "begin")) printf("%d\n", begin());
        else if (!strcmp(name, "bursts")) bursts(a, b, c, d);
        else if (!strcmp(name, "threads")) threads();
        else if (!strcmp(name, "usage")) usage();
        else if (!strcmp(name, "handled")) printf("0 %d %d\n", (int)handled, (int)elsewhere);
        else if (!strcmp(name, "fork")) { /* the child answers until it is told to exit */
            fflush(stdout);
            pid_t child = fork();
            if (!child) { kernel = 0; printf("0 %d\n", getpid()); continue; }
            int status = 0;
            while (waitpid(child, &status, 0) < 0) {}
            printf("0 %d\n", status);
        }
        else if (!strcmp(name, "exit")) { fflush(stdout); _exit((int)a); }
        else { printf("! not a command: %s", line); return 4; }
    }
    return 0;
}
