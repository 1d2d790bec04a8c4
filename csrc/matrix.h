// Weights, packed once at load into one mapping.
#pragma once
#include <cstddef>
#include <deque>

#include "abi.h"

namespace octavo {

// A row-major source [n, k] whose rows are `stride` elements apart.
struct Source {
  const void* data;
  DType dtype;
  int n, k;
  int64_t stride;
};

// Bytes that `pack` takes for such a matrix.
int64_t packed_bytes(int n, int k, DType dtype, bool gated);

// One anonymous mapping that matrices are packed into, in the order in which a step will read them.  Pages are taken from the system as
// they are written; huge ones are asked for, because a step at batch 1 is bound by how fast these bytes stream.
class WeightMemory {
 public:
  explicit WeightMemory(int64_t bytes);  // throws std::bad_alloc
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  // Packs to `dtype` (f32 or bf16, rounding to nearest even) with `threads` threads.  The result lives as long as this memory.
  // Throws std::invalid_argument when the matrix doesn't fit what is left.
  const Matrix* pack(const Source& source, DType dtype, bool gated, int threads);

  int64_t bytes() const { return bytes_; }
  int64_t used() const { return used_; }

 private:
  char* base_ = nullptr;
  int64_t bytes_ = 0, used_ = 0;
  std::deque<Matrix> matrices_;
};

}  // namespace octavo
