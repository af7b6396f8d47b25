/*
 * A cluster's memory for C programs: volumes and remote caches.
 *
 * Link with -lcenote_c. Every call but those that say so may be made by any thread, and by many at a
 * time; it returns when it is done. Calls that may fail return a cenote_result; what went wrong is in
 * cenote_last_error() in words. A process that was forked may not use what its parent opened: it is
 * told CENOTE_RESULT_FORKED, and to close it there frees nothing of the parent's.
 *
 * This file is made from the library's sources.
 */

#ifndef CENOTE_H
#define CENOTE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/**
 * How a call ended.
 */
typedef enum cenote_result {
  /**
   * It is done.
   */
  CENOTE_RESULT_OK = 0,
  /**
   * A pointer is null, or a text is no UTF-8.
   */
  CENOTE_RESULT_INVALID_ARGUMENT = 1,
  /**
   * A file, a key or an option makes no sense.
   */
  CENOTE_RESULT_CONFIGURATION = 2,
  /**
   * Too few hosts, or no manager of the cache, answer. May succeed later.
   */
  CENOTE_RESULT_UNREACHABLE = 3,
  /**
   * Hosts or the manager refuse. Trying again is no use.
   */
  CENOTE_RESULT_REFUSED = 4,
  /**
   * A part of a cache was out of reach for too long. A write may have happened in part: try again.
   */
  CENOTE_RESULT_UNAVAILABLE = 5,
  /**
   * More hosts are gone, or do not answer, than the scheme survives.
   */
  CENOTE_RESULT_LOST = 6,
  /**
   * What hosts hold disagrees, and nothing tells which of it is right.
   */
  CENOTE_RESULT_CORRUPT = 7,
  /**
   * Too few hosts have memory left. May succeed later.
   */
  CENOTE_RESULT_NO_SPACE = 8,
  /**
   * The range passes the end.
   */
  CENOTE_RESULT_OUT_OF_RANGE = 9,
  /**
   * The cache was deleted or its time is over, or the volume has ended.
   */
  CENOTE_RESULT_GONE = 10,
  /**
   * It was opened by the process that this one was forked from.
   */
  CENOTE_RESULT_FORKED = 11,
  /**
   * A bug of the library, which has written to the standard error stream what happened.
   */
  CENOTE_RESULT_BUG = 12,
} cenote_result;

/**
 * A connection to a remote cache: bytes at offsets in the memory of several machines. It has a thread
 * of its own, which keeps the cache's lease.
 */
typedef struct cenote_cache cenote_cache;

/**
 * Memory of a cluster's hosts: bytes at offsets, zeros until they are written. A write that has
 * returned survives the loss of as many hosts as the scheme bears. What is in it ends with it.
 */
typedef struct cenote_volume cenote_volume;

/**
 * What a volume is to be. Zeros and null pointers stand for what is usual.
 */
typedef struct cenote_volume_options {
  /**
   * Bytes of the volume, whole pages of 4096. Usually 1 GiB.
   */
  uint64_t size_bytes;
  /**
   * "plain", "mirror:N" or "rs:K+R". Usually the widest that the cluster has failure domains for.
   */
  const char *scheme;
  /**
   * What hosts call it in `cenote status`. Usually the process's number.
   */
  const char *name;
  /**
   * So many threads read and write at a time, and more wait for one another. Usually 4.
   */
  size_t threads;
} cenote_volume_options;

/**
 * How a volume is.
 */
typedef struct cenote_volume_status {
  /**
   * Pages that hold data, in bytes.
   */
  uint64_t stored_bytes;
  /**
   * Memory that hosts lend to it.
   */
  uint64_t lent_bytes;
  /**
   * Hosts of the cluster.
   */
  size_t hosts;
  /**
   * Those of them that are connected.
   */
  size_t hosts_connected;
  /**
   * Every split of every page is where it should be.
   */
  bool is_whole;
  /**
   * Every page can be read.
   */
  bool is_readable;
  /**
   * As the options take it; ends with a zero byte.
   */
  char scheme[32];
} cenote_volume_status;

/**
 * How a cache is opened. Zeros and null pointers stand for what is usual.
 */
typedef struct cenote_cache_options {
  /**
   * What `cenote cache status` calls this client. Usually the process's number.
   */
  const char *name;
  /**
   * How long a request waits for a region that is out of reach. Usually 30 s.
   */
  uint64_t patience_ms;
  /**
   * How long opening it, and a question to the manager, may take. Usually 10 s.
   */
  uint64_t timeout_ms;
} cenote_cache_options;

/**
 * A region that came back from a checkpoint after its bytes were lost.
 */
typedef struct cenote_cache_fell_back {
  /**
   * Its number.
   */
  uint32_t region;
  /**
   * When its bytes were as they are now, in milliseconds since 1970.
   */
  uint64_t taken_ms;
} cenote_cache_fell_back;

/**
 * How a cache is.
 */
typedef struct cenote_cache_status {
  /**
   * Bytes that it holds.
   */
  uint64_t size_bytes;
  /**
   * Copies of each region.
   */
  size_t copies;
  /**
   * Its hosts.
   */
  size_t hosts;
  /**
   * Regions that lost their bytes at some time.
   */
  size_t regions_lost;
  /**
   * Whether every region has all its copies, on hosts that stay, and can be written.
   */
  bool is_whole;
} cenote_cache_status;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What went wrong in the last call of this thread that failed, as a text that is valid until the next
 * call that fails. Empty if none did.
 */
const char *cenote_last_error(void);

/**
 * Whether the same call may succeed later.
 */
bool cenote_is_retryable(enum cenote_result result);

