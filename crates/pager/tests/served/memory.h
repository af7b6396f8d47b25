/* What the programs of this folder have in common: memory that is filled and checked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#define CHECK(what) \
    do { if (!(what)) { \
        fprintf(stderr, "%s:%d: %s: errno %d\n", __func__, __LINE__, #what, errno); _exit(1); } } while (0)

static uint64_t word(uint64_t at, uint64_t round) {
    uint64_t x = at * 0x9e3779b97f4a7c15UL + round * 0xbf58476d1ce4e5b9UL + 1;
    return (x ^ x >> 31) | 1;
}

/* One word in each page names it, and one at its end. */
static void fill(char *at, size_t len, uint64_t round) {
    for (size_t i = 0; i < len; i += PAGE) {
        *(uint64_t *)(at + i) = word(i, round);
        *(uint64_t *)(at + i + PAGE - 8) = word(i + 1, round);
    }
}

static void check_from(char *at, size_t len, uint64_t round, size_t first) {
    for (size_t i = 0; i < len; i += PAGE) {
        CHECK(*(uint64_t *)(at + i) == word(first + i, round));
        CHECK(*(uint64_t *)(at + i + PAGE - 8) == word(first + i + 1, round));
    }
}

static void check(char *at, size_t len, uint64_t round) { check_from(at, len, round, 0); }

static void check_zero(char *at, size_t len) {
    for (size_t i = 0; i < len; i += 8) CHECK(*(uint64_t *)(at + i) == 0);
}

static char *map(size_t len) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static int ended(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}
