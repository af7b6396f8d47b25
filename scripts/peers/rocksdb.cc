// RocksDB as a peer of `cenote bench log`: see load.h.
//
// Past the page cache; no compression, no log of its own; a Bloom filter of 10 bits a key. Of its
// memory a quarter is for writes and the rest for the block cache; index and filters are in memory
// besides, as the indexes of the others are.
// Its reads block, so there are several threads.
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/version.h>

#include <atomic>
#include <thread>
#include <vector>

#include "load.h"

static constexpr int THREADS = 64;

int main(int count, char** arguments) {
  if (count != 4) fail("usage: rocksdb FOLDER KEYS MEMORY_BYTES");
  uint64_t keys = std::stoull(arguments[2]), memory = std::stoull(arguments[3]);
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(memory * 3 / 4);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.block_size = 4096;
  rocksdb::Options options;
  options.create_if_missing = true;
  options.error_if_exists = true;
  options.compression = rocksdb::kNoCompression;
  options.use_direct_reads = true;
  options.use_direct_io_for_flush_and_compaction = true;
  options.write_buffer_size = memory / 8;
  options.max_write_buffer_number = 2;
  options.max_open_files = -1;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  // One compaction when all is loaded.
  options.disable_auto_compactions = true;
  options.level0_slowdown_writes_trigger = options.level0_stop_writes_trigger = 1 << 20;
  rocksdb::DB* db;
  auto check = [](const rocksdb::Status& status) {
    if (!status.ok()) fail("rocksdb: " + status.ToString());
  };
  check(rocksdb::DB::Open(options, arguments[1], &db));
  rocksdb::WriteOptions unlogged;
  unlogged.disableWAL = true;
  auto put = [&](uint64_t key, uint64_t number) {
    Value value{key, number};
    check(db->Put(unlogged, rocksdb::Slice(reinterpret_cast<char*>(&key), 8),
                  rocksdb::Slice(reinterpret_cast<char*>(&value), sizeof value)));
  };
  for (uint64_t key = 0; key < keys; ++key) put(key, 0);
  check(db->Flush({}));
  check(db->CompactRange({}, nullptr, nullptr));
  check(db->SetOptions({{"disable_auto_compactions", "false"},
                        {"level0_slowdown_writes_trigger", "20"},
                        {"level0_stop_writes_trigger", "36"}}));

  Zipf zipf{keys};
  std::string name = "RocksDB " + rocksdb::GetRocksVersionAsString(false);
  serve(name, [&](bool is_zipf, double seconds, uint64_t seed) {
    std::atomic<uint64_t> total{0};
    std::vector<std::thread> threads;
    Clock clock;
    for (int thread = 0; thread < THREADS; ++thread) {
      threads.emplace_back([&, thread] {
        Load load{zipf, is_zipf, mix(seed * THREADS + thread)};
        rocksdb::PinnableSlice found;
        uint64_t done = 0, key;
        while (clock.seconds() < seconds) {
          for (int i = 0; i < 16; ++i, ++done) {
            if (!load.next(key)) {
              put(key, done);
              continue;
            }
            found.Reset();
            rocksdb::Slice slice(reinterpret_cast<char*>(&key), 8);
            check(db->Get({}, db->DefaultColumnFamily(), slice, &found));
            if (found.size() != sizeof(Value) || std::memcmp(found.data(), &key, 8) != 0)
              fail("rocksdb: a value is wrong");
          }
        }
        total += done;
      });
    }
    for (auto& thread : threads) thread.join();
    return total.load();
  });
  delete db;
}
