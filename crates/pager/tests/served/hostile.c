/* Patterns of memory that a pager may get wrong. Each checks every byte it relies on; a name as the
 * argument chooses one. Ends with 0 when all is right. */
#include "memory.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

static void walk(void) {
    char *at = map(64 * MIB);
    check_zero(at, 64 * MIB);
    for (uint64_t round = 0; round < 3; round++) {
        fill(at, 64 * MIB, round);
        check(at, 64 * MIB, round);
    }
    CHECK(munmap(at, 64 * MIB) == 0);
}

static void remap(void) {
    char *at = map(16 * MIB);
    fill(at, 16 * MIB, 1);
    at = mremap(at, 16 * MIB, 48 * MIB, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    check(at, 16 * MIB, 1);
    check_zero(at + 16 * MIB, 32 * MIB);
    fill(at, 48 * MIB, 2);
    /* In its way, so that it has to move. */
    char *other = map(8 * MIB);
    fill(other, 8 * MIB, 3);
    at = mremap(at, 48 * MIB, 56 * MIB, MREMAP_MAYMOVE);
    CHECK(at != MAP_FAILED);
    check(at, 48 * MIB, 2);
    check_zero(at + 48 * MIB, 8 * MIB);
    at = mremap(at, 56 * MIB, 4 * MIB, 0);
    CHECK(at != MAP_FAILED);
    check(at, 4 * MIB, 2);
    /* To a place of ours, over ordinary memory. */
    char *place = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mremap(at, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
    check(place, 4 * MIB, 2);
    check(other, 8 * MIB, 3);
    /* And over a part of another mapping. */
    CHECK(mremap(place, 4 * MIB, 4 * MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other + 2 * MIB)
          == other + 2 * MIB);
    check(other, 2 * MIB, 3);
    check(other + 2 * MIB, 4 * MIB, 2);
    check_from(other + 6 * MIB, 2 * MIB, 3, 6 * MIB);
}

static void unmap(void) {
    char *at = map(32 * MIB);
    fill(at, 32 * MIB, 1);
    for (size_t i = 0; i < 32; i += 2) CHECK(munmap(at + i * MIB, MIB) == 0);
    char *others[16];
    for (size_t i = 0; i < 16; i++) {
        others[i] = map(MIB);
        check_zero(others[i], MIB);
        fill(others[i], MIB, 100 + i);
    }
    for (size_t i = 1; i < 32; i += 2) check_from(at + i * MIB, MIB, 1, i * MIB);
    for (size_t i = 0; i < 16; i++) check(others[i], MIB, 100 + i);
}

static void advise(void) {
    char *at = map(32 * MIB);
    fill(at, 32 * MIB, 1);
    CHECK(madvise(at + 4 * MIB, 8 * MIB, MADV_DONTNEED) == 0);
    check(at, 4 * MIB, 1);
    check_zero(at + 4 * MIB, 8 * MIB);
    check_from(at + 12 * MIB, 20 * MIB, 1, 12 * MIB);
    CHECK(madvise(at, 32 * MIB, MADV_HUGEPAGE) == 0);
    CHECK(madvise(at, 32 * MIB, MADV_FREE) == 0);
    fill(at, 32 * MIB, 2);
    check(at, 32 * MIB, 2);
    /* Again and again, while pages are on their way out. */
    for (uint64_t round = 3; round < 20; round++) {
        fill(at, 32 * MIB, round);
        size_t from = round % 7 * MIB, len = (round % 5 + 1) * 5 * PAGE;
        CHECK(madvise(at + from, len, MADV_DONTNEED) == 0);
        check_zero(at + from, len);
        check(at, from, round);
        check_from(at + from + len, 32 * MIB - from - len, round, from + len);
    }
}

static sig_atomic_t faulted;
static char *guarded;
static void let(int signal) {
    (void)signal;
    faulted++;
    mprotect(guarded, 16 * MIB, PROT_READ | PROT_WRITE);
}

static void protect(void) {
    struct sigaction action = { .sa_handler = let };
    sigaction(SIGSEGV, &action, NULL);
    guarded = map(16 * MIB);
    fill(guarded, 16 * MIB, 1);
    CHECK(mprotect(guarded, 16 * MIB, PROT_READ) == 0);
    check(guarded, 16 * MIB, 1);
    *(uint64_t *)guarded = word(0, 1);
    CHECK(faulted == 1);
    CHECK(mprotect(guarded, 16 * MIB, PROT_NONE) == 0);
    /* Others push it out, though nobody may read it. */
    char *other = map(32 * MIB);
    fill(other, 32 * MIB, 2);
    check(guarded, 16 * MIB, 1);
    CHECK(faulted == 2);
    check(other, 32 * MIB, 2);
}

static void fixed(void) {
    char *at = map(32 * MIB);
    fill(at, 32 * MIB, 1);
    char name[] = "/tmp/cenote-hostile-XXXXXX";
    int file = mkstemp(name);
    CHECK(file >= 0 && unlink(name) == 0);
    char page[PAGE];
    memset(page, 7, PAGE);
    for (int i = 0; i < 512; i++) CHECK(write(file, page, PAGE) == (ssize_t)PAGE);
    CHECK(mmap(at + 8 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0)
          == at + 8 * MIB);
    CHECK(mmap(at + 16 * MIB, 4 * MIB, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at + 16 * MIB);
    char *other = map(48 * MIB);
    fill(other, 48 * MIB, 2);
    check(at, 8 * MIB, 1);
    for (size_t i = 0; i < 2 * MIB; i++) CHECK(at[8 * MIB + i] == 7);
    check_from(at + 10 * MIB, 6 * MIB, 1, 10 * MIB);
    check_zero(at + 16 * MIB, 4 * MIB);
    check_from(at + 20 * MIB, 12 * MIB, 1, 20 * MIB);
    at[8 * MIB] = 9;
    CHECK(pread(file, page, 1, 0) == 1 && page[0] == 9);
    CHECK(munmap(at, 32 * MIB) == 0);
    at = map(32 * MIB);
    check_zero(at, 32 * MIB);
    check(other, 48 * MIB, 2);
}

static volatile int is_done;
static char *shared_range;
/* Counts through its part for as long as the others fork. */
static void *write_on(void *argument) {
    size_t from = (size_t)argument * 8 * MIB;
    for (uint64_t round = 1; !is_done; round++)
        for (size_t i = 0; i < 8 * MIB; i += PAGE) {
            *(uint64_t *)(shared_range + from + i) = round;
            *(uint64_t *)(shared_range + from + i + 8) = ~round;
        }
    return NULL;
}

/* What a child may see of a writer: rounds that go down by one at most once. */
static void snapshot(void) {
    for (size_t part = 0; part < 2; part++) {
        uint64_t first = 0;
        int steps = 0;
        for (int again = 0; again < 2; again++)
            for (size_t i = 0; i < 8 * MIB; i += PAGE) {
                uint64_t *at = (uint64_t *)(shared_range + part * 8 * MIB + i);
                if (i == 0) { first = at[0]; steps = 0; }
                CHECK(at[1] == ~at[0] || (i != 0 && at[0] == first) || at[0] + ~at[1] == 1 + 2 * ~at[1]
                      || at[0] == ~at[1] + 1);
                if (at[0] != first) { CHECK(at[0] + 1 == first && ++steps == 1); first = at[0]; }
            }
    }
}

static void forks(int by_clone) {
    shared_range = map(48 * MIB);
    char *quiet = shared_range + 16 * MIB;
    fill(shared_range, 48 * MIB, 0);
    fill(quiet, 32 * MIB, 5);
    pthread_t writers[2];
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < 8 * MIB; j += PAGE) {
            *(uint64_t *)(shared_range + i * 8 * MIB + j) = 0;
            *(uint64_t *)(shared_range + i * 8 * MIB + j + 8) = ~0UL;
        }
    for (size_t i = 0; i < 2; i++)
        CHECK(pthread_create(&writers[i], NULL, write_on, (void *)i) == 0);
    for (uint64_t round = 0; round < 4; round++) {
        pid_t child = by_clone ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        CHECK(child >= 0);
        if (child == 0) {
            snapshot();
            check(quiet, 32 * MIB, 5 + round);
            /* What it writes is its own, and so is what it gives up. */
            fill(quiet, 16 * MIB, 99);
            CHECK(madvise(quiet + 16 * MIB, MIB, MADV_DONTNEED) == 0);
            check_zero(quiet + 16 * MIB, MIB);
            check(quiet, 16 * MIB, 99);
            snapshot();
            pid_t grandchild = by_clone ? 0 : fork();
            if (grandchild == 0) {
                check(quiet, 16 * MIB, 99);
                check_zero(quiet + 16 * MIB, MIB);
                check_from(quiet + 17 * MIB, 15 * MIB, 5 + round, 17 * MIB);
                _exit(0);
            }
            _exit(ended(grandchild));
        }
        check(quiet, 32 * MIB, 5 + round);
        fill(quiet, 32 * MIB, 6 + round);
        CHECK(ended(child) == 0);
        check(quiet, 32 * MIB, 6 + round);
    }
    is_done = 1;
    for (size_t i = 0; i < 2; i++) pthread_join(writers[i], NULL);
}

static void fork_(void) { forks(0); }
static void clone_(void) { forks(1); }

static void *fork_in_thread(void *name) {
    char *at = map(24 * MIB);
    fill(at, 24 * MIB, 1);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            check(at, 24 * MIB, 1);
            /* It begins again, with a memory of its own. */
            execl(name, name, "walk", NULL);
            _exit(9);
        }
        CHECK(ended(child) == 0);
    }
    check(at, 24 * MIB, 1);
    return NULL;
}

