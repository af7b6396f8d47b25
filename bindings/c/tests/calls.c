/* Every call of the library, against a cluster that runs. tests/run.py builds it with the address
 * sanitizer:
 *
 *     calls volume CLUSTER_FILE      a volume; at "kill" a host is killed, the answer is a line
 *     calls cache FOLDER NAME        a cache of two copies, 8 MiB in regions of 1 MiB
 *     calls hostile CLUSTER_FILE     what no caller should pass
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cenote.h"

#define IS(got, wanted)                                                                        \
    do {                                                                                       \
        long long is = (long long)(got), should = (long long)(wanted);                         \
        if (is != should) {                                                                    \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld: %s\n", __FILE__, __LINE__, #got, is, \
                    should, cenote_last_error());                                              \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)
#define OK(got) IS(got, CENOTE_RESULT_OK)

enum { MIB = 1 << 20, LEN = 3 * MIB + 77 };

static unsigned char *pattern(unsigned seed, size_t len)
{
    unsigned char *bytes = malloc(len);
    for (size_t at = 0; at < len; at++)
        bytes[at] = (unsigned char)(at * 31 + at / 4096 + seed);
    return bytes;
}

static void ask(const char *what)
{
    char line[16];
    printf("%s\n", what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        exit(1);
}

struct share {
    cenote_volume *volume;
    unsigned number;
};

static void *one_of_many(void *argument)
{
    struct share *share = argument;
    unsigned char *wanted = pattern(share->number, 64 << 10), *found = malloc(64 << 10);
    uint64_t offset = 8 * MIB + share->number * (64 << 10);
    for (int round = 0; round < 20; round++) {
        OK(cenote_volume_write(share->volume, wanted, 64 << 10, offset));
        OK(cenote_volume_read(share->volume, found, 64 << 10, offset));
        IS(memcmp(wanted, found, 64 << 10), 0);
    }
    free(wanted);
    free(found);
    return NULL;
}

static void volume(const char *cluster_file)
{
    cenote_volume_options options = {
        .size_bytes = 16 * MIB, .scheme = "rs:2+1", .name = "calls", .threads = 2
    };
    cenote_volume *volume;
    OK(cenote_volume_open(cluster_file, &options, &volume));
    IS(cenote_volume_size(volume), 16 * MIB);

    unsigned char *wanted = pattern(1, LEN), *found = malloc(LEN);
    OK(cenote_volume_write(volume, wanted, LEN, 4001));
    pthread_t threads[8];
    struct share shares[8];
    for (unsigned number = 0; number < 8; number++) {
        shares[number] = (struct share){ volume, number };
        IS(pthread_create(&threads[number], NULL, one_of_many, &shares[number]), 0);
    }
    for (int number = 0; number < 8; number++)
        IS(pthread_join(threads[number], NULL), 0);

    ask("kill");
    OK(cenote_volume_read(volume, found, LEN, 4001));
    IS(memcmp(wanted, found, LEN), 0);
    cenote_volume_status status;
    OK(cenote_volume_get_status(volume, &status));
    IS(strcmp(status.scheme, "rs:2+1"), 0);
    IS(status.hosts, 3);
    IS(status.is_readable, 1);
    IS(status.stored_bytes >= LEN, 1);

    OK(cenote_volume_discard(volume, 0, 16 * MIB));
    OK(cenote_volume_read(volume, found, LEN, 0));
    for (int at = 0; at < LEN; at++)
        IS(found[at], 0);

    IS(cenote_volume_write(volume, wanted, 2, 16 * MIB - 1), CENOTE_RESULT_OUT_OF_RANGE);
    IS(cenote_volume_read(volume, found, LEN, UINT64_MAX - 5), CENOTE_RESULT_OUT_OF_RANGE);

    /* The parent's volume is nothing for a child, and lives on. */
    pid_t child = fork();
    if (child == 0) {
        int is = cenote_volume_read(volume, found, 1, 0);
        cenote_volume_close(volume);
        _exit(is == CENOTE_RESULT_FORKED ? 0 : 1);
    }
    int ended;
    IS(waitpid(child, &ended, 0), child);
    IS(ended, 0);
    OK(cenote_volume_write(volume, wanted, 4096, 0));
    cenote_volume_close(volume);
    free(wanted);
    free(found);
}

