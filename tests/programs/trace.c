/* Runs a program and prints its system calls after the exec, one per line, with the path of those that open a file.
 * trace PRELOAD PROGRAM ARGS...; exits 77 where tracing is not permitted. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    pid_t child = fork();
    if (argc < 3) return 2;
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(77);
        if (*argv[1]) setenv("LD_PRELOAD", argv[1], 1);
        raise(SIGSTOP);
        execv(argv[2], argv + 2);
        _exit(127);
    }
    int status, entering = 0, loaded = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, child, 0, 0)) return 77;
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) return WEXITSTATUS(status);
        if (WIFSIGNALED(status)) return 1;
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) { loaded = 1; entering = 1; continue; }
        if (WSTOPSIG(status) != (SIGTRAP | 0x80) || !loaded) continue;
        entering = !entering;
        if (!entering) continue;
        struct user_regs_struct r;
        ptrace(PTRACE_GETREGS, child, 0, &r);
        char path[256] = "";
        if (r.orig_rax == SYS_openat || r.orig_rax == SYS_open) {
            struct iovec to = { path, sizeof path - 1 }, from = { (void *)(r.orig_rax == SYS_openat ? r.rsi : r.rdi), sizeof path - 1 };
            if (process_vm_readv(child, &to, 1, &from, 1, 0) < 0) strcpy(path, "?");
        }
        printf("%llu %s\n", r.orig_rax, path);
    }
}
