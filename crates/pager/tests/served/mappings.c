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

/* Bytes of this process that are in this machine's memory. */
static size_t resident(void) {
    size_t all, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%zu %zu", &all, &pages) == 2);
    fclose(file);
    return pages * PAGE;
}

static int file_of(size_t len) {
    int file = memfd_create("file", 0);
    CHECK(file >= 0 && ftruncate(file, len) == 0);
    return file;
}

static char *move_to(char *from, size_t len, char *to) {
    return mremap(from, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
}

/* Two buffers change places, as often as one likes. */
static void swap(void) {
    char *one = map(24 * MIB), *two = map(24 * MIB);
    fill(one, 24 * MIB, 0);
    fill(two, 24 * MIB, 1);
    for (uint64_t round = 1; round < 4; round++) {
        char *place = map(24 * MIB);
        CHECK(move_to(one, 24 * MIB, place) == place);
        CHECK(move_to(two, 24 * MIB, one) == one);
        CHECK(move_to(place, 24 * MIB, two) == two);
        check(one, 24 * MIB, round % 2);
        check(two, 24 * MIB, (round + 1) % 2);
        CHECK(resident() < 24 * MIB);
    }
}

/* What was unmapped is mapped again where it was. */
static void again(void) {
    char *at = map(48 * MIB);
    int flags[] = { MAP_FIXED, MAP_FIXED_NOREPLACE };
    for (uint64_t i = 0; i < 2; i++) {
        fill(at, 48 * MIB, 9);
        CHECK(munmap(at, 48 * MIB) == 0);
        CHECK(mmap(at, 48 * MIB, READ_WRITE, PLAIN | flags[i], -1, 0) == at);
        check_zero(at, 48 * MIB);
        fill(at, 48 * MIB, i);
        check(at, 48 * MIB, i);
        CHECK(resident() < 24 * MIB);
    }
    /* A part of it is there. */
    CHECK(munmap(at + 4 * MIB, 4 * MIB) == 0);
    int strict = PLAIN | MAP_FIXED_NOREPLACE;
    CHECK(mmap(at + 2 * MIB, 4 * MIB, READ_WRITE, strict, -1, 0) == MAP_FAILED && errno == EEXIST);
    /* A mapping that is refused takes nothing. */
    int shared = MAP_SHARED | MAP_FIXED_NOREPLACE, file = file_of(4 * MIB);
    CHECK(mmap(at + 4 * MIB, 4 * MIB, READ_WRITE, shared, -1, 0) == MAP_FAILED && errno == EBADF);
    CHECK(mmap(at + 4 * MIB, 4 * MIB, READ_WRITE, shared, file, 0) == at + 4 * MIB);
    fill(at + 4 * MIB, 4 * MIB, 2);
    /* Memory moves to what was unmapped. */
    char *other = map(4 * MIB);
    fill(other, 4 * MIB, 3);
    CHECK(munmap(at + 16 * MIB, 8 * MIB) == 0);
    CHECK(move_to(other, 4 * MIB, at + 18 * MIB) == at + 18 * MIB);
    fill(map(32 * MIB), 32 * MIB, 4);
    check(at, 4 * MIB, 1);
    check(at + 4 * MIB, 4 * MIB, 2);
    check_from(at + 8 * MIB, 8 * MIB, 1, 8 * MIB);
    check(at + 18 * MIB, 4 * MIB, 3);
    check_from(at + 24 * MIB, 24 * MIB, 1, 24 * MIB);
}

/* Whether new mappings are elsewhere. */
static void check_apart(char *at, size_t len) {
    for (int i = 0; i < 64; i++) {
        char *new = mmap(NULL, 64 << 10, PROT_READ, PLAIN, -1, 0);
        CHECK(new != MAP_FAILED && (new + (64 << 10) <= at || at + len <= new));
    }
}

/* A file that took a part's place moves, grows and shrinks as files do, and comes back. */
static void foreign(void) {
    char *at = map(32 * MIB), *part = at + 8 * MIB;
    fill(at, 32 * MIB, 1);
    int file = file_of(8 * MIB);
    CHECK(mmap(part, 4 * MIB, READ_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == part);
    fill(part, 4 * MIB, 2);
    char *place = mmap(NULL, 4 * MIB, PROT_NONE, PLAIN, -1, 0);
    for (int round = 0; round < 3; round++) {
        CHECK(move_to(part, 4 * MIB, place) == place);
        check(place, 4 * MIB, 2);
        check_apart(at, 32 * MIB);
        CHECK(move_to(place, 4 * MIB, part) == part);
        check(part, 4 * MIB, 2);
    }
    /* From one place of the arena to another. */
    CHECK(move_to(part, 4 * MIB, at + 16 * MIB) == at + 16 * MIB);
    check(at + 16 * MIB, 4 * MIB, 2);
    CHECK(move_to(at + 16 * MIB, 4 * MIB, part) == part);
    /* What the kernel refuses changes nothing. */
    CHECK(move_to(part, 4 * MIB, part + MIB) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(part, 4 * MIB, 8 * MIB, 0) == MAP_FAILED && errno == ENOMEM);
    check(part, 4 * MIB, 2);
    /* Shorter, and longer elsewhere. */
    CHECK(mremap(part, 4 * MIB, 2 * MIB, 0) == part);
    check(part, 2 * MIB, 2);
    char *moved = mremap(part, 2 * MIB, 8 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && (moved + 8 * MIB <= at || at + 32 * MIB <= moved));
    check(moved, 4 * MIB, 2);
    check_zero(moved + 4 * MIB, 4 * MIB);
    check_apart(at, 32 * MIB);
    check(at, 8 * MIB, 1);
    check_from(at + 12 * MIB, 4 * MIB, 1, 12 * MIB);
    check_from(at + 20 * MIB, 12 * MIB, 1, 20 * MIB);
    CHECK(munmap(at, 32 * MIB) == 0);
    check_apart(at, 32 * MIB);
}

/* Files take the place of all that there is. */
static void used_up(void) {
    int file = file_of(8 * MIB);
    for (int i = 0; i < 40; i++) {
        char *at = map(8 * MIB);
        fill(at, PAGE, 1);
        CHECK(mmap(at, 8 * MIB, READ_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == at);
        CHECK(munmap(at, 8 * MIB) == 0);
    }
    char *at = map(8 * MIB);
    fill(at, 8 * MIB, 1);
    check(at, 8 * MIB, 1);
}

/* Shared memory does not take the place of any, since nobody would see it go. */
static void segment(void) {
    char *at = map(16 * MIB), *place = mmap(NULL, 4 * MIB, PROT_NONE, PLAIN, -1, 0);
    fill(at, 16 * MIB, 1);
    int shared = shmget(IPC_PRIVATE, 4 * MIB, 0600 | IPC_CREAT);
    CHECK(shared >= 0);
    char *refused[] = { shmat(shared, at + MIB, SHM_REMAP),
                        shmat(shared, at + MIB + 5, SHM_REMAP | SHM_RND) };
    char *elsewhere = shmat(shared, place, SHM_REMAP);
    CHECK(shmctl(shared, IPC_RMID, NULL) == 0);
    CHECK(refused[0] == MAP_FAILED && refused[1] == MAP_FAILED && elsewhere == place);
    fill(place, 4 * MIB, 2);
    fill(map(32 * MIB), 32 * MIB, 3);
    check(at, 16 * MIB, 1);
    check(place, 4 * MIB, 2);
    CHECK(shmdt(place) == 0 && munmap(at, 16 * MIB) == 0);
    at = map(16 * MIB);
    check_zero(at, 16 * MIB);
}

/* A program advises its own memory as if it were another's. */
static void advised(void) {
    enum { SELF = -10001 };
    char *at = map(16 * MIB);
    ssize_t (*advise)(int, const struct iovec *, size_t, int, unsigned)
        = dlsym(RTLD_DEFAULT, "process_madvise");
    CHECK(advise);
    int processes[] = { syscall(SYS_pidfd_open, getpid(), 0), SELF };
    int no_process = open("/", O_RDONLY);
    struct iovec ranges[] = { { at, 4 * MIB }, { at + 8 * MIB, 4 * MIB } };
    for (uint64_t i = 0; i < 2; i++) {
        fill(at, 16 * MIB, i);
        ssize_t done = advise(processes[i], ranges, 2, MADV_DONTNEED, 0);
        size_t gone = done < 0 ? 0 : 4 * MIB;
        /* Kernels that do not take it have done nothing. */
        CHECK(done == 2 * (ssize_t)gone);
        check_zero(at, gone);
        check_from(at + gone, 8 * MIB - gone, i, gone);
        check_zero(at + 8 * MIB, gone);
        check_from(at + 8 * MIB + gone, 8 * MIB - gone, i, 8 * MIB + gone);
    }
    fill(at, 16 * MIB, 2);
    CHECK(advise(processes[0], ranges, 2, MADV_DONTNEED, 1) < 0 && errno == EINVAL);
    CHECK(advise(processes[0], ranges, 2, MADV_DONTFORK, 0) < 0 && errno == EINVAL);
    CHECK(advise(-1, ranges, 2, MADV_DONTNEED, 0) < 0 && errno == EBADF);
    CHECK(advise(no_process, ranges, 2, MADV_DONTNEED, 0) < 0 && errno == EBADF);
    check(at, 16 * MIB, 2);
}

/* A library that wants its own names first knows ours. It is found where the program says. */
static void deep(void) {
    int mode = RTLD_NOW | RTLD_DEEPBIND;
    for (int i = 0; i < 2; i++) {
        void *library = i ? dlmopen(LM_ID_BASE, "deep.so", mode) : dlopen("deep.so", mode);
        if (!library) { fprintf(stderr, "%s\n", dlerror()); _exit(1); }
        char *(*take)(size_t) = dlsym(library, "take");
        void (*give_up)(char *) = dlsym(library, "give_up");
        CHECK(take && give_up);
        char *theirs = take(8 * MIB), *ours = malloc(8 * MIB);
        CHECK(theirs && ours);
        fill(theirs, 8 * MIB, 1);
        fill(ours, 8 * MIB, 2);
        check(theirs, 8 * MIB, 1);
        free(theirs);
        give_up(ours);
        CHECK(dlclose(library) == 0);
    }
}

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
        { "swap", swap, 0 }, { "again", again, 0 }, { "foreign", foreign, 0 },
        { "used up", used_up, 0 }, { "segment", segment, 0 }, { "advised", advised, 0 },
        { "deep", deep, 0 }, { "no thread", no_thread, 1 },
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
