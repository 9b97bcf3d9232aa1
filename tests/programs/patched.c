/* A program that overwrites the first instructions of functions with jumps to its own, as hotpatching tools do
 * (ComfyUI's allocator by funchook, UCX, Detours). The overwritten instructions run from a copy, which continues
 * behind them.
 *   entries LIBRARY              moves the beginning of every function that the library exports. Prints a line for
 *                                each that cannot be moved, and `functions COUNT`
 *   run WHERE BYTES_OF_JUMP MOVED THREADS ROUNDS BYTES
 *       WHERE: the functions are found by `dlsym`, by `get` (cuGetProcAddress), or in the `driver`'s own file
 *       BYTES_OF_JUMP: 5 (near jump), 12 (through rax) or 14 (absolute)
 *       MOVED: `any` also corrects rip-relative instructions; `plain` accepts none
 *     Prints `again DLSYM GET CODES MET`: lookups by the driver's handle that find every function where they were
 *     before the patch, sum of the codes of calls by them, calls of the own functions thereby (4 are made).
 *     Threads allocate and free through the patched functions; prints `held BYTES`, `met ALLOCATIONS FREES` (calls
 *     of the own functions), `said GRANTED REFUSED OTHER FREED`. After a line of input it frees everything, restores
 *     the code, allocates once more, and prints `restored CODE FREE_CODE MET`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef uint64_t u64;
typedef unsigned char byte;

/* ---- instructions ---- */
struct instruction { int length, disp_at, far_at; const char *why; };
/* The length of one instruction, and the reasons not to move it. disp_at: offset of a rip-relative distance. */
static struct instruction decode(const byte *p) {
    struct instruction in = { 0, 0, 0, 0 };
    const byte *b = p;
    int wide = 0, half = 0, modrm = 0, immediate = 0;
    while (strchr("\x66\xf2\xf3\x2e\x36\x3e\x26\x64\x65\xf0", *b) && *b) half |= *b++ == 0x66;
    if ((*b & 0xf0) == 0x40) wide = *b++ & 8;
    int op = *b++, four = half ? 2 : 4;
    if (op == 0x0f) {
        op = *b++;
        if (op >= 0x80 && op <= 0x8f) { in.why = "a conditional jump"; in.far_at = b - p; immediate = 4; }
        else if (op == 0x05 || op == 0xa2 || op == 0x0b) in.why = op == 0x0b ? "a trap" : 0;
        else if (op == 0x70 || op == 0xc6 || op == 0xba) { modrm = 1; immediate = 1; }
        else if (op == 0x1e || op == 0x1f || (op >= 0x10 && op <= 0x17) || (op >= 0x28 && op <= 0x2f) || (op & 0xf0) == 0x40
            || (op >= 0x50 && op <= 0x7f) || (op & 0xf0) == 0x90 || (op >= 0xa3 && op <= 0xc1) || op >= 0xd0) modrm = 1;
        else in.why = "unknown";
    } else if (op < 0x40) { if ((op & 7) < 4) modrm = 1; else if ((op & 7) == 4) immediate = 1; else if ((op & 7) == 5) immediate = four; else in.why = "unknown"; }
    else if (op >= 0x50 && op <= 0x5f) ;
    else if (op == 0x63 || (op >= 0x84 && op <= 0x8f) || (op >= 0xd0 && op <= 0xd3) || op == 0xfe) modrm = 1;
    else if (op == 0xff) { modrm = 1; if ((*b >> 3 & 7) == 2 || (*b >> 3 & 7) == 4) in.why = "an indirect branch"; }
    else if (op == 0x68 || op == 0xa9) immediate = four;
    else if (op == 0x6a || op == 0xa8 || (op >= 0xb0 && op <= 0xb7)) immediate = 1;
    else if (op == 0x69 || op == 0x81 || op == 0xc7) { modrm = 1; immediate = four; }
    else if (op == 0x6b || op == 0x80 || op == 0x83 || op == 0xc0 || op == 0xc1 || op == 0xc6) { modrm = 1; immediate = 1; }
    else if (op >= 0x70 && op <= 0x7f) { in.why = "a short jump"; immediate = 1; }
    else if (op >= 0x90 && op <= 0x99) ;
    else if (op >= 0xb8 && op <= 0xbf) immediate = wide ? 8 : four;
    else if (op == 0xc9) ;
    else if (op == 0xc3 || op == 0xcc) in.why = "the function's end";
    else if (op == 0xe8 || op == 0xe9) { in.why = op == 0xe8 ? "a call" : "a jump"; in.far_at = b - p; immediate = 4; }
    else if (op == 0xeb) { in.why = "a short jump"; immediate = 1; }
    else if (op == 0xf6 || op == 0xf7) { modrm = 1; if ((*b >> 3 & 7) < 2) immediate = op == 0xf6 ? 1 : four; }
    else in.why = "unknown";
    if (modrm) {
        int mod = *b >> 6, rm = *b & 7;
        b++;
        if (mod != 3) {
            if (rm == 4) { int base = *b++ & 7; if (base == 5 && !mod) b += 4; }
            else if (rm == 5 && !mod) { in.disp_at = b - p; b += 4; }
            if (mod == 1) b += 1; else if (mod == 2) b += 4;
        }
    }
    in.length = b + immediate - p;
    return in;
}

