/* A member that lies. It says hello at VGPU_SOCKET and joins the device named by its argument, both without the
 * library, and then behaves like turns.c. Its report always claims that nothing is wanted, in flight or used. */
#define main turns
#include "turns.c"
#undef main
#include <sys/socket.h>
#include <sys/un.h>

/* Sends one line to the daemon and reads its answer. The kernel closes the descriptors that come with it. */
static int ask(int daemon, const char *line) {
    char answer[4096];
    size_t all = 0;
    if (write(daemon, line, strlen(line)) != (ssize_t)strlen(line)) return 0;
    for (ssize_t n; all < sizeof answer - 1 && (n = read(daemon, answer + all, sizeof answer - 1 - all)) > 0;) {
        all += (size_t)n;
        if (answer[all - 1] == '\n') break;
    }
    answer[all] = 0;
    if (all && !strstr(answer, "\"error\"")) return 1;
    fprintf(stderr, "liar: %s to %s", answer, line);
    return 0;
}

int main(int count, char **words) {
    const char *path = getenv("VGPU_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char line[512];
    if (count != 2 || !path || strlen(path) >= sizeof address.sun_path) return 2;
    strcpy(address.sun_path, path);
    int daemon = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (daemon < 0 || connect(daemon, (struct sockaddr *)&address, sizeof address)) return 3;
    snprintf(line, sizeof line, "{\"hello\":2,\"pid\":%d,\"version\":\"liar\",\"pages\":1,\"clock\":%lu}\n", getpid(), now());
    if (!ask(daemon, line)) return 4;
    snprintf(line, sizeof line, "{\"join\":\"%s\",\"busy\":0}\n", words[1]);
    return ask(daemon, line) ? turns() : 5;
}
