// The most multiply-adds a core can do: independent chains of a * b + c held in registers.
//
// Compiled for this very machine when the benchmark runs, once per vector width (VECTOR_BYTES),
// so that no width has to be known beforehand. Prints GFLOP/s for the given number of threads.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

typedef float Vector __attribute__((vector_size(VECTOR_BYTES)));

// Enough chains to cover latency x issue width, few enough for 16 registers.
constexpr int kChains = 12;
constexpr long kSteps = 10000000;

static volatile float sink;

static void Chains() {
  Vector a, b, acc[kChains];
  for (unsigned lane = 0; lane < VECTOR_BYTES / sizeof(float); ++lane) {
    a[lane] = 0.999f;
    b[lane] = 0.001f;
  }
  for (int c = 0; c < kChains; ++c) acc[c] = b * static_cast<float>(c + 1);
  for (long step = 0; step < kSteps; ++step) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) acc[c] = acc[c] * a + b;
  }
  float total = 0;
  for (int c = 0; c < kChains; ++c) total += acc[c][0];
  sink = total;
}

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 10;
  const double flops = 2.0 * kChains * kSteps * (VECTOR_BYTES / sizeof(float)) * threads;
  double best = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> pool;
    for (int t = 1; t < threads; ++t) pool.emplace_back(Chains);
    Chains();
    for (auto& thread : pool) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::max(best, flops / took.count() / 1e9);
  }
  std::printf("%.2f\n", best);
  return 0;
}
