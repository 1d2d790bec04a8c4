// A mixture of experts (Shazeer et al. 2017): each row goes through the few experts that its scores choose, and adds what they return.
//
// Rows are grouped by expert, so that an expert's weights pass once over all its rows.  A row's results don't depend on the group: the
// products keep law 1 for any number of rows, and its shares are summed in the order of its own choices.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels.h"
#include "simd.h"

namespace octavo {
namespace OCTAVO_PATH {

namespace {

struct Part {
  int begin, end;
};

Part part_of(int total, Team team) {
  return {int(int64_t(total) * team.rank / team.size), int(int64_t(total) * (team.rank + 1) / team.size)};
}

// The top_k largest of the softmax over all experts; ties go to the lower expert.  shares: theirs, or (normalize) of their own sum.
void choose(const ExpertsArgs& a, const float* scores, int32_t* chosen, float* shares) {
  float highest = scores[0], total = 0.f, taken = 0.f;
  for (int e = 1; e < a.num_experts; e++) highest = std::max(highest, scores[e]);
  for (int e = 0; e < a.num_experts; e++) total += std::exp(scores[e] - highest);
  for (int j = 0; j < a.top_k; j++) {
    auto is_taken = [&](int e) { return std::find(chosen, chosen + j, e) != chosen + j; };
    int best = -1;
    for (int e = 0; e < a.num_experts; e++)  // with a NaN somewhere, the first that is left
      if (!is_taken(e) && (best < 0 || scores[e] > scores[best])) best = e;
    chosen[j] = best;
    shares[j] = std::exp(scores[best] - highest);
    taken += shares[j];
  }
  for (int j = 0; j < a.top_k; j++) shares[j] /= a.normalize ? taken : total;
}

// One product of each expert that has rows.  x and y: rows in the order of their experts.
void products(const ExpertsArgs& a, const Matrix* const* weights, const void* x, int64_t ldx, void* y, int64_t ldy, DType in, DType out,
              Activation activation, Team team) {
  for (int e = 0; e < a.num_experts; e++) {
    const int begin = a.begin[e], count = a.begin[e + 1] - begin;
    if (count == 0) continue;
    LinearArgs product{};
    product.w = weights[e], product.m = count, product.activation = activation, product.out = out;
    product.x = (const char*)x + begin * ldx * dtype_bytes(in), product.ldx = ldx;
    product.y = (char*)y + begin * ldy * dtype_bytes(out), product.ldy = ldy;
    linear(product, team);
  }
}

}  // namespace

void experts_route(const ExpertsArgs& a, Team team) {
  const Part rows = part_of(a.m, team);
  for (int row = rows.begin; row < rows.end; row++)
    choose(a, a.scores + int64_t(row) * a.num_experts, a.chosen + row * a.top_k, a.shares + row * a.top_k);
}

// A counting sort: places [begin[e], begin[e + 1]) are those of expert e.
void experts_group(const ExpertsArgs& a, Team team) {
  if (team.rank) return;
  const int choices = a.m * a.top_k;
  std::fill(a.begin, a.begin + a.num_experts + 1, 0);
  for (int i = 0; i < choices; i++) a.begin[a.chosen[i] + 1]++;
  for (int e = 0; e < a.num_experts; e++) a.begin[e + 1] += a.begin[e];
  for (int i = 0; i < choices; i++) a.place[i] = a.begin[a.chosen[i]]++;
  for (int e = a.num_experts; e > 0; e--) a.begin[e] = a.begin[e - 1];
  a.begin[0] = 0;
}

void experts_gather(const ExpertsArgs& a, Team team) {
  const Part choices = part_of(a.m * a.top_k, team);
  const size_t bytes = size_t(a.ldx) * dtype_bytes(a.dtype);
  for (int i = choices.begin; i < choices.end; i++)
    std::memcpy((char*)a.gathered + a.place[i] * bytes, (const char*)a.x + i / a.top_k * bytes, bytes);
}

void experts_up(const ExpertsArgs& a, Team team) {
  products(a, a.up, a.gathered, a.ldx, a.inner, a.ld_inner, a.dtype, a.dtype, a.activation, team);
}

void experts_down(const ExpertsArgs& a, Team team) {
  products(a, a.down, a.inner, a.ld_inner, a.parts, a.width, a.dtype, DType::f32, Activation::none, team);
}

void experts_combine(const ExpertsArgs& a, Team team) {
  const Part rows = part_of(a.m, team);
  for (int row = rows.begin; row < rows.end; row++)
    for (int i = 0; i < a.width; i += kLanes) {
      const int count = std::min(kLanes, a.width - i);
      float* y = a.y + int64_t(row) * a.width + i;
      F16 sum = zero();
      for (int j = row * a.top_k; j < (row + 1) * a.top_k; j++) {
        const float* part = a.parts + int64_t(a.place[j]) * a.width + i;
        sum = fma(set1(a.shares[j]), count == kLanes ? load(part) : load_first(part, count), sum);
      }
      sum = add(count == kLanes ? load(y) : load_first(y, count), sum);
      if (count == kLanes)
        store(y, sum);
      else
        store_first(y, sum, count);
    }
}

}  // namespace OCTAVO_PATH
}  // namespace octavo
