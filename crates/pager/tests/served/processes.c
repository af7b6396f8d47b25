/* Threads, forks, credentials and refusals, around memory that is served. A name as the argument chooses
 * one. Ends with 0 when all is right. */
#include "memory.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* A mapping that the kernel refuses takes the place of nothing. */
static void refused(void) {
    char *at = map(32 * MIB);
    fill(at, 32 * MIB, 1);
    int flags = MAP_SHARED | MAP_FIXED, program = open("/proc/self/exe", O_RDONLY);
    int null = open("/dev/null", O_RDWR);
    CHECK(program >= 0 && null >= 0);
    int files[] = { -1, program, null }, errors[] = { EBADF, EACCES, ENODEV };
    for (size_t i = 0; i < 3; i++) {
        void *place = mmap(at + i * MIB, 16 * MIB, PROT_READ | PROT_WRITE, flags, files[i], 0);
        CHECK(place == MAP_FAILED && errno == errors[i]);
    }
    char *gone = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(munmap(gone, MIB) == 0);
    CHECK(mremap(gone, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED);
    CHECK(mremap(gone + 1, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, at) == MAP_FAILED);
    check(at, 32 * MIB, 1);
}

/* Whether a range is left out of dumps of core. */
static int is_hidden(char *at) {
    char line[256];
    unsigned long from, to;
    int is_there = 0, is_hidden = -1;
    FILE *maps = fopen("/proc/self/smaps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
            is_there = from <= (unsigned long)at && (unsigned long)at < to;
        else if (is_there && strncmp(line, "VmFlags:", 8) == 0)
            is_hidden = strstr(line, " dd") != NULL;
    }
    fclose(maps);
    return is_hidden;
}

/* What is done to memory does not stay on it for its next owner. */
static void owners(void) {
    char *at = map(8 * MIB);
    CHECK(madvise(at, 8 * MIB, MADV_DONTDUMP) == 0 && is_hidden(at) == 1);
    CHECK(munmap(at, 8 * MIB) == 0 && map(8 * MIB) == at && is_hidden(at) == 0);
    int key = pkey_alloc(0, PKEY_DISABLE_ACCESS), access = PROT_READ | PROT_WRITE;
    for (uint64_t round = 0; key >= 0 && round < 2; round++) {
        CHECK(pkey_mprotect(at, 8 * MIB, access, key) == 0);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS;
        if (round == 0) CHECK(munmap(at, 8 * MIB) == 0 && map(8 * MIB) == at);
        else CHECK(mmap(at, 8 * MIB, access, flags | MAP_FIXED, -1, 0) == at);
        fill(at, 8 * MIB, round);
        check(at, 8 * MIB, round);
    }
}

/* The kernel takes mutexes of this kind, and does not wait for their pages. */
static void mutexes(void) {
    pthread_mutexattr_t attributes;
    CHECK(pthread_mutexattr_init(&attributes) == 0);
    CHECK(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == ENOTSUP);
    CHECK(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_NONE) == 0);
    pthread_mutex_t *in_a_block = malloc(8 * MIB);
    CHECK(pthread_mutex_init(in_a_block, &attributes) == 0);
    CHECK(pthread_mutex_lock(in_a_block) == 0 && pthread_mutex_unlock(in_a_block) == 0);
}

/* Waits for so long at most. */
static int ended_soon(pid_t child) {
    int status;
    for (int ms = 0; ms < 60000; ms++) {
        if (waitpid(child, &status, WNOHANG) == child)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
        usleep(1000);
    }
    kill(child, SIGKILL);
    ended(child);
    return -1;
}

/* Does something in a child, which may wait for ever. */
static void in_time(void (*run)(void)) {
    pid_t child = fork();
    if (child == 0) { run(); _exit(0); }
    CHECK(ended_soon(child) == 0);
}

/* Which system call a thread is in, if it is in one. */
static long call_of(pid_t thread) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0 && close(file) == 0);
    return isdigit(text[0]) ? atol(text) : -1;
}

static volatile pid_t allocating;
static void *allocate(void *unused) {
    allocating = syscall(SYS_gettid);
    char *at = malloc(5 * MIB);
    CHECK(at);
    fill(at, 5 * MIB, 2);
    check(at, 5 * MIB, 2);
    return unused;
}

/* Forks while another thread waits for the serving process, which has not let the program in. */
static void early_fork(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, allocate, NULL) == 0);
    while (!allocating || call_of(allocating) != SYS_recvmsg) ;
    pid_t child = fork();
    if (child == 0) {
        char *at = malloc(MIB);
        CHECK(at);
        fill(at, MIB, 1);
        check(at, MIB, 1);
        _exit(0);
    }
    CHECK(ended_soon(child) == 0);
    pthread_join(thread, NULL);
}

static volatile int is_done;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
static void *map_locked(void *unused) {
    while (!is_done) {
        lock();
        char *at = map(MIB);
        CHECK(munmap(at, MIB) == 0);
        unlock();
    }
    return unused;
}