/* ---- code next to an address, so that a distance of 32 bits reaches it ---- */
static byte *code_near(void *at) {
    static byte *page;
    static int taken;
    if (page && taken <= 3900 && llabs((long long)((byte *)at - page)) < 1ll << 30) { taken += 96; return page + taken - 96; }
    for (long long far = 1 << 16; far < 1ll << 30; far += 1 << 16) for (int side = -1; side < 2; side += 2) {
        byte *to = (byte *)((uintptr_t)at & ~4095ul) + side * far;
        page = mmap(to, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page == to) { taken = 96; return page; }
        if (page != MAP_FAILED) munmap(page, 4096);
    }
    printf("no room near %p\n", at);
    exit(3);
}
static void write_absolute(byte *at, void *to) { memcpy(at, "\xff\x25\0\0\0\0", 6); memcpy(at + 6, &to, 8); }
static void write_code(byte *at, const byte *bytes, int count) {
    byte *page = (byte *)((uintptr_t)at & ~4095ul);
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) { perror("mprotect"); exit(3); }
    memcpy(at, bytes, count);
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
}
/* Copies whole instructions of at least `count` bytes. Returns the copy, or null after a line that says why not. */
static byte *move_entry(const char *name, byte *at, int count, int plain) {
    byte *copy = code_near(at);
    int done = 0;
    while (done < count) {
        struct instruction in = decode(at + done);
        const char *why = in.why;
        if (!why && in.disp_at && plain) why = "relative to its own address";
        if (in.far_at && !plain) why = 0;
        if (why) { printf("%s+%d: %s, byte %02x\n", name, done, why, at[done]); return 0; }
        memcpy(copy + done, at + done, in.length);
        int where = in.disp_at ? in.disp_at : in.far_at;
        if (where) {
            int32_t far;
            memcpy(&far, at + done + where, 4);
            far += at - copy;
            memcpy(copy + done + where, &far, 4);
        }
        done += in.length;
    }
    write_absolute(copy + done, at + done);
    return copy;
}

