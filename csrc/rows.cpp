// What is done to each row by itself between the products: embedding and norms.  Rows are shared out evenly; a row is one thread's.
#include "kernels.h"
#include "reduce.h"
#include "tile.h"

namespace octavo {
namespace OCTAVO_PATH {

static inline int first_row(int m, int rank, int size) { return int(int64_t(m) * rank / size); }

// Sixteen consecutive elements (count of them) of a plain row.
static F16 read_row(const void* base, DType dtype, int64_t at, int count) {
  if (dtype == DType::f32) return load_upto((const float*)base + at, count);
  const half_t* p = (const half_t*)base + at;
  half_t part[kLanes] = {};
  if (count < kLanes) p = (const half_t*)std::memcpy(part, p, count * sizeof(half_t));
  return dtype == DType::bf16 ? load_bf16(p) : load_fp16(p);
}

// Row `n` of a packed matrix, column by column: neighbouring k are a panel's width apart.
static void gather_packed(const Matrix& w, int n, float scale, float* y) {
  const int column = n % kPanel;
  const int64_t panel = n / kPanel;
  if (w.dtype == DType::f32) {
    const float* from = (const float*)w.packed + panel * w.k_padded * kPanel + column;
    for (int k = 0; k < w.k; k++) y[k] = from[int64_t(k) * kPanel] * scale;
  } else {
    const half_t* from = (const half_t*)w.packed + panel * w.k_padded * kPanel + column * 2;
    for (int k = 0; k < w.k; k++) y[k] = bf16_to_float(from[int64_t(k / 2) * kPanel * 2 + k % 2]) * scale;
  }
}

void embed(const EmbedArgs& a, Team team) {
  const int end = first_row(a.m, team.rank + 1, team.size);
  for (int row = first_row(a.m, team.rank, team.size); row < end; row++) {
    float* y = a.y + int64_t(row) * a.width;
    if (a.tied) gather_packed(*a.tied, a.token_ids[row], a.scale, y);
    const int64_t token = int64_t(a.token_ids[row]) * a.width;
    const int64_t position = a.positions ? int64_t(a.position_of[row] + a.position_offset) * a.width : 0;
    for (int i = 0; i < a.width; i += kLanes) {
      const int count = a.width - i;
      F16 v = a.tied ? load_upto(y + i, count) : mul(read_row(a.table, a.dtype, token + i, count), set1(a.scale));
      if (a.positions) v = add(v, read_row(a.positions, a.dtype, position + i, count));
      store_upto(y + i, v, count);
    }
  }
}

// One vector of a norm's result, rounded to the output's dtype.
static void put(const NormArgs& a, int64_t at, F16 v, int count) {
  if (a.out == DType::f32) return store_upto((float*)a.y + at, v, count);
  half_t rounded[kLanes];
  half_t* to = (half_t*)a.y + at;
  store_bf16(count >= kLanes ? to : rounded, v);
  if (count < kLanes) std::memcpy(to, rounded, count * sizeof(half_t));
}

void norm(const NormArgs& a, Team team) {
  const int end = first_row(a.m, team.rank + 1, team.size);
  for (int row = first_row(a.m, team.rank, team.size); row < end; row++) {
    const float* x = a.x + int64_t(row) * a.width;
    const int64_t at = row * a.ldy;
    float mean = 0.f, scale;
    if (a.layer_norm) {  // Ba et al. 2016: the variance from the centred values, in a second pass
      mean = sum_over(x, a.width, [](F16 v) { return v; }) / float(a.width);
      const F16 centre = set1(mean);
      const float squares = sum_over(x, a.width, [&](F16 v) { return mul(sub(v, centre), sub(v, centre)); });
      scale = 1.f / std::sqrt(squares / float(a.width) + a.eps);
    } else {
      scale = inverse_rms(x, a.width, a.eps);
    }
    const F16 centre = set1(mean), factor = set1(scale);
    for (int i = 0; i < a.width; i += kLanes) {
      const int count = a.width - i;
      F16 v = mul(mul(sub(load_upto(x + i, count), centre), factor), load_upto(a.weight + i, count));
      if (a.bias) v = add(v, load_upto(a.bias + i, count));
      put(a, at + i, v, count);
    }
    const int bytes = dtype_bytes(a.out);
    std::memset((char*)a.y + (at + a.width) * bytes, 0, size_t(a.ldy - a.width) * bytes);
  }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