/* An allocator that maps memory under its lock, which is taken for forks. */
static void fork_around_a_lock(void) {
    CHECK(pthread_atfork(lock, unlock, unlock) == 0);
    pthread_t thread;
    map(8 * MIB);
    CHECK(pthread_create(&thread, NULL, map_locked, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        CHECK(ended(child) == 0);
    }
    is_done = 1;
    pthread_join(thread, NULL);
}
static void handlers(void) { in_time(fork_around_a_lock); }

static char *self;
static volatile int is_loading, is_mapped;
/* Called by the constructor of a library that is being loaded. */
void being_loaded(void) {
    is_loading = 1;
    while (!is_mapped && call_of(getpid()) != SYS_futex) ;
    char *at = malloc(5 * MIB);
    CHECK(at);
    fill(at, 5 * MIB, 1);
}
static void *load(void *unused) {
    char path[4096];
    snprintf(path, sizeof path, "%s.so", self);
    CHECK(dlopen(path, RTLD_NOW) != NULL);
    return unused;
}
static void map_while_loading(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, load, NULL) == 0);
    while (!is_loading) ;
    fill(map(8 * MIB), 8 * MIB, 2);
    is_mapped = 1;
    pthread_join(thread, NULL);
}
static void loader(void) { in_time(map_while_loading); }

/* What is locked for good is not filled for good. */
static void locked(void) {
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) != 0 && errno == ENOMEM);
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
    char *at = map(64 * MIB);
    for (uint64_t round = 0; round < 2; round++) {
        fill(at, 64 * MIB, round);
        check(at, 64 * MIB, round);
    }
}

/* A program that is root no more has no thread that is. */
static void no_root(void) {
    char *at = malloc(32 * MIB), line[512];
    CHECK(at && prctl(PR_GET_DUMPABLE) == 1);
    fill(at, 32 * MIB, 1);
    if (geteuid() != 0) return;
    CHECK(setuid(65534) == 0);
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads);
    int seen = 0;
    for (struct dirent *thread; (thread = readdir(threads));) {
        if (thread->d_name[0] == '.') continue;
        int is_main = atoi(thread->d_name) == getpid();
        snprintf(line, sizeof line, "/proc/self/task/%s/status", thread->d_name);
        FILE *status = fopen(line, "r");
        CHECK(status);
        while (fgets(line, sizeof line, status)) {
            unsigned ids[4], is_gid = strncmp(line, "Gid:", 4) == 0;
            if (strncmp(line, "Uid:", 4) == 0 || (is_gid && !is_main)) {
                CHECK(sscanf(line + 4, "%u %u %u %u", ids, ids + 1, ids + 2, ids + 3) == 4);
                CHECK(ids[0] && ids[1] && ids[2] && ids[3]);
                seen++;
            }
            if (strncmp(line, "CapEff:", 7) == 0 || strncmp(line, "CapPrm:", 7) == 0)
                CHECK(strtoull(line + 7, NULL, 16) == 0);
        }
        fclose(status);
    }
    /* One of this thread, two of an agent. */
    CHECK(seen >= 3);
    check(at, 32 * MIB, 1);
}

/* Children are served whatever the environment is by then. */
static void environment(void) {
    char *at = map(32 * MIB), *settings = getenv("CENOTE_RUN");
    fill(at, 32 * MIB, 1);
    memset(settings, 'x', strlen(settings));
    CHECK(clearenv() == 0);
    pid_t child = fork();
    if (child == 0) {
        check(at, 32 * MIB, 1);
        fill(at, 32 * MIB, 2);
        check(at, 32 * MIB, 2);
        _exit(0);
    }
    CHECK(ended(child) == 0);
    check(at, 32 * MIB, 1);
}

/* How a child ends that has no room for its agent: it would have no bound. */
static int without_agent(int is_first) {
    char *at = map(32 * MIB);
    fill(at, 32 * MIB, 1);
    CHECK(!is_first || unshare(CLONE_NEWPID) == 0);
    int null = open("/dev/null", O_WRONLY), told = dup(2);
    struct rlimit before, none = { 0, 0 };
    CHECK(null >= 0 && told >= 0 && getrlimit(RLIMIT_AS, &before) == 0);
    none.rlim_max = before.rlim_max;
    CHECK(dup2(null, 2) == 2 && setrlimit(RLIMIT_AS, &none) == 0);
    pid_t child = fork();
    if (child == 0) _exit(0);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0 && dup2(told, 2) == 2);
    int how = ended_soon(child);
    check(at, 32 * MIB, 1);
    return how;
}
static void no_agent(void) { CHECK(without_agent(0) == 1000 + SIGKILL); }
/* The first process of a container cannot kill itself. */
static void no_agent_first(void) { CHECK(without_agent(1) == 128 + SIGKILL); }

int main(int count, char **arguments) {
    struct { const char *name; void (*run)(void); int is_early; } all[] = {
        { "early fork", early_fork, 1 }, { "handlers", handlers, 1 }, { "loader", loader, 1 },
        { "locked", locked, 1 }, { "no root", no_root, 0 }, { "environment", environment, 0 },
        { "no agent", no_agent, 0 }, { "no agent first", no_agent_first, 0 },
        { "refused", refused, 0 }, { "mutexes", mutexes, 0 }, { "owners", owners, 0 },
    };
    self = arguments[0];
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
