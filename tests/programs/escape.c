/* A program that bypasses a library in its own process as far as a program can. It reads the driver's function
 * addresses from the driver's file and calls them, overwrites the library's code, or opens a device file itself. One
 * command per line on stdin, one answer per line on stdout, the driver's code first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;

static void *driver;

static void *need(const char *name) {
    if (!driver) driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *f = driver ? dlsym(driver, name) : 0;
    if (!f) { printf("! no %s\n", name); exit(3); }
    return f;
}
/* Calls through the library, if there is one. Variadic on purpose: integers and pointers only. */
#define CALL(name, ...) ({ static int (*f_)(); if (!f_) f_ = need(#name); f_(__VA_ARGS__); })

/* Load address of the object whose path contains a name. */
struct place { const char *holds; char path[4096]; u64 base; };

static int is_it(struct dl_phdr_info *info, size_t size, void *data) {
    struct place *place = data;
    if (!strstr(info->dlpi_name, place->holds)) return 0;
    snprintf(place->path, sizeof place->path, "%s", info->dlpi_name);
    place->base = info->dlpi_addr;
    return 1;
}

/* Address of a function, from the symbols in its object's file; 0 if it is missing. No lookup function is called. */
static void *read_of(const char *object, const char *name) {
    struct place place = { object };
    struct stat stat;
    if (!dl_iterate_phdr(is_it, &place)) return 0;
    int file = open(place.path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &stat)) return 0;
    char *all = mmap(0, (size_t)stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (all == MAP_FAILED) return 0;
    Elf64_Ehdr *head = (Elf64_Ehdr *)all;
    Elf64_Shdr *sections = (Elf64_Shdr *)(all + head->e_shoff);
    void *found = 0;
    for (int i = 0; i < head->e_shnum && !found; i++) {
        if (sections[i].sh_type != SHT_DYNSYM) continue;
        Elf64_Sym *symbols = (Elf64_Sym *)(all + sections[i].sh_offset);
        const char *names = all + sections[sections[i].sh_link].sh_offset;
        for (u64 n = 0; n < sections[i].sh_size / sizeof *symbols && !found; n++)
            if (symbols[n].st_shndx != SHN_UNDEF && !strcmp(names + symbols[n].st_name, name))
                found = (void *)(place.base + symbols[n].st_value);
    }
    munmap(all, (size_t)stat.st_size);
    return found;
}

/* Overwrites the library's function of that name with a jump to the driver's. */
static int write_over(const char *name) {
    unsigned char *ours = read_of("libvgpu.so", name), jump[12] = { 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xe0 };
    void *theirs = read_of("libcuda.so.1", name);
    if (!ours || !theirs) return 1;
    memcpy(jump + 2, &theirs, 8);
    u64 page = (u64)ours & ~(u64)4095;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return 2;
    memcpy(ours, jump, sizeof jump);
    return 0;
}

static int begin(void) {
    void *context;
    int r = CALL(cuInit, 0u);
    if (!r) r = CALL(cuDevicePrimaryCtxRetain, &context, 0);
    if (!r) r = CALL(cuCtxSetCurrent, context);
    return r;
}

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry vgpu_spin_ns(.param .u64 vgpu_spin_ns_param_0)\n{\nret;\n}\n";

static u64 now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000 + (u64)t.tv_nsec;
}

/* Launches kernels of `ns` for `ms`, with a wait after every sixteen. */
static int work(u64 ns, u64 ms) {
    static void *module, *kernel;
    int code = 0;
    if (!kernel) code = CALL(cuModuleLoadData, &module, PTX);
    if (!code && !kernel) code = CALL(cuModuleGetFunction, &kernel, module, "vgpu_spin_ns");
    void *parameters[] = { &ns };
    for (u64 end = now() + ms * 1000000; !code && now() < end; code = CALL(cuCtxSynchronize))
        for (int i = 0; i < 16 && !code; i++)
            code = CALL(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, (void *)0, parameters, (void *)0);
    return code;
}

/* Executes this program again in the same process, which keeps its sockets: with the library, or without. */
static int become(const char *how) {
    struct stat stat;
    for (int file = 3; file < 1024; file++)
        if (!fstat(file, &stat) && S_ISSOCK(stat.st_mode)) fcntl(file, F_SETFD, 0);
    if (!strcmp(how, "bare")) unsetenv("LD_PRELOAD");
    execl("/proc/self/exe", "escape", (char *)0);
    return errno;
}

/* Says hello to a daemon as the library would, and keeps the connection. */
static int hello(const char *socket_path) {
    struct sockaddr_un at = { AF_UNIX, "" };
    char line[256], answer[4096];
    int wire = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", socket_path);
    if (wire < 0 || connect(wire, (struct sockaddr *)&at, sizeof at)) return errno;
    int length = snprintf(line, sizeof line, "{\"hello\":2,\"pid\":%d,\"version\":\"0\",\"pages\":1,\"clock\":0}\n", getpid());
    if (write(wire, line, (size_t)length) != length) return errno;
    return read(wire, answer, sizeof answer) > 0 ? 0 : EPROTO;
}

int main(void) {
    char line[4096], name[64], text[4000];
    setvbuf(stdout, 0, _IOLBF, 0);
    printf("0 %d\n", getpid());
    while (fgets(line, sizeof line, stdin)) {
        u64 a = 0, b = 0, at = 0;
        text[0] = 0;
        if (sscanf(line, "%63s %3999s", name, text) < 1) continue;
        sscanf(line, "%63s %lu %lu", name, &a, &b);
        if (!strcmp(name, "begin")) printf("%d\n", begin());
        else if (!strcmp(name, "alloc")) printf("%d\n", CALL(cuMemAlloc_v2, &at, a));
        else if (!strcmp(name, "read")) { /* allocates at the address that the driver's file gives */
            int (*real)(u64 *, u64) = read_of("libcuda.so.1", "cuMemAlloc_v2");
            printf("%d\n", real ? real(&at, a) : 1000);
        }
        else if (!strcmp(name, "over")) printf("%d\n", write_over(text));
        else if (!strcmp(name, "become")) printf("%d\n", become(text)); /* the new program answers */
        else if (!strcmp(name, "hello")) printf("%d\n", hello(text));
        else if (!strcmp(name, "fork")) { /* the child keeps everything and does nothing */
            pid_t child = fork();
            if (!child) for (;;) pause();
            printf("0 %d\n", child);
        }
        else if (!strcmp(name, "work")) printf("%d\n", work(a, b));
        else if (!strcmp(name, "open")) { /* as a driver does with its device file */
            int file = open(text, O_RDWR | O_CLOEXEC);
            int code = file < 0 ? errno : 0;
            if (!code) ioctl(file, 0xc0384600 | 0x2a, line);
            printf("%d\n", code);
        }
        else { printf("! not a command: %s", line); return 4; }
    }
    return 0;
}
