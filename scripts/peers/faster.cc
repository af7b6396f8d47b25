// FASTER as a peer of `cenote bench log`: see load.h. One thread; its reads wait beside each other.
#include <sys/stat.h>

#include "core/faster.h"
#include "device/file_system_disk.h"
#include "load.h"

using namespace FASTER::core;

// Reads under way at a time, as in ours.
static constexpr uint64_t PENDING_MAX = 128;

static uint64_t pending = 0;

class Key {
 public:
  Key(uint64_t key) : key_{key} {}
  static constexpr uint32_t size() { return sizeof(Key); }
  KeyHash GetHash() const { return KeyHash{Utility::GetHashCode(key_)}; }
  bool operator==(const Key& other) const { return key_ == other.key_; }
  bool operator!=(const Key& other) const { return key_ != other.key_; }
  uint64_t key_;
};

class Stored {
 public:
  static constexpr uint32_t size() { return sizeof(Stored); }
  std::atomic<uint64_t> key, number;
};

class ReadContext : public IAsyncContext {
 public:
  typedef Key key_t;
  typedef Stored value_t;
  explicit ReadContext(uint64_t key) : key_{key} {}
  ReadContext(const ReadContext& other) : key_{other.key_} {}
  const Key& key() const { return key_; }
  void Get(const Stored& value) { check(value); }
  void GetAtomic(const Stored& value) { check(value); }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  void check(const Stored& value) const {
    if (value.key != key_.key_) fail("faster: a value is wrong");
  }
  Key key_;
};

class UpsertContext : public IAsyncContext {
 public:
  typedef Key key_t;
  typedef Stored value_t;
  UpsertContext(uint64_t key, uint64_t number) : key_{key}, number_{number} {}
  UpsertContext(const UpsertContext& other) : key_{other.key_}, number_{other.number_} {}
  const Key& key() const { return key_; }
  static constexpr uint32_t value_size() { return sizeof(Stored); }
  void Put(Stored& value) { PutAtomic(value); }
  bool PutAtomic(Stored& value) {
    value.key.store(key_.key_, std::memory_order_relaxed);
    value.number.store(number_, std::memory_order_relaxed);
    return true;
  }

 protected:
  Status DeepCopy_Internal(IAsyncContext*& copy) {
    return IAsyncContext::DeepCopy_Internal(*this, copy);
  }

 private:
  Key key_;
  uint64_t number_;
};

using disk_t =
    FASTER::device::FileSystemDisk<FASTER::environment::QueueIoHandler, 1073741824ull>;
using store_t = FasterKv<Key, Stored, disk_t>;

int main(int count, char** arguments) {
  if (count != 4) fail("usage: faster FOLDER KEYS MEMORY_BYTES");
  uint64_t keys = std::stoull(arguments[2]), memory = std::stoull(arguments[3]);
  if (mkdir(arguments[1], 0700) != 0) fail("faster: make the folder");
  uint64_t buckets = 1;
  while (buckets < keys / 3) buckets *= 2;
  // It wants four pages that are read-only and in memory.
  double mutable_part = std::min(0.875, 1 - 5.0 * (1 << 20) / memory);
  store_t store{buckets, memory, arguments[1], mutable_part};
  store.StartSession();
  uint64_t serial = 1;
  auto upsert = [&](uint64_t key, uint64_t number) {
    auto done = [](IAsyncContext*, Status) {};
    UpsertContext context{key, number};
    if (store.Upsert(context, done, serial++) != Status::Ok) fail("faster: an upsert failed");
    if (serial % 64 == 0) store.Refresh();
  };
  for (uint64_t key = 0; key < keys; ++key) upsert(key, 0);
  store.CompletePending(true);

  Zipf zipf{keys};
  serve("FASTER (C++)", [&](bool is_zipf, double seconds, uint64_t seed) {
    Load load{zipf, is_zipf, mix(seed)};
    Clock clock;
    uint64_t done = 0, key;
    while (clock.seconds() < seconds) {
      for (int i = 0; i < 256; ++i, ++done) {
        if (!load.next(key)) {
          upsert(key, done);
          continue;
        }
        auto ended = [](IAsyncContext* read, Status result) {
          CallbackContext<ReadContext> context{read};
          if (result != Status::Ok) fail("faster: a read failed");
          --pending;
        };
        ReadContext context{key};
        switch (store.Read(context, ended, serial++)) {
          case Status::Ok:
            break;
          case Status::Pending:
            ++pending;
            while (pending >= PENDING_MAX) store.CompletePending(false);
            break;
          default:
            fail("faster: a key is gone");
        }
        if (serial % 64 == 0) store.Refresh();
      }
      store.CompletePending(false);
    }
    store.CompletePending(true);
    return done;
  });
  store.StopSession();
}
