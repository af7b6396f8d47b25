/* Writes to a volume and reads back what was written:
 *
 *   cc -std=c11 -Ibindings/c/include bindings/c/examples/pages.c -Ltarget/release -lcenote_c -o pages
 *   LD_LIBRARY_PATH=target/release ./pages ~/.cenote/well/cluster.toml
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cenote.h"

static void check(const char *what, int32_t code)
{
    if (code != CENOTE_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, cenote_code_text(code), cenote_error_text());
        exit(1);
    }
}

int main(int argc, char **argv)
{
    enum { PAGES = 64, PAGE = 4096 };
    static uint8_t written[PAGES * PAGE], back[PAGES * PAGE];
    cenote_options options = { .size_bytes = 8 << 20, .scheme = "rs:2+1" };
    cenote_volume *volume;
    cenote_status status;

    if (argc != 2) {
        fprintf(stderr, "which cluster file?\n");
        return 2;
    }
    check("open", cenote_volume_open(argv[1], &options, &volume));
    for (size_t i = 0; i < sizeof written; i++)
        written[i] = (uint8_t)(i / 7);
    /* Neither a whole page nor at one. */
    check("write", cenote_volume_write(volume, written, sizeof written, 1000));
    check("flush", cenote_volume_flush(volume));
    check("read", cenote_volume_read(volume, back, sizeof back, 1000));
    if (memcmp(written, back, sizeof back) != 0) {
        fprintf(stderr, "other bytes came back\n");
        return 1;
    }
    check("status", cenote_volume_status(volume, &status));
    printf("%" PRIu64 " bytes, %" PRIu64 " stored on %" PRIu64 " hosts\n",
           cenote_volume_size(volume), status.stored_bytes, status.hosts_connected);
    /* What passes the end is refused, and nothing of it is written. */
    if (cenote_volume_write(volume, written, 2, cenote_volume_size(volume) - 1)
        != CENOTE_OUT_OF_RANGE) {
        fprintf(stderr, "a write behind the end was taken\n");
        return 1;
    }
    printf("refused: %s\n", cenote_error_text());
    cenote_volume_close(volume);
    return 0;
}