/**
 * Opens a new, empty volume on the hosts of a cluster file.
 *
 * What the caller promises:
 * `cluster_file` is a text; `options` null or valid; `volume` a place for a pointer.
 */
enum cenote_result cenote_volume_open(const char *cluster_file,
                                      const struct cenote_volume_options *options,
                                      struct cenote_volume **volume);

/**
 * Ends a volume: hosts have their memory back. No call with it may be under way. Null is nothing.
 *
 * What the caller promises:
 * Null, or a volume that is open and not used by anybody else.
 */
void cenote_volume_close(struct cenote_volume *volume);

/**
 * Bytes of the volume; 0 for null.
 *
 * What the caller promises:
 * Null, or a volume that is open.
 */
uint64_t cenote_volume_size(const struct cenote_volume *volume);

/**
 * Fills a buffer from the bytes at an offset. After a failure parts of it may be filled.
 *
 * What the caller promises:
 * The volume is open, and nobody else uses the buffer.
 */
enum cenote_result cenote_volume_read(const struct cenote_volume *volume,
                                      void *buffer,
                                      size_t len,
                                      uint64_t offset);

/**
 * Writes bytes at an offset. After a failure each page is as it was or as written. Whole pages, at
 * multiples of 4096, are fastest.
 *
 * What the caller promises:
 * The volume is open, and the bytes do not change meanwhile.
 */
enum cenote_result cenote_volume_write(const struct cenote_volume *volume,
                                       const void *buffer,
                                       size_t len,
                                       uint64_t offset);

/**
 * Has so many bytes at an offset read as zeros, and gives their memory back.
 *
 * What the caller promises:
 * The volume is open.
 */
enum cenote_result cenote_volume_discard(const struct cenote_volume *volume,
                                         uint64_t offset,
                                         uint64_t len_bytes);

/**
 * How the volume is.
 *
 * What the caller promises:
 * The volume is open, and `status` a place for one.
 */
enum cenote_result cenote_volume_get_status(const struct cenote_volume *volume,
                                            struct cenote_volume_status *status);

/**
 * Opens the cache of this name of a cluster's folder, on the machine of its manager.
 *
 * What the caller promises:
 * `folder` and `cache_name` are texts; `options` null or valid; `cache` a place for a pointer.
 */
enum cenote_result cenote_cache_open_in(const char *folder,
                                        const char *cache_name,
                                        const struct cenote_cache_options *options,
                                        struct cenote_cache **cache);

/**
 * Opens a cache by addresses of its manager, such as "tcp:10.0.0.7:7200", and the cluster's key.
 *
 * What the caller promises:
 * `addresses` are so many texts and `key_file` is one; `options` null or valid; `cache` a place for a
 * pointer.
 */
enum cenote_result cenote_cache_open_at(const char *const *addresses,
                                        size_t address_count,
                                        const char *key_file,
                                        const struct cenote_cache_options *options,
                                        struct cenote_cache **cache);

/**
 * Ends the connection. The cache stays as it is. No call with it may be under way. Null is nothing.
 *
 * What the caller promises:
 * Null, or a cache that is open and not used by anybody else.
 */
void cenote_cache_close(struct cenote_cache *cache);

/**
 * Bytes of the cache, as far as its manager told; 0 for null.
 *
 * What the caller promises:
 * Null, or a cache that is open.
 */
uint64_t cenote_cache_size(const struct cenote_cache *cache);

/**
 * Bytes of a region: losses are told by region. 0 for null.
 *
 * What the caller promises:
 * Null, or a cache that is open.
 */
uint64_t cenote_cache_region_size(const struct cenote_cache *cache);

/**
 * Fills a buffer from the bytes at an offset. After a failure parts of it may be filled.
 *
 * What the caller promises:
 * The cache is open, and nobody else uses the buffer.
 */
enum cenote_result cenote_cache_read(const struct cenote_cache *cache,
                                     void *buffer,
                                     size_t len,
                                     uint64_t offset);

/**
 * Stores bytes at an offset, and returns when every copy has them. After a failure a part may be
 * stored.
 *
 * What the caller promises:
 * The cache is open, and the bytes do not change meanwhile.
 */
enum cenote_result cenote_cache_write(const struct cenote_cache *cache,
                                      const void *buffer,
                                      size_t len,
                                      uint64_t offset);

/**
 * Takes the numbers of regions whose bytes were lost since this was asked last, at most `room_count` of
 * them: they hold zeros, or what a checkpoint has, and what was written from then on. `count` tells how
 * many were taken; as many as there was room for may mean that there are more.
 *
 * What the caller promises:
 * The cache is open, `regions` has room for so many, and `count` is a place for a number.
 */
enum cenote_result cenote_cache_take_lost(const struct cenote_cache *cache,
                                          uint32_t *regions,
                                          size_t room_count,
                                          size_t *count);

/**
 * Takes the regions that came back from a checkpoint since this was asked last, at most `room_count` of
 * them. `count` tells how many were taken; as many as there was room for may mean that there are more.
 *
 * What the caller promises:
 * The cache is open, `regions` has room for so many, and `count` is a place for a number.
 */
enum cenote_result cenote_cache_take_fallen_back(const struct cenote_cache *cache,
                                                 struct cenote_cache_fell_back *regions,
                                                 size_t room_count,
                                                 size_t *count);

/**
 * Asks the manager how the cache is.
 *
 * What the caller promises:
 * The cache is open, and `status` a place for one.
 */
enum cenote_result cenote_cache_get_status(const struct cenote_cache *cache,
                                           struct cenote_cache_status *status);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CENOTE_H */