static char *self;
static void exec(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, fork_in_thread, self) == 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK(system("true") == 0);
}

static void many(void) {
    enum { COUNT = 3000 };
    static char *at[COUNT];
    static size_t len[COUNT];
    uint64_t state = 1;
    for (int step = 0; step < 30000; step++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        int i = (state >> 33) % COUNT;
        if (at[i]) {
            CHECK(at[i][0] == (char)i && at[i][len[i] - 1] == (char)(i + 1));
            if (step % 3 == 0) {
                size_t grown = len[i] * 2 % 300000 + 2;
                at[i] = realloc(at[i], grown);
                CHECK(at[i] && at[i][0] == (char)i);
                if (grown > len[i]) CHECK(at[i][len[i] - 1] == (char)(i + 1));
                len[i] = grown;
                at[i][grown - 1] = (char)(i + 1);
                at[i][0] = (char)i;
                continue;
            }
            free(at[i]);
        }
        len[i] = (state >> 40) % (step % 10 == 0 ? 400000 : 20000) + 2;
        at[i] = step % 2 ? malloc(len[i]) : calloc(1, len[i]);
        CHECK(at[i]);
        if (step % 2 == 0) for (size_t j = 0; j < len[i]; j += 509) CHECK(at[i][j] == 0);
        at[i][0] = (char)i;
        at[i][len[i] - 1] = (char)(i + 1);
    }
    for (size_t align = 16; align <= 4 * MIB; align *= 2) {
        void *block;
        CHECK(posix_memalign(&block, align, 300000) == 0 && (uintptr_t)block % align == 0);
        memset(block, 1, 300000);
        CHECK(malloc_usable_size(block) >= 300000);
        free(block);
        block = aligned_alloc(align, align * 2);
        CHECK(block && (uintptr_t)block % align == 0);
        free(block);
    }
    volatile size_t much = SIZE_MAX / 2;
    CHECK(malloc(much) == NULL && calloc(much, 4) == NULL && realloc(NULL, much * 2) == NULL);
    CHECK(malloc_trim(0) >= 0);
}