/* ---- the exported functions of a file ---- */
static byte *file_start;
static u64 file_bytes;
static const Elf64_Sym *symbols;
static const char *names;
static int symbol_count;
static void read_file(const char *path) {
    struct stat about;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &about)) { perror(path); exit(3); }
    file_bytes = about.st_size;
    file_start = mmap(0, file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    const Elf64_Ehdr *head = (void *)file_start;
    const Elf64_Shdr *section = (void *)(file_start + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++)
        if (section[i].sh_type == SHT_DYNSYM) {
            symbols = (void *)(file_start + section[i].sh_offset);
            symbol_count = section[i].sh_size / sizeof *symbols;
            names = (char *)file_start + section[section[i].sh_link].sh_offset;
        }
}
static int is_function(const Elf64_Sym *s) { return ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_shndx && s->st_value; }
static byte *in_file(struct link_map *map, const char *name) {
    for (int i = 0; i < symbol_count; i++)
        if (is_function(&symbols[i]) && !strcmp(names + symbols[i].st_name, name)) return (byte *)map->l_addr + symbols[i].st_value;
    return 0;
}
static int entries(const char *path) {
    struct link_map *map = dlopen(path, RTLD_NOW);
    if (!map) { printf("%s\n", dlerror()); return 1; }
    read_file(path);
    int count = 0;
    for (int i = 0; i < symbol_count; i++) {
        if (!is_function(&symbols[i])) continue;
        const char *name = names + symbols[i].st_name;
        byte *at = (byte *)map->l_addr + symbols[i].st_value;
        count++;
        move_entry(name, at, 14, 1);
        for (int k = 0; k < symbol_count; k++) {
            u64 behind = symbols[k].st_value - symbols[i].st_value;
            if (is_function(&symbols[k]) && behind && behind < 14) printf("%s: %s begins %d bytes behind it\n", name, names + symbols[k].st_name, (int)behind);
        }
    }
    printf("functions %d\n", count);
    return 0;
}

/* ---- the functions that ComfyUI's allocator replaces ---- */
enum { ALLOC, FREE, ALLOC_ASYNC, FREE_ASYNC, ALLOC_PTSZ, FREE_PTSZ, COUNT };
static const char *const names_of[COUNT] = { "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemAllocAsync_ptsz", "cuMemFreeAsync_ptsz" };
static int (*found[COUNT])(u64, u64, void *);
static int (*original[COUNT])(u64, u64, void *);
static byte saved[COUNT][14];
static int jump_bytes;
static _Atomic u64 met_allocs, met_frees;
#define OWN(n) static int own_##n(u64 a, u64 b, void *c) { if (n % 2) met_frees++; else met_allocs++; return original[n](a, b, c); }
OWN(0) OWN(1) OWN(2) OWN(3) OWN(4) OWN(5)
static int (*const own[COUNT])(u64, u64, void *) = { own_0, own_1, own_2, own_3, own_4, own_5 };

static void find(const char *where) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*get)(const char *, void **, int, u64) = dlsym(driver, "cuGetProcAddress");
    if (!strcmp(where, "driver")) {
        struct link_map *map = driver;
        read_file(map->l_name);
        for (int n = 0; n < COUNT; n++) found[n] = (void *)in_file(map, names_of[n]);
    } else if (!strcmp(where, "get")) {
        static const char *const bases[COUNT] = { "cuMemAlloc", "cuMemFree", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemAllocAsync", "cuMemFreeAsync" };
        for (int n = 0; n < COUNT; n++) get(bases[n], (void **)&found[n], 12060, n < ALLOC_PTSZ ? 1 : 2);
    } else
        for (int n = 0; n < COUNT; n++) found[n] = dlsym(driver, names_of[n]);
    for (int n = 0; n < COUNT; n++) if (!found[n]) { printf("%s is not there\n", names_of[n]); exit(3); }
}
static void patch(int plain) {
    for (int n = 0; n < COUNT; n++) {
        byte *at = (byte *)found[n], jump[14], *near;
        memcpy(saved[n], at, 14);
        original[n] = (void *)move_entry(names_of[n], at, jump_bytes, plain);
        if (!original[n]) exit(4);
        void *to = own[n];
        if (jump_bytes == 5) {
            near = code_near(at);
            write_absolute(near, to);
            int32_t far = near - (at + 5);
            jump[0] = 0xe9;
            memcpy(jump + 1, &far, 4);
        } else if (jump_bytes == 12) { memcpy(jump, "\x48\xb8", 2); memcpy(jump + 2, &to, 8); memcpy(jump + 10, "\xff\xe0", 2); }
        else write_absolute(jump, to);
        write_code(at, jump, jump_bytes);
    }
}

