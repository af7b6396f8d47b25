/* Writes to a cluster's memory and reads it back: pages CLUSTER_FILE */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cenote.h"

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cenote_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: pages CLUSTER_FILE\n");
        return 2;
    }
    cenote_volume_options options = { .size_bytes = 64 << 20 };
    cenote_volume *volume;
    if (cenote_volume_open(argv[1], &options, &volume) != CENOTE_RESULT_OK)
        return failed("open a volume");

    static unsigned char page[4096], back[4096];
    memset(page, 7, sizeof page);
    for (uint64_t number = 0; number < 1024; number++)
        if (cenote_volume_write(volume, page, sizeof page, number * 4096) != CENOTE_RESULT_OK)
            return failed("write");
    if (cenote_volume_read(volume, back, sizeof back, 1000 * 4096) != CENOTE_RESULT_OK)
        return failed("read");
    if (memcmp(page, back, sizeof page) != 0) {
        fprintf(stderr, "other bytes came back\n");
        return 1;
    }

    cenote_volume_status status;
    if (cenote_volume_get_status(volume, &status) != CENOTE_RESULT_OK)
        return failed("status");
    printf("%s, %" PRIu64 " bytes stored\n", status.scheme, status.stored_bytes);
    cenote_volume_close(volume);
    return 0;
}