/* The heap keeps its end, whatever is wished for. */
static void trim(void) {
    char *all[2048], *end;
    for (size_t i = 0; i < 2048; i++) {
        all[i] = malloc(8192);
        memset(all[i], 1, 8192);
    }
    end = sbrk(0);
    CHECK(mallopt(M_TRIM_THRESHOLD, 64 << 10) == 1 && mallopt(M_TOP_PAD, 0) == 1);
    for (size_t i = 0; i < 2048; i++) free(all[i]);
    CHECK(sbrk(0) == end);
}

/* More than the volume has: the rest is ordinary. */
static void huge(void) {
    char *all[40];
    for (uint64_t i = 0; i < 40; i++) {
        all[i] = map(8 * MIB);
        fill(all[i], 8 * MIB, i);
    }
    for (uint64_t i = 0; i < 40; i++) check(all[i], 8 * MIB, i);
    char *sparse = mmap(NULL, 1UL << 40, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (sparse != MAP_FAILED) {
        sparse[1UL << 39] = 1;
        CHECK(sparse[1UL << 39] == 1 && sparse[0] == 0);
    }
}

/* Direct transfers are refused: a device does not ask where a page is. */
static void direct(void) {
    CHECK(open("/tmp", O_DIRECT | O_TMPFILE | O_RDWR, 0600) < 0 && errno == EINVAL);
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(file < 0 || fcntl(file, F_SETFL, O_DIRECT) < 0);
    struct { unsigned len; int kind; char name[64]; } handle = { 64, 0, "" };
    int flags = O_RDONLY | O_DIRECT;
    CHECK(syscall(SYS_open_by_handle_at, -1, &handle, flags) < 0 && errno == EINVAL);
    CHECK(syscall(SYS_open_by_handle_at, -1, &handle, O_RDONLY) < 0 && errno == EBADF);
    CHECK(syscall(SYS_openat2, AT_FDCWD, "/tmp", NULL, 0) < 0 && errno == ENOSYS);
    CHECK(syscall(SYS_io_uring_setup, 8, NULL) < 0 && errno == ENOSYS);
    CHECK(syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0) < 0 && errno == ENOSYS);
    CHECK(syscall(SYS_io_uring_register, -1, 0, NULL, 0) < 0 && errno == ENOSYS);
    int pipes[2];
    CHECK(pipe2(pipes, O_DIRECT) == 0);
    uint64_t from = 1, to = 0;
    struct iovec source = { &from, 8 }, target = { &to, 8 };
    CHECK(process_vm_writev(getpid(), &source, 1, &target, 1, 0) < 0 && errno == ENOSYS);
    CHECK(process_vm_readv(getpid(), &target, 1, &source, 1, 0) == 8 && to == 1);
    CHECK(socket(AF_ALG, SOCK_SEQPACKET, 0) < 0 && errno == EAFNOSUPPORT);
    CHECK(socket(AF_XDP, SOCK_RAW, 0) < 0 && errno == EAFNOSUPPORT);
    int tcp = socket(AF_INET, SOCK_STREAM, 0), is_on = 1;
    CHECK(tcp >= 0 && setsockopt(tcp, IPPROTO_TCP, TCP_ULP, "tls", 4) < 0 && errno == ENOENT);
    CHECK(setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &is_on, sizeof is_on) == 0);
    CHECK(setsockopt(tcp, SOL_SOCKET, SO_REUSEADDR, &is_on, sizeof is_on) == 0);
}

