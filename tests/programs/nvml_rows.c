/* Calls functions of NVML twice with the same arguments: at the address in the library's file, and as `dlsym` finds
 * them. Input line: a name, its address, the kinds of its arguments. Output line: the name, both codes, 1 if code
 * and all output are the same, and the first number that each call wrote into a count.
 *
 * usage: nvml_rows PID     (process id for the functions that take one) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM 16384
#define MOST 8
typedef uintptr_t word;
typedef unsigned (*any)(word, word, word, word, word, word, word, word);

static void *nvml, *device;
static char uuid[96], serial[96];
static struct { char legacy[16]; unsigned numbers[5]; char bus[32]; } pci;
static unsigned char written[2][MOST][ROOM] __attribute__((aligned(16)));

static void *find(const char *name) {
    void *f = dlsym(nvml, name);
    if (!f) { printf("! no %s\n", name); exit(3); }
    return f;
}
#define CALL(name, ...) (((unsigned (*)())find(#name))(__VA_ARGS__))

static unsigned call(any f, int which, const char *name, const char *kinds, unsigned pid) {
    word w[MOST] = { 0 };
    for (int i = 0; kinds[i] && i < MOST; i++) {
        unsigned char *place = written[which][i];
        memset(place, 0, ROOM);
        switch (kinds[i]) {
        case 'd': w[i] = (word)device; break;
        case 'n': w[i] = 0; break;
        case 'o': w[i] = 1; break;
        case 'l': w[i] = 96; break;
        case 'p': w[i] = pid; break;
        case 's': w[i] = (word)(strstr(name, "UUID") ? uuid : strstr(name, "Serial") ? serial : pci.bus); break;
        case 'c': w[i] = (word)place; *(unsigned *)place = 8; break;
        case 'b':
            w[i] = (word)place;
            if (!strcmp(name, "nvmlDeviceGetMemoryInfo_v2")) *(unsigned *)place = 0x02000028;
            if (!strcmp(name, "nvmlDeviceGetRunningProcessDetailList")) *(unsigned *)place = 0x01000018;
            break;
        }
    }
    return f(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]);
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0); /* the function after the last printed line is the one that crashed */
    unsigned pid = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    struct link_map *map;
    if (!nvml || dlinfo(nvml, RTLD_DI_LINKMAP, &map)) { printf("! %s\n", dlerror()); return 3; }
    if (CALL(nvmlInit_v2) || CALL(nvmlDeviceGetHandleByIndex_v2, 0, &device) ||
        CALL(nvmlDeviceGetUUID, device, uuid, 96) || CALL(nvmlDeviceGetSerial, device, serial, 96) ||
        CALL(nvmlDeviceGetPciInfo_v3, device, &pci)) { printf("! no device\n"); return 3; }
    char name[128], kinds[32];
    unsigned long place;
    while (scanf("%127s %lx %31s", name, &place, kinds) == 3) {
        if (!strcmp(kinds, "-")) kinds[0] = 0;
        any real = (any)(map->l_addr + place), found = (any)find(name);
        unsigned codes[2];
        int same = 0;
        memset(written, 0, sizeof written);
        /* Counters of time may change between the two calls, on a busy host nearly always. */
        for (int i = 0; i < 10000 && !same; i++) {
            codes[0] = call(real, 0, name, kinds, pid);
            codes[1] = call(found, 1, name, kinds, pid);
            same = codes[0] == codes[1] && !memcmp(written[0], written[1], sizeof written[0]);
        }
        unsigned counts[2] = { 0, 0 };
        for (int which = 0; which < 2; which++)
            for (int i = 0; kinds[i]; i++)
                if (kinds[i] == 'c') { counts[which] = *(unsigned *)written[which][i]; break; }
        printf("%s %u %u %d %u %u\n", name, codes[0], codes[1], same, counts[0], counts[1]);
    }
    return 0;
}