/* What lookups by the driver's handle found before the patch, by `dlsym` and by `get`. */
static int (*before[2][COUNT])(u64, u64, void *);
static const char *const ways[2] = { "dlsym", "get" };
static void look_up_again(u64 bytes) {
    int (*patched[COUNT])(u64, u64, void *), same[2] = { 0, 0 }, codes = 0;
    memcpy(patched, found, sizeof found);
    for (int way = 0; way < 2; way++) {
        u64 at = 0;
        find(ways[way]);
        for (int n = 0; n < COUNT; n++) same[way] += found[n] == before[way][n];
        codes += found[ALLOC]((u64)(uintptr_t)&at, bytes, 0);
        codes += found[FREE](at, 0, 0);
    }
    memcpy(found, patched, sizeof found);
    printf("again %d %d %d %lu\n", same[0], same[1], codes, met_allocs + met_frees);
    met_allocs = met_frees = 0;
}

#define KEPT 16
static int rounds, plain;
static u64 bytes;
static void *context;
static int (*call[COUNT])(u64, u64, void *);
static int (*set_current)(void *), (*synchronize)(void);
static _Atomic u64 granted, refused, other, freed, held;
struct kept { u64 at; int kind; } kept[64][KEPT];
static pthread_barrier_t begin;
static void give_back(struct kept *k) {
    int code = call[k->kind + 1](k->at, 0, 0);
    if (code) other++; else { freed++; held -= bytes; }
    k->at = 0;
}
static void *work(void *argument) {
    struct kept *mine = kept[(uintptr_t)argument];
    unsigned seed = (uintptr_t)argument + 1;
    set_current(context);
    pthread_barrier_wait(&begin);
    for (int round = 0; round < rounds; round++) {
        struct kept *k = &mine[rand_r(&seed) % KEPT];
        if (k->at && rand_r(&seed) % 4) continue;
        if (k->at) { give_back(k); continue; }
        int kind = rand_r(&seed) % 3 * 2;
        int code = call[kind]((u64)(uintptr_t)&k->at, bytes, 0);
        if (!code) { k->kind = kind; granted++; held += bytes; }
        else { k->at = 0; if (code == 2) refused++; else other++; }
    }
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc == 3 && !strcmp(argv[1], "entries")) return entries(argv[2]);
    if (argc != 8) return 2;
    int threads = atoi(argv[5]);
    jump_bytes = atoi(argv[3]);
    plain = !strcmp(argv[4], "plain");
    rounds = atoi(argv[6]);
    bytes = strtoull(argv[7], 0, 10);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = dlsym(driver, "cuInit"), (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = dlsym(driver, "cuCtxSetCurrent");
    synchronize = dlsym(driver, "cuCtxSynchronize");
    int code = init(0);
    if (!code) code = retain(&context, 0);
    if (!code) code = set_current(context);
    if (code) { printf("begin %d\n", code); return 1; }
    /* The program's own calls go through what every program finds, whatever is patched. */
    for (int way = 1; way >= 0; way--) { find(ways[way]); memcpy(before[way], found, sizeof found); }
    memcpy(call, found, sizeof call);
    find(argv[2]);
    patch(plain);
    look_up_again(bytes);
    pthread_t t[64];
    pthread_barrier_init(&begin, 0, threads);
    for (int i = 0; i < threads; i++) pthread_create(&t[i], 0, work, (void *)(uintptr_t)i);
    for (int i = 0; i < threads; i++) pthread_join(t[i], 0);
    synchronize();
    printf("held %lu\nmet %lu %lu\nsaid %lu %lu %lu %lu\n", held, met_allocs, met_frees, granted, refused, other, freed);
    getchar();
    for (int i = 0; i < threads; i++) for (int k = 0; k < KEPT; k++) if (kept[i][k].at) give_back(&kept[i][k]);
    synchronize();
    u64 met = met_allocs + met_frees, at = 0;
    for (int n = 0; n < COUNT; n++) write_code((byte *)found[n], saved[n], jump_bytes);
    code = call[ALLOC]((u64)(uintptr_t)&at, bytes, 0);
    int free_code = call[FREE](at, 0, 0);
    printf("restored %d %d %lu\n", code, free_code, met_allocs + met_frees - met);
    getchar();
    return 0;
}
