// Packing: see abi.h for the layout.
#include "matrix.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>

#include "convert.h"

namespace octavo {

constexpr int kColumns = 64, kHalf = 16;  // of a panel; of a gate or an up inside a gated panel
constexpr int64_t kAlign = 4096;

static int panels_of(int n, bool gated) { return gated ? (n / 2 + kColumns / 2 - 1) / (kColumns / 2) : (n + kColumns - 1) / kColumns; }
static int padded_k(int k, DType dtype) { return dtype == DType::f32 ? k : (k + 1) / 2 * 2; }

int64_t packed_bytes(int n, int k, DType dtype, bool gated) {
  int64_t bytes = int64_t(panels_of(n, gated)) * padded_k(k, dtype) * kColumns * dtype_bytes(dtype);
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

WeightMemory::WeightMemory(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(p);
#ifdef MADV_HUGEPAGE
  madvise(p, size_t(bytes), MADV_HUGEPAGE);  // advice: without it the kernels only run slower
#endif
}

WeightMemory::~WeightMemory() {
  if (base_) munmap(base_, size_t(bytes_));
}

// The source row behind column c of a panel, or -1 for padding.
static int source_row(const Matrix& m, int panel, int c) {
  if (!m.gated) {
    int row = panel * kColumns + c;
    return row < m.n ? row : -1;
  }
  int half = m.n / 2, row = panel * kColumns / 2 + c / (2 * kHalf) * kHalf + c % kHalf;
  return row >= half ? -1 : c / kHalf % 2 ? half + row : row;
}

static void pack_panel(const Source& s, const Matrix& m, int panel) {
  const int pair = m.dtype == DType::f32 ? 1 : 2;
  const int64_t base = int64_t(panel) * m.k_padded * kColumns;
  for (int c = 0; c < kColumns; c++) {
    const int row = source_row(m, panel, c);
    for (int k = 0; k < m.k_padded; k++) {
      const int64_t to = base + (int64_t(k / pair) * kColumns + c) * pair + k % pair;
      const float value = row < 0 || k >= m.k ? 0.f : read_element(s.data, s.dtype, row * s.stride + k);
      if (m.dtype == DType::f32)
        static_cast<float*>(m.packed)[to] = value;
      else
        static_cast<uint16_t*>(m.packed)[to] = to_bf16(value);
    }
  }
}

const Matrix* WeightMemory::pack(const Source& source, DType dtype, bool gated, int threads) {
  const int64_t need = packed_bytes(source.n, source.k, dtype, gated);
  if (need > bytes_ - used_)
    throw std::invalid_argument("packing " + std::to_string(source.n) + " x " + std::to_string(source.k) + " weights needs " +
                                std::to_string(need) + " bytes; " + std::to_string(bytes_ - used_) + " of " +
                                std::to_string(bytes_) + " are left");
  Matrix m;
  m.n = source.n, m.k = source.k, m.dtype = dtype, m.gated = gated;
  m.panels = panels_of(m.n, gated), m.k_padded = padded_k(m.k, dtype);
  m.packed = base_ + used_;
  used_ += need;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int panel = 0; panel < m.panels; panel++) pack_panel(source, m, panel);
  matrices_.push_back(m);
  return &matrices_.back();
}

}  // namespace octavo