/* Pages are not merged with others: a write to one that is would be lost. */
static void merge(void) {
    enum { SET_MEMORY_MERGE = 67, GET_MEMORY_MERGE = 68 };
    CHECK(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0);
    CHECK(prctl(SET_MEMORY_MERGE, 1, 0, 0, 0) < 0 && errno == EINVAL);
    char *at = map(8 * MIB);
    fill(at, 8 * MIB, 1);
    CHECK(madvise(at, 8 * MIB, MADV_MERGEABLE) < 0 && errno == EINVAL);
    CHECK(syscall(SYS_madvise, at, 8 * MIB, MADV_MERGEABLE) < 0 && errno == EINVAL);
    struct iovec range = { at, 8 * MIB };
    long done = syscall(SYS_process_madvise, -10001, &range, 1, MADV_MERGEABLE, 0);
    CHECK(done < 0 && errno == EINVAL);
    CHECK(prctl(GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0);
}

static char *crowded;

/* Each thread has a word of every page, reads and writes it anywhere, and knows what it wrote; now and
 * then it maps, fills, grows, gives up and unmaps memory that crosses stripes of all handlers. */
static void *be_one_of_many(void *number) {
    size_t self = (size_t)number, pages = 48 * MIB / PAGE;
    uint64_t state = self + 1, *truth = calloc(pages, 8);
    CHECK(truth != NULL);
    for (uint64_t step = 1; step < 30000; step++) {
        state = state * 6364136223846793005UL + 1442695040888963407UL;
        size_t page = (state >> 33) % pages;
        volatile uint64_t *at = (uint64_t *)(crowded + page * PAGE) + self;
        CHECK(*at == truth[page]);
        if ((state >> 20) % 3 == 0) *at = truth[page] = step;
        if (step % 5000 == 0) {
            char *own = map(6 * MIB);
            check_zero(own, 6 * MIB);
            fill(own, 6 * MIB, step);
            CHECK(madvise(own + MIB, 3 * MIB, MADV_DONTNEED) == 0);
            check_zero(own + MIB, 3 * MIB);
            own = mremap(own, 6 * MIB, 8 * MIB, MREMAP_MAYMOVE);
            CHECK(own != MAP_FAILED);
            check(own, MIB, step);
            check_from(own + 4 * MIB, 2 * MIB, step, 4 * MIB);
            check_zero(own + 6 * MIB, 2 * MIB);
            CHECK(munmap(own, 8 * MIB) == 0);
        }
    }
    for (size_t page = 0; page < pages; page++)
        CHECK(((uint64_t *)(crowded + page * PAGE))[self] == truth[page]);
    free(truth);
    return NULL;
}

static void crowd(void) {
    crowded = map(48 * MIB);
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, be_one_of_many, (void *)i) == 0);
    for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