static void cache(const char *folder, const char *name)
{
    cenote_cache_options options = { .name = "calls", .timeout_ms = 20000 };
    cenote_cache *cache;
    OK(cenote_cache_open_in(folder, name, &options, &cache));
    IS(cenote_cache_size(cache), 8 * MIB);
    IS(cenote_cache_region_size(cache), MIB);
    unsigned char *wanted = pattern(2, LEN), *found = malloc(LEN);
    /* Over several regions. */
    OK(cenote_cache_write(cache, wanted, LEN, 123));
    OK(cenote_cache_read(cache, found, LEN, 123));
    IS(memcmp(wanted, found, LEN), 0);
    IS(cenote_cache_read(cache, found, 2, 8 * MIB - 1), CENOTE_RESULT_OUT_OF_RANGE);
    cenote_cache_status status;
    OK(cenote_cache_get_status(cache, &status));
    IS(status.size_bytes, 8 * MIB);
    IS(status.copies, 2);
    IS(status.is_whole, 1);
    uint32_t lost[4];
    size_t count = 9;
    OK(cenote_cache_take_lost(cache, lost, 4, &count));
    IS(count, 0);
    cenote_cache_fell_back fallen[4];
    count = 9;
    OK(cenote_cache_take_fallen_back(cache, fallen, 4, &count));
    IS(count, 0);
    IS(cenote_cache_take_fallen_back(cache, NULL, 4, &count), CENOTE_RESULT_INVALID_ARGUMENT);
    cenote_cache_close(cache);

    IS(cenote_cache_open_in(folder, "none", NULL, &cache), CENOTE_RESULT_UNREACHABLE);
    IS(cenote_is_retryable(CENOTE_RESULT_UNREACHABLE), 1);
    IS(cenote_cache_open_in(folder, "../x", NULL, &cache), CENOTE_RESULT_CONFIGURATION);
    const char *addresses[] = { "nonsense" };
    IS(cenote_cache_open_at(addresses, 1, "key", NULL, &cache), CENOTE_RESULT_CONFIGURATION);
    free(wanted);
    free(found);
}

static void hostile(const char *cluster_file)
{
    cenote_volume *volume = NULL;
    cenote_volume_options options = { .size_bytes = 4097 };
    IS(strlen(cenote_last_error()), 0);
    IS(cenote_volume_open(NULL, NULL, &volume), CENOTE_RESULT_INVALID_ARGUMENT);
    IS(strstr(cenote_last_error(), "cluster_file") != NULL, 1);
    IS(cenote_volume_open(cluster_file, NULL, NULL), CENOTE_RESULT_INVALID_ARGUMENT);
    IS(cenote_volume_open("\xff\xfe", NULL, &volume), CENOTE_RESULT_INVALID_ARGUMENT);
    IS(cenote_volume_open("/no/such/file", NULL, &volume), CENOTE_RESULT_CONFIGURATION);
    IS(strstr(cenote_last_error(), "/no/such/file") != NULL, 1);
    IS(cenote_volume_open(cluster_file, &options, &volume), CENOTE_RESULT_CONFIGURATION);
    options = (cenote_volume_options){ .scheme = "rs:200+100" };
    IS(cenote_volume_open(cluster_file, &options, &volume) != CENOTE_RESULT_OK, 1);
    IS(volume == NULL, 1);
    IS(cenote_volume_size(NULL), 0);
    IS(cenote_volume_read(NULL, &options, 1, 0), CENOTE_RESULT_INVALID_ARGUMENT);
    cenote_volume_close(NULL);
    cenote_cache_close(NULL);
    IS(cenote_cache_open_at(NULL, 1, "key", NULL, NULL), CENOTE_RESULT_INVALID_ARGUMENT);

    options = (cenote_volume_options){ .size_bytes = MIB };
    OK(cenote_volume_open(cluster_file, &options, &volume));
    IS(cenote_volume_read(volume, NULL, 1, 0), CENOTE_RESULT_INVALID_ARGUMENT);
    IS(cenote_volume_write(volume, NULL, SIZE_MAX, 0), CENOTE_RESULT_INVALID_ARGUMENT);
    IS(cenote_volume_write(volume, &options, SIZE_MAX, 0), CENOTE_RESULT_INVALID_ARGUMENT);
    OK(cenote_volume_read(volume, NULL, 0, 0));
    IS(cenote_volume_discard(volume, UINT64_MAX, UINT64_MAX), CENOTE_RESULT_OUT_OF_RANGE);
    IS(cenote_volume_get_status(volume, NULL), CENOTE_RESULT_INVALID_ARGUMENT);
    cenote_volume_close(volume);
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "volume"))
        volume(argv[2]);
    else if (argc == 4 && !strcmp(argv[1], "cache"))
        cache(argv[2], argv[3]);
    else if (argc == 3 && !strcmp(argv[1], "hostile"))
        hostile(argv[2]);
    else
        return 2;
    printf("done\n");
    return 0;
}
