/* Preloaded into a node: its lanes cannot read the time once there is a file, and panic over that. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    char name[16] = "";
    const char *file = getenv("CLOCK_FAILS_WITH");
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (clock == CLOCK_REALTIME && file && !strncmp(name, "kv-worker-", 10) && !access(file, F_OK)) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_clock_gettime, clock, now);
}
