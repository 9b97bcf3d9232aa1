/* The process of a pod's own container: it holds the pod's namespaces, reaps orphans, and ends when it is told. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) { _exit(signal == SIGTERM ? 0 : 1); }

static void reap(int signal) {
    (void)signal;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