/* Descriptors closed, locks asked for, libc passed by. */
static void rude(void) {
    char *at = map(32 * MIB);
    fill(at, 32 * MIB, 1);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    check(at, 32 * MIB, 1);
    CHECK(mlock(at, 32 * MIB) == 0 && munlock(at, 32 * MIB) == 0);
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) != 0);
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    if (file >= 0) {
        CHECK(write(file, at, 32 * MIB) == (ssize_t)(32 * MIB));
        char *copy = map(32 * MIB);
        CHECK(pread(file, copy, 32 * MIB, 0) == (ssize_t)(32 * MIB));
        check(copy, 32 * MIB, 1);
    }
    CHECK(madvise(at, 32 * MIB, MADV_DONTNEED) == 0);
    check_zero(at, 32 * MIB);
    /* A call that goes round libc: what is there now is another's, and stays. */
    fill(at, 32 * MIB, 2);
    CHECK(syscall(SYS_munmap, at, 4 * MIB) == 0);
    char *again = (char *)syscall(SYS_mmap, at, 4 * MIB, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(again == at);
    fill(at, 4 * MIB, 3);
    char *other = map(48 * MIB);
    fill(other, 48 * MIB, 4);
    check(at, 4 * MIB, 3);
    check_from(at + 4 * MIB, 28 * MIB, 2, 4 * MIB);
    check(other, 48 * MIB, 4);
}

int main(int count, char **arguments) {
    struct { const char *name; void (*run)(void); } all[] = {
        { "walk", walk }, { "remap", remap }, { "unmap", unmap }, { "advise", advise },
        { "protect", protect }, { "fixed", fixed }, { "fork", fork_ }, { "clone", clone_ },
        { "exec", exec }, { "many", many }, { "huge", huge }, { "rude", rude }, { "direct", direct },
        { "crowd", crowd }, { "trim", trim }, { "merge", merge },
    };
    self = arguments[0];
    /* What is small at first is left alone. */
    CHECK(count == 2 && map(4 * MIB));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(arguments[1], all[i].name) == 0) { all[i].run(); return 0; }
    return 2;
}
