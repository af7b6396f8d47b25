// The load of `cenote bench log`, as crates/bench/src/log/load.rs draws it, and how a peer is told.
//
// PROGRAM FOLDER KEYS MEMORY_BYTES loads KEYS records of 8 and 16 bytes and says its name on a
// line. Each line "uniform|zipf SECONDS SEED" that comes is answered by millions of operations per
// second, and per second of processor time. It ends with its input.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cstring>
#include <iostream>
#include <string>

struct Value {
  uint64_t key;
  uint64_t number;
};

inline uint64_t mix(uint64_t word) {
  word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9ull;
  word = (word ^ word >> 27) * 0x94d049bb133111ebull;
  return word ^ word >> 31;
}

inline uint64_t scale(uint64_t random, uint64_t count) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(random) * count) >> 64);
}

// What Gray's method needs to draw a rank; once for all loads.
struct Zipf {
  static constexpr double theta = 0.99;
  uint64_t keys;
  double zeta = 0, eta = 0;

  explicit Zipf(uint64_t keys) : keys{keys} {
    for (uint64_t rank = 1; rank <= keys; ++rank) zeta += std::pow(rank, -theta);
    double two = 1 + std::pow(2, -theta);
    eta = (1 - std::pow(2.0 / keys, 1 - theta)) / (1 - two / zeta);
  }

  uint64_t rank(double random) const {
    double share = random * zeta;
    if (share < 1) return 0;
    if (share < 1 + std::pow(0.5, theta)) return 1;
    auto rank = static_cast<uint64_t>(keys * std::pow(eta * random - eta + 1, 1 / (1 - theta)));
    return rank < keys ? rank : keys - 1;
  }
};

struct Load {
  const Zipf& zipf;
  bool is_zipf;
  uint64_t state;

  uint64_t random() {
    state += 0x9e3779b97f4a7c15ull;
    return mix(state);
  }

  // The key, and whether it is read.
  bool next(uint64_t& key) {
    bool is_read = !is_zipf || (random() >> 63) == 0;
    if (!is_zipf) {
      key = scale(random(), zipf.keys);
    } else {
      double part = static_cast<double>(random() >> 11) / (1ull << 53);
      key = scale(mix(zipf.rank(part)), zipf.keys);
    }
    return is_read;
  }
};

struct Clock {
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
};

[[noreturn]] inline void fail(const std::string& what) {
  std::cerr << what << std::endl;
  std::exit(1);
}

// Answers lines until there are no more.
template <class Run>
void serve(const std::string& name, Run run) {
  std::cout << name << std::endl;
  std::string choice;
  double seconds;
  uint64_t seed;
  while (std::cin >> choice >> seconds >> seed) {
    auto used = std::clock();
    Clock clock;
    double done = static_cast<double>(run(choice == "zipf", seconds, seed)) / 1e6;
    double processor = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC;
    std::cout << done / clock.seconds() << " " << done / processor << std::endl;
  }
}
