/* Mappings that take the place of others, and calls around libc's usual ones. A name as the
 * argument chooses one. Ends with 0 when all is right. */
#include "memory.h"

#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/uio.h>

enum { READ_WRITE = PROT_READ | PROT_WRITE, PLAIN = MAP_PRIVATE | MAP_ANONYMOUS };

/* As at a limit of threads. */
static void no_thread(void) {
    struct sock_filter filter[] = {
        { BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(struct seccomp_data, nr) },
        { BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_clone },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EAGAIN },
        { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW },
    };
    struct sock_fprog program = { 4, filter };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    char *at = map(16 * MIB);
    fill(at, 16 * MIB, 1);
    check(at, 16 * MIB, 1);
}

int main(int count, char **arguments) {
    struct { const char *name; void (*run)(void); int is_early; } all[] = {
        { "no thread", no_thread, 1 },
    };
    CHECK(count == 2);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(arguments[1], all[i].name) == 0) {
            /* What is small at first is left alone. */
            if (!all[i].is_early) map(4 * MIB);
            all[i].run();
            return 0;
        }
    return 2;
}
